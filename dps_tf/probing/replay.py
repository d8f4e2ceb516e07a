"""Trains a recorded trial again, to look at what its record does not hold.

A trial is a function of its seeds and point, so training it again gives the same curve,
bit for bit on a CPU. `replay` hands out the weights before and after single updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dps_tf.core import (
    TRAIN_LOSS,
    VALIDATION,
    Job,
    StudySpecification,
    TrialState,
    TurnReport,
    UserError,
)
from dps_tf.data import Dataset
from dps_tf.objectives import Objective
from dps_tf.sparsity import MaskSet
from dps_tf.store import (
    CURVES,
    TRIALS,
    CellLayout,
    Closed,
    FileSystem,
    SweepLayout,
    SweepReader,
    TableSchema,
)
from dps_tf.training import Program, TrainingRunner
from dps_tf.tuning import build
from dps_tf.tuning.interruption import Interrupted

Weights = tuple[np.ndarray, ...]
Look = Callable[[Weights, Weights], None]
"""Is given the model's weights before and after an update."""


@dataclass(frozen=True)
class RecordedTrial:
    """One trial of a closed study."""

    number: int  # in the study
    initial_seed: int  # of its initial point
    order_seed: int  # of its order of examples
    point: Mapping[str, float]  # its metaparameters
    # (metric columns, whether they are bounds) by evaluated step.
    curve: Mapping[int, tuple[Mapping[str, float], bool]]
    steps_to_result: int | None = None  # first evaluated step at which it met the goal

    def further_splits(self, step: int) -> list[str]:
        """Returns the splits beside validation that were evaluated at a step."""
        metrics = self.curve[step][0].items()
        known = {name for name, value in metrics if not math.isnan(value)}
        splits = {name.partition("/")[0] for name in known - {TRAIN_LOSS}}
        return sorted(splits - {VALIDATION})

    @property
    def end(self) -> int:
        """The step to which it is trained again: K of a trial that met the goal."""
        return self.steps_to_result or max(self.curve)


@dataclass(frozen=True)
class RecordedStudy:
    """What the record of a closed study holds for training its trials again."""

    name: str  # of its cell
    paths: CellLayout
    specification: StudySpecification
    training_inputs: Mapping[str, Any]  # sizes and content of its data
    environments: Sequence[Mapping[str, Any]]  # builds and instruction sets
    closed: Closed  # its tables `trials` and `curves`

    def winner(self) -> int | None:
        """Returns the trial that met the goal first, or None if nobody did."""
        best = self.closed.best()
        return None if best is None else int(best["trial"])

    def trial(self, number: int) -> RecordedTrial:
        """Returns a trial.

        Raises:
            UserError: there is none of that number, or it was never evaluated.
        """
        rows = self.closed.frame("trials").to_dict("records")
        row = next((row for row in rows if row["trial"] == number), None)
        if row is None:
            raise UserError(
                f"{self.name} has no trial {number}: it has {len(rows)}, from 0."
            )
        curve = self._curve(number)
        if not curve:
            raise UserError(
                f"trial {number} of {self.name} is {row['outcome']} and was never "
                "evaluated, so there is no curve to repeat: choose another trial."
            )
        reached = row["outcome"] == "complete"
        return RecordedTrial(
            number=number,
            initial_seed=int(row["initial_seed"]),
            order_seed=int(row["order_seed"]),
            point=_numbers(row, TRIALS, missing=False),
            curve=curve,
            steps_to_result=int(row["steps_to_result"]) if reached else None,
        )

    def _curve(self, number: int) -> dict[int, tuple[dict[str, float], bool]]:
        curves = self.closed.frame("curves")
        return {
            int(row["step"]): (_numbers(row, CURVES), bool(row["is_bound"]))
            for row in curves[curves["trial"] == number].to_dict("records")
        }

    def dataset(self, data_dir: str | None) -> Dataset:
        """Returns the data it was trained on.

        Raises:
            UserError: they are not there, or others are.
        """
        found = build.load_dataset(self.specification.workload, data_dir)
        if found.content_hash != self.training_inputs["content_hash"]:
            raise UserError(
                f"the data set in --data_dir={data_dir} is not the one that "
                f"{self.name} was trained on: name the folder of that run."
            )
        return found


def _numbers(
    row: Mapping[Any, Any], schema: TableSchema, missing: bool = True
) -> dict[str, float]:
    """Returns metaparameters, or metrics, of a row; those that are NaN if `missing`."""
    known = dict(schema.columns)
    found = {str(n): float(v) for n, v in row.items() if n not in known}
    return {n: v for n, v in found.items() if missing or not math.isnan(v)}


def read_recorded(
    files: FileSystem, layout: SweepLayout, cell: str
) -> RecordedStudy | None:
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
    return RecordedStudy(
        name=cell,
        paths=study.layout,
        specification=study.trained(),
        training_inputs=study.training_inputs,
        environments=study.environments,
        closed=closed,
    )


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


class WatchedRunner(TrainingRunner):
    """Trains a recorded trial again, by its seeds and masks, and can stop at any step.

    Evaluations are those of the record, of the same splits.

    Attributes:
        is_evaluating: whether they are made.
    """

    def __init__(
        self,
        program: Program,
        trial: RecordedTrial,
        masks: Sequence[np.ndarray] | None,
    ):
        """`masks`: one per trainable variable; None for a dense network."""
        super().__init__(
            (program,),
            study_seed=0,
            prune=None if masks is None else lambda *_: MaskSet(list(masks)),
            splits_at=lambda step, *_: trial.further_splits(step),
        )
        self._trial = trial
        self.is_evaluating = True

    def initial_seed(self, trial: int) -> int:
        """Returns the seed of the record."""
        return self._trial.initial_seed

    def order_seed(self, trial: int) -> int:
        """Returns the seed of the record."""
        return self._trial.order_seed

    def _is_evaluated(self, job: Job, step: int) -> bool:
        is_due = step == job.until and step in self._trial.curve
        return is_due and self.is_evaluating

    def go_on(
        self, state: TrialState | None, until: int, stop: Callable[[], bool]
    ) -> TurnReport:
        """Returns the report of the turn that reaches a step.

        Raises:
            Interrupted: a stop was asked for.
            UserError: the trial diverged.
        """
        trial = self._trial
        while True:
            report = self.run(0, Job(trial.number, trial.point, state, until), stop)
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
    """Trains a trial again to its end, and past it as far as there are looks.

    Args:
        program: of the trial's network, optimizer and batch size; evaluates exactly.
        trial: its record.
        masks: one per trainable variable; None for a dense network.
        looks: who is shown the update from step k to k + 1, by k.
        differs: is called with the first evaluation that differs from the record, in
            words; it may raise.
        stop: whether to leave.

    Raises:
        Interrupted: a stop was asked for.
        UserError: the trial diverged.
    """
    runner = WatchedRunner(program, trial, masks)
    end = max([trial.end, *(k + 1 for k in looks)])
    evaluations = {step for step in trial.curve if step <= end}
    weights = len(program.model.weights)
    state: TrialState | None = None
    before: Weights = ()
    for until in sorted({*evaluations, *looks, *(k + 1 for k in looks)}):
        if stop():
            raise Interrupted
        report = runner.go_on(state, until, stop)
        state, after = report.state, report.state.arrays[:weights]
        if report.metrics is not None:
            change = _difference(program.objective, trial, until, report.metrics)
            if change:
                runner.is_evaluating = False
                differs(change)
        if until - 1 in looks:
            looks[until - 1](before, after)
        before = after


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
    objective: Objective, trial: RecordedTrial, step: int, found: Mapping[str, float]
) -> str:
    """Returns how an evaluation differs from the record, '' where it does not."""
    recorded, is_bound = trial.curve[step]
    bounding = objective if is_bound else None
    changes = [
        f"{name} is {now!r} and was {value!r}"
        for name, value in recorded.items()
        if not _agree(name, now := found.get(name, math.nan), value, bounding)
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
