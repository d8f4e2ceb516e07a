"""Trains a recorded trial again, to look at what its record does not hold.

A trial is a function of its seeds and point, so training it again gives the same curve,
bit for bit on a CPU. The caller of `replay` is given the weights around single updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dps_tf.core import VALIDATION, UserError, examples_at
from dps_tf.data import Dataset
from dps_tf.models import initial_point
from dps_tf.objectives import Objective
from dps_tf.sparsity import masked
from dps_tf.store import (
    FileSystem,
    RecordedTrial,
    StudyReader,
    SweepLayout,
    SweepReader,
)
from dps_tf.training import Program
from dps_tf.tuning import build
from dps_tf.tuning.interruption import Interrupted

_SLICE = 100
"""Most steps between two looks at whether to stop."""

Weights = tuple[np.ndarray, ...]
Look = Callable[[Weights, Weights], None]
"""Is given the model's weights before and after an update."""


def read_recorded(
    files: FileSystem, layout: SweepLayout, cell: str
) -> StudyReader | None:
    """Returns the study of a cell, or None while it is not closed.

    Raises:
        UserError: unknown cell, damaged tables, or a study that was read from an
            archive.
    """
    study = SweepReader(files, layout.root).study(cell)
    closed = study.closed(("trials", "curves"))
    if study.problems:
        raise UserError(
            f"{' '.join(study.problems)} Training again closes {cell} anew."
        )
    if closed is None:
        return None
    study.trained()
    return study


def dataset_of(study: StudyReader, data_dir: str | None) -> Dataset:
    """Returns the data that a study was trained on.

    Raises:
        UserError: they are not there, or others are.
    """
    found = build.load_dataset(study.trained().workload, data_dir)
    if found.content_hash != study.training_inputs["content_hash"]:
        raise UserError(
            f"the data set in --data_dir={data_dir} is not the one that {study.name} "
            "was trained on: name the folder of that run."
        )
    return found


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
    """Evaluates what was evaluated, and returns whether it differs from the record."""
    theirs, is_bound = trial.curve[step]
    known = {name for name, value in theirs.items() if not math.isnan(value)}
    splits = {name.partition("/")[0] for name in known - {"train/loss"}}
    mine = {"train/loss": loss}
    for split in {VALIDATION, *splits}:
        mine |= program.evaluate(split).metrics
    bounding = program.objective if is_bound else None
    changes = [
        f"{name} is {found!r} and was {value!r}"
        for name, value in theirs.items()
        if not _agree(name, found := mine.get(name, math.nan), value, bounding)
    ]
    if changes:
        differs(f"at step {step}, {', '.join(changes)}")
    return bool(changes)


def _agree(column: str, mine: float, theirs: float, bounding: Objective | None) -> bool:
    """Returns whether a value is that of the record, or what `bounding` lets it be."""
    if bounding is None or column not in bounding.columns("validation"):
        return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
    metric = bounding.metric(column)
    if math.isnan(theirs) or mine == theirs or not metric.can_be_bounded:
        return math.isnan(theirs) or mine == theirs
    return mine > theirs if metric.grows else mine < theirs
