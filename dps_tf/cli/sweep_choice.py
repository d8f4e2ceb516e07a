"""The batch sizes that a sweep has chosen, by its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dps_tf.analysis.choose import next_batch_size
from dps_tf.analysis.loading import load
from dps_tf.analysis.plan import curve_and_size
from dps_tf.analysis.tables import cell_name, study_key
from dps_tf.core import Choice, StudySpecification, UserError
from dps_tf.store import DamagedError, FileSystem, SweepLayout, read_json, write_json
from dps_tf.tuning.study import is_finished


class RecordedChoice:
    """Chooses the studies that a sweep is to run, from the records of its directory.

    A batch size is chosen once those that were chosen before it on its curve are
    finished. So the order depends on the records alone, and not on how many processes
    share the sweep; those without a free cell end, as in any sweep.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        choice: Choice,
        studies: Sequence[StudySpecification],
    ) -> None:
        """Reads no file yet; `directory` is empty where nothing is to be kept."""
        self._files = files
        self._directory = directory
        self._choice = choice
        self._studies = {curve_and_size(study.cell.name): study for study in studies}
        self._records: dict[str, dict[str, Any]] = {
            curve: {"asked": choice.identity(), "cells": [], "reasons": [], "end": ""}
            for curve, _ in self._studies
        }

    def __call__(self) -> list[StudySpecification]:
        """Returns the studies chosen so far; records and prints new choices."""
        before = self._lines()
        for line in self.look():
            if line not in before:
                print(line)
        for curve, record in self._records.items():
            # Another process may have read later records, and written more.
            if self._recorded(curve) <= len(record["cells"]):
                path = SweepLayout(self._directory).choice(curve)
                write_json(self._files, path, record)
        records = self._records.values()
        return [self._study(name) for record in records for name in record["cells"]]

    def look(self) -> list[str]:
        """Returns the last choice of each curve, by the records; writes nothing.

        Raises:
            UserError: other choices were made in this directory before.
        """
        for curve, record in self._records.items():
            while not record["end"] and all(map(self._has, record["cells"][-1:])):
                self._extend(curve, record)
            self._recorded(curve)
        return self._lines()

    def may_run(self, study: StudySpecification) -> bool:
        """Returns whether a study was chosen, or may be."""
        record = self._records[curve_and_size(study.cell.name)[0]]
        return not record["end"] or study.cell.name in record["cells"]

    def _lines(self) -> list[str]:
        return [
            f"{curve}: no further batch size is chosen: {record['end']}."
            if record["end"]
            else f"{record['cells'][-1]} is chosen: {record['reasons'][-1]}."
            for curve, record in self._records.items()
            if record["cells"]
        ]

    def _study(self, name: str) -> StudySpecification:
        return self._studies[curve_and_size(name)]

    def _has(self, name: str) -> bool:
        """Returns whether a cell is finished."""
        if not self._directory:
            return False
        cell = SweepLayout(self._directory).cell(name)
        return is_finished(self._files, cell, self._study(name))

    def _extend(self, curve: str, record: dict[str, Any]) -> None:
        """Adds the next choice of a curve to its record, or why there is none."""
        done = [curve_and_size(name)[1] for name in record["cells"]]
        results, work = pd.DataFrame(), pd.DataFrame()
        if done:
            tables = load(self._directory)
            results = _of_cells(tables.results, record["cells"])
            work = _of_cells(tables.work, record["cells"])
        size, reason = next_batch_size(self._choice, done, results, work)
        if size is None:
            record["end"] = reason
            return
        record["cells"].append(self._studies[curve, size].cell.name)
        record["reasons"].append(reason)

    def _recorded(self, curve: str) -> int:
        """Returns how many choices are recorded; UserError if they are other ones."""
        if not self._directory:
            return 0
        try:
            path = SweepLayout(self._directory).choice(curve)
            recorded = read_json(self._files, path)
        except (FileNotFoundError, DamagedError):
            return 0
        pairs = zip(_listed(recorded), _listed(self._records[curve]), strict=False)
        for before, now in pairs:
            if before != now:
                raise UserError(
                    f"the choice in {self._directory} has {before}, and now there "
                    f"would be {now}: bind what was bound before, or give a new "
                    "--sweep_dir."
                )
        return len(recorded["cells"])


def _listed(record: dict[str, Any]) -> list[str]:
    """Returns what was asked, and then the cells."""
    asked = sorted(record["asked"].items())
    return [*(f"choose.{name} = {value!r}" for name, value in asked), *record["cells"]]


def _of_cells(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns the rows of a table that belong to cells of some names."""
    keys = table[study_key(table)].astype(object).to_dict("records")
    return table[[cell_name(key) in names for key in keys]]
