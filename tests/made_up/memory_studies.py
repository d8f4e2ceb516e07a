"""Studies of synthetic trials in memory, without keras-tuner: thousands in a minute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from dps_tf.core import Plan, StudyResult, StudySpecification
from dps_tf.store import (
    SCHEMAS,
    CellLayout,
    StudyHistory,
    StudyReader,
    StudyRecord,
    encode_table,
    open_study,
    study_result,
)
from dps_tf.store.study_tables import study_tables
from dps_tf.tuning.driver import StudyDriver
from tests.core import naive_race
from tests.made_up.studies import (
    ENVIRONMENT,
    RESULTS,
    TRAINING_INPUTS,
    SyntheticRunner,
    study_of,
)
from tests.store.object_store import MemoryFiles

LAYOUT = CellLayout("sweep/cells/cell")


class Watch:
    """A clock that runs as fast as a test wants: seconds per look."""

    def __init__(self, seconds_per_look: float):
        self.now = 0.0
        self.seconds_per_look = seconds_per_look

    def __call__(self) -> float:
        self.now += self.seconds_per_look
        return self.now


@dataclass
class MemoryStudy:
    """A study whose disk is memory.

    Attributes:
        study: what is asked.
        files: its disk.
        problems: what the last opening found damaged.
    """

    study: StudySpecification
    files: MemoryFiles = field(default_factory=MemoryFiles)
    problems: list[str] = field(default_factory=list)

    def open(self) -> StudyRecord:
        record = open_study(
            self.files, LAYOUT, self.study, ENVIRONMENT, TRAINING_INPUTS
        )
        self.problems = list(record.problems)
        return record

    def drive(
        self,
        runner: SyntheticRunner,
        stop: Callable[[], bool] = lambda: False,
        watch: Watch | None = None,
    ) -> Plan:
        """Opens the record and runs the study to its end, or to a stop."""
        record = self.open()
        record._clock = watch or Watch(seconds_per_look=0.0)
        record._saved_at = record._flushed_at = 0.0
        rule = self.study.rule
        points = self.study.workload.draw(self.study.cell.seed, rule.draws_limit)
        todo = StudyDriver(record, runner, points.__getitem__, stop).run()
        # As closing does for trials that a race has no use for.
        for trial in range(todo.prefix):
            if self.result().decided and record.history[trial].provenance is None:
                record.add_provenance(trial, runner.provenance(trial))
        record.snapshot(force=True)
        return todo

    def history(self) -> StudyHistory:
        """Returns what the logs say, failures that will be tried again included."""
        study = StudyReader(self.files, LAYOUT)
        history = study.history
        assert study.problems == []
        return history

    def result(self) -> StudyResult:
        return study_result(self.study, self.history())

    def frame(self, name: str) -> pd.DataFrame:
        _, frames = study_tables(
            self.study, self.history(), TRAINING_INPUTS, closed=True
        )
        return frames[name]

    def tables(self) -> dict[str, bytes]:
        """Returns the bytes that closing would write, from what is on the disk."""
        return {name: encode_table(self.frame(name), SCHEMAS[name]) for name in RESULTS}


def undisturbed(
    study: naive_race.Study, trials: Sequence[naive_race.WholeTrial]
) -> dict[str, bytes]:
    """Returns the tables of a study that one slot runs without interruption."""
    one = MemoryStudy(study_of(study))
    one.drive(SyntheticRunner(trials, study.interval))
    return one.tables()


class KeptFiles(MemoryFiles):
    """Remembers what was on the disk after each write, as a kill would leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, tuple[bytes, float]]] = []

    def write_atomic(self, path: str, data: bytes) -> None:
        super().write_atomic(path, data)
        self.history.append(dict(self.objects))

    def remove(self, path: str) -> None:
        if path in self.objects:
            super().remove(path)
            self.history.append(dict(self.objects))

    def after(self, writes: int) -> MemoryFiles:
        """Returns the disk as a kill after that many writes leaves it."""
        files = MemoryFiles()
        files.objects = copy.copy(self.history[writes])
        return files
