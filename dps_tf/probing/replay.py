"""Replay of a recorded trial: training it again to read weights that were not kept.

A trial is a function of its seeds and point, so training it again gives the same curve,
bit for bit on a CPU. `replay` passes on the states before and after single updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from dps_tf import data, models
from dps_tf._keras import keras
from dps_tf.core import TRAIN_LOSS, VALIDATION, Job, TrialState, TurnReport, UserError
from dps_tf.data import Dataset
from dps_tf.models import structure_hash
from dps_tf.objectives import Objective
from dps_tf.sparsity import MaskSet
from dps_tf.store import (
    NETWORK,
    FileSystem,
    RecordedTrial,
    StudyReader,
    SweepLayout,
    SweepReader,
)
from dps_tf.training import Program, TrainingRunner
from dps_tf.tuning.interruption import Interrupted

Arrays = tuple[np.ndarray, ...]
Look = Callable[[Arrays, Arrays], None]
"""Called with the arrays of a trial's state before an update and after it: the model's
weights, then the optimizer's slots."""


def read_recorded(
    files: FileSystem, layout: SweepLayout, cell: str
) -> StudyReader | None:
    """Returns the study of a cell, or None while it is not closed.

    Raises:
        UserError: there is no such cell, a table is damaged, or the study was read
            from an archive.
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
    """Returns the data set that a study was trained on, from a folder of prepared sets.

    Raises:
        UserError: the folder holds no data set of that name, or one of other content.
    """
    dataset = data.load_for(study.trained().workload, data_dir)
    if dataset.content_hash != study.training_inputs["content_hash"]:
        raise UserError(
            f"the data set in --data_dir={data_dir} is not the one that {study.name} "
            "was trained on: name the folder of that run."
        )
    return dataset


def network_of(study: StudyReader, dataset: Dataset) -> keras.Model:
    """Returns the network of a study, untrained; UserError if it is another one now."""
    specification = study.trained()
    workload = specification.workload
    model = models.build_for(workload, dataset.input_shape, dataset.classes)
    trained = models.in_precision(model, specification.precision)
    if study.training_inputs.get(NETWORK) not in (None, structure_hash(trained)):
        raise UserError(
            f"{study.name} was trained with another network than "
            f"{workload.network!r} builds now: undo the change of its "
            "builder, or choose another sweep_dir."
        )
    return model


def log_spaced(end: int, times: int) -> list[int]:
    """Returns steps k in [1, end - 1], as evenly spaced in log k as whole numbers are.

    The steps are different and ascending. They include 1 and, unless `times` is 1,
    `end` - 1. There are `times` of them, or all of the range if it has fewer. The
    update at k leads from step k to k + 1, so the last update ends at `end`. For an
    `end` of 1 the only step is 0.

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


class WatchedRunner(TrainingRunner):
    """Trains a recorded trial again, by its seeds and masks, and can stop at any step.

    Evaluations are made at the recorded steps, on the recorded splits.

    Attributes:
        is_evaluating: whether evaluations are made.
    """

    def __init__(
        self, program: Program, trial: RecordedTrial, masks: Sequence[np.ndarray] | None
    ):
        """`masks`: one per trainable variable; None for a dense network."""
        super().__init__(
            (program,),
            study_seed=0,
            prune=None if masks is None else lambda *_: MaskSet(list(masks)),
            splits_at=lambda step, *_: _further_splits(trial, step),
        )
        self._trial = trial
        self.is_evaluating = True

    def initial_seed(self, trial: int) -> int:
        """Returns the recorded seed of the initial point."""
        return self._trial.initial_seed

    def order_seed(self, trial: int) -> int:
        """Returns the recorded seed of the order of examples."""
        return self._trial.order_seed

    def _is_evaluated(self, job: Job, step: int) -> bool:
        is_due = step == job.until and step in self._trial.curve
        return is_due and self.is_evaluating

    def go_on(
        self, state: TrialState | None, until: int, stop: Callable[[], bool]
    ) -> TurnReport:
        """Trains from a state to the step `until`; returns the report of the last turn.

        Raises:
            Interrupted: `stop` returned True.
            UserError: the trial diverged.
        """
        trial = self._trial
        while True:
            job = Job(trial.number, trial.point, state, until)
            (report,) = self.run(0, [job], stop)
            if report.diverged_step is not None:
                _refuse_divergence(trial, report.diverged_step)
            if report.step == until:
                return report
            if stop():
                raise Interrupted
            state = report.state


def replay(
    program: Program,
    trial: RecordedTrial,
    masks: Sequence[np.ndarray] | None,
    looks: Mapping[int, Look],
    *,
    differs: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Trains a trial again to its end, or to the last look if that is later.

    Args:
        program: a program of the trial's network, optimizer and batch size that
            evaluates exactly.
        trial: record of the trial.
        masks: 0/1, one per trainable variable; None for a dense network.
        looks: functions to call with the states of the update from step k to k + 1, by
            k.
        differs: called with a description of the first evaluation that differs from
            the record; may raise.
        stop: returns whether to stop early.

    Raises:
        Interrupted: `stop` returned True.
        UserError: the trial diverged.
    """
    runner = WatchedRunner(program, trial, masks)
    end = max([trial.end, *(k + 1 for k in looks)])
    evaluations = {step for step in trial.curve if step <= end}
    state: TrialState | None = None
    before: Arrays = ()
    for until in sorted({*evaluations, *looks, *(k + 1 for k in looks)}):
        if stop():
            raise Interrupted
        report = runner.go_on(state, until, stop)
        state, after = report.state, tuple(map(np.asarray, report.state.arrays))
        if report.metrics is not None:
            change = _difference(program.objective, trial, until, report.metrics)
            if change:
                runner.is_evaluating = False
                differs(change)
        if until - 1 in looks:
            looks[until - 1](before, after)
        before = after


def _further_splits(trial: RecordedTrial, step: int) -> list[str]:
    """Returns the splits beside validation that were evaluated at a step."""
    metrics = trial.curve[step][0].items()
    evaluated = {name for name, value in metrics if not math.isnan(value)}
    return sorted(
        {name.partition("/")[0] for name in evaluated - {TRAIN_LOSS}} - {VALIDATION}
    )


def _refuse_divergence(trial: RecordedTrial, step: int) -> NoReturn:
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


def _difference(
    objective: Objective, trial: RecordedTrial, step: int, metrics: Mapping[str, float]
) -> str:
    """Returns how an evaluation differs from the record, or '' if it agrees."""
    recorded, is_bound = trial.curve[step]
    bounding = objective if is_bound else None
    changes = [
        f"{name} is {now!r} and was {value!r}"
        for name, value in recorded.items()
        if not _agree(name, now := metrics.get(name, math.nan), value, bounding)
    ]
    return f"at step {step}, {', '.join(changes)}" if changes else ""


def _agree(
    column: str, value: float, recorded: float, bounding: Objective | None
) -> bool:
    """Returns whether a value agrees with the record.

    `bounding`: the objective where the record is a bound; None where it is exact.
    """
    if bounding is None or column not in bounding.columns(VALIDATION):
        return value == recorded or (math.isnan(value) and math.isnan(recorded))
    metric = bounding.metric(column)
    if math.isnan(recorded) or value == recorded or not metric.can_be_bounded:
        return math.isnan(recorded) or value == recorded
    return value > recorded if metric.grows else value < recorded
