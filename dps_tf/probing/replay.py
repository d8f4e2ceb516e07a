"""Trains a recorded trial again, to look at what its record does not hold.

A trial is a function of its seeds and point, so training it again gives the same curve,
bit for bit on a CPU. The caller of `replay` is given the weights around single updates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dps_tf.core.errors import UserError
from dps_tf.core.seeds import examples_at
from dps_tf.data.dataset import Dataset, Examples
from dps_tf.models import initial_point
from dps_tf.objectives import Objective
from dps_tf.probing.gradients import ExampleGradients
from dps_tf.probing.recorded_study import RecordedStudy, RecordedTrial
from dps_tf.sparsity.prunable import masked
from dps_tf.training.environment import describe
from dps_tf.training.program import Program
from dps_tf.tuning import build
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.resources import Resources

_SLICE = 100
"""Most steps between two looks at whether to stop."""

Weights = tuple[np.ndarray, ...]
Look = Callable[[Weights, Weights], None]
"""Is given the model's weights before and after an update."""


class ProgramCache:
    """The latest program and gradients, for as long as the next study needs the same.

    Programs serve all trials of a study; gradients all studies of a network and data,
    and are taken on one device, in float32, however trials are trained.

    Args:
        resources: what trials are trained again on; None is one device of this machine.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        """Touches no device yet."""
        self._resources = resources
        self._program: tuple[str, Program] | None = None
        self._gradients: tuple[str, ExampleGradients] | None = None

    def program(self, study: RecordedStudy, dataset: Dataset) -> Program:
        """Returns a program of a study that evaluates exactly.

        Where the study stopped evaluations early, its record holds bounds, which
        depend on the goal of that time.
        """
        key = study.specification.fingerprint + dataset.content_hash
        if self._program is None or self._program[0] != key:
            exact = replace(study.specification, evaluation="exact")
            self._program = None  # its memory is free before the next one is built
            self._program = key, self._machine().programs(exact, dataset)[0]
        return self._program[1]

    def environment(self) -> dict[str, str]:
        """Returns what the bits of trials depend on that are trained again."""
        return describe(self._machine().replicas, self._machine().processes)

    def _machine(self) -> Resources:
        if self._resources is None:
            self._resources = Resources.of_this_machine(slots=1)
        return self._resources

    def gradients(
        self, study: RecordedStudy, dataset: Dataset, examples: int
    ) -> ExampleGradients:
        """Returns gradients over the first `examples` training examples."""
        workload = study.specification.workload
        arguments = dict(workload.network_arguments)
        task = build.build_task(workload, dataset)
        key = json.dumps(
            [workload.network, arguments, dataset.content_hash, examples]
            + [workload.objective, dict(workload.objective_arguments)]
            + [list(task.loss_metaparameters)],
            sort_keys=True,
        )
        if self._gradients is None or self._gradients[0] != key:
            train = dataset.train
            first = Examples(train.inputs[:examples], train.labels[:examples])
            self._gradients = (
                key,
                ExampleGradients(
                    task.network,
                    first,
                    task.objective,
                    metaparameters=task.loss_metaparameters,
                ),
            )
        return self._gradients[1]


def log_spaced(end: int, times: int) -> list[int]:
    """Returns steps k in [1, end - 1], as evenly spaced in log k as whole numbers are.

    All different and ascending, the first and last of the range among them, `times` of
    them where there are so many (1 alone for one time). The update that is looked at
    leads from step k to k + 1, so that of the last one ends at `end`. For an `end` of
    1 it is step 0.

    >>> log_spaced(400, 10)
    [1, 2, 4, 8, 15, 29, 56, 108, 208, 399]
    >>> log_spaced(5, 10)
    [1, 2, 3, 4]
    """
    last = end - 1
    if last < 1:
        return [0]
    steps = [1]
    while len(steps) < min(times, last):
        left = min(times, last) - len(steps)
        ratio = (last / steps[-1]) ** (1 / left)
        steps.append(max(steps[-1] + 1, round(steps[-1] * ratio)))
    return steps


def replay(
    program: Program,
    trial: RecordedTrial,
    masks: Sequence[np.ndarray] | None,
    looks: Mapping[int, Look],
    *,
    differs: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Trains a trial again to its end, and past it as far as there are looks.

    Args:
        program: of the trial's network, optimizer and batch size; evaluates exactly.
        trial: its record.
        masks: one per trainable variable; None for a dense network.
        looks: who is shown the update from step k to k + 1, by k.
        differs: is told how the first evaluation that differs from the record does;
            it may raise.
        stop: whether to leave.

    Raises:
        Interrupted: a stop was asked for.
        UserError: the trial diverged.
    """
    values = initial_point(program.model, trial.initial_seed)
    if masks is not None:
        values = masked(program.model, values, masks)
    state = program.fresh_state(values)
    program.load(state, trial.point, masks, trial.initial_seed)
    end = max([trial.end, *(k + 1 for k in looks)])
    evaluations = {step for step in trial.curve if step <= end}
    step, loss, told = 0, math.nan, False
    before: Weights = ()
    for until in sorted({*evaluations, *looks, *(k + 1 for k in looks)}):
        step, loss = _advance(program, trial, (step, loss), until, stop)
        if until in evaluations and not told:
            told = _compare(program, trial, until, loss, differs)
        after = _weights(program) if looks.keys() & {until, until - 1} else ()
        if until - 1 in looks:
            looks[until - 1](before, after)
        before = after


def _advance(
    program: Program,
    trial: RecordedTrial,
    at: tuple[int, float],
    until: int,
    stop: Callable[[], bool],
) -> tuple[int, float]:
    """Returns (step, loss of the last update) after training up to a step."""
    step, loss = at
    while step < until:
        if stop():
            raise Interrupted
        indices = examples_at(
            step,
            min(until - step, _SLICE),
            trial.order_seed,
            program.data.train_count,
            program.batch_size,
        )
        done = program.advance(indices)
        step, loss = step + done.steps, done.loss
        if done.diverged:
            _refuse_divergence(trial, step)
    return step, loss


def _refuse_divergence(trial: RecordedTrial, step: int) -> None:
    """Raises UserError."""
    last = max(trial.curve)
    if step > last:
        raise UserError(
            f"trial {trial.number} diverged at step {step}, past step {last} where its "
            "record ends: look at earlier steps."
        )
    raise UserError(
        f"trial {trial.number}, trained again, diverged at step {step}, where its "
        f"record goes on to step {last}: train it where it was trained before."
    )


def _weights(program: Program) -> Weights:
    return program.read().arrays[: len(program.model.weights)]


def _compare(
    program: Program,
    trial: RecordedTrial,
    step: int,
    loss: float,
    differs: Callable[[str], None],
) -> bool:
    """Evaluates, and returns whether that differs from the record."""
    mine = {**program.evaluate().metrics, "train/loss": loss}
    theirs, is_bound = trial.curve[step]
    changes = [
        f"{name} is {mine.get(name, math.nan)!r} and was {value!r}"
        for name, value in theirs.items()
        if not _agree(
            name,
            mine.get(name, math.nan),
            value,
            program.objective if is_bound else None,
        )
    ]
    if changes:
        differs(f"at step {step}, {', '.join(changes)}")
    return bool(changes)


def _agree(column: str, mine: float, theirs: float, bounding: Objective | None) -> bool:
    """Returns whether a value is that of the record, or what its bound allows.

    `bounding`: the objective, where the values of the record are bounds.
    """
    if bounding is None or column not in bounding.columns("validation"):
        return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
    metric = bounding.metric(column)
    if math.isnan(theirs) or mine == theirs or not metric.can_be_bounded:
        return math.isnan(theirs) or mine == theirs
    return mine > theirs if metric.grows else mine < theirs
