"""A closed study as its record tells it: what one needs to train a trial again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dps_tf.core.errors import UserError
from dps_tf.core.study import StudySpecification
from dps_tf.data.dataset import Dataset
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.schemas import CURVES, TRIALS, TableSchema
from dps_tf.store.study_record import environment_differences
from dps_tf.store.study_tables import Closed
from dps_tf.store.sweep_reader import SweepReader
from dps_tf.tuning import build


@dataclass(frozen=True)
class RecordedTrial:
    """One trial of a closed study.

    Attributes:
        number: in the study.
        initial_seed: of its initial point.
        order_seed: of its order of examples.
        point: its metaparameters.
        curve: (metric columns, whether they are bounds) by evaluated step.
        steps_to_result: first evaluated step at which it met the goal, or None.
    """

    number: int
    initial_seed: int
    order_seed: int
    point: Mapping[str, float]
    curve: Mapping[int, tuple[Mapping[str, float], bool]]
    steps_to_result: int | None = None

    @property
    def end(self) -> int:
        """The step to which it is trained again: K of a trial that met the goal."""
        return self.steps_to_result or max(self.curve)


@dataclass(frozen=True)
class RecordedStudy:
    """A closed study.

    Attributes:
        name: of its cell.
        paths: of its cell.
        specification: what was asked.
        training_inputs: sizes and content of the data it was trained on.
        environments: builds and instruction sets it was trained with.
        closed: its tables `trials` and `curves`.
    """

    name: str
    paths: CellLayout
    specification: StudySpecification
    training_inputs: Mapping[str, Any]
    environments: Sequence[Mapping[str, Any]]
    closed: Closed

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

    def differences(self, environment: Mapping[str, Any]) -> list[str]:
        """Returns how an environment differs from the latest one of the record."""
        return environment_differences(self.environments, environment)


def _numbers(
    row: Mapping[Any, Any], schema: TableSchema, missing: bool = True
) -> dict[str, float]:
    """Returns a row's further columns: metaparameters, or metrics.

    Args:
        row: of a table.
        schema: of the table.
        missing: whether NaN stands for a value, or for none.
    """
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
