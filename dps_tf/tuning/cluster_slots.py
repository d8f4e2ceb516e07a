"""Slots of a Ray cluster: the process of each, and the pool that studies lease from.

A slot holds the states of the trials that it runs: a state travels only when its trial
moves to another slot, or is saved. Studies lease slots from a pool, the earlier ones
first. A study says how many trials it could run now; slots that it does not need go to
later studies, and come back when it needs them again.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dps_tf.core import (
    Job,
    PreparedStudy,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
)
from dps_tf.store import files_for
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.options import Options

_MAX_PROGRAMS = 2
"""Number of studies whose compiled programs a slot keeps.

The program of any other study is traced again when the study comes back.
"""


class StateMissing(RuntimeError):
    """A slot was asked to continue from a state that it does not hold."""


@dataclass
class _Study:
    """A study in a slot: the states of its trials, and its program or None."""

    specification: StudySpecification
    states: dict[int, TrialState] = field(default_factory=dict)
    prepared: PreparedStudy | None = None


class RemoteSlot:
    """Runs turns of trials in a process of its own, one at a time."""

    def __init__(self, options: Mapping[str, Any]):
        for module in options["imports"]:
            importlib.import_module(module)
        own = Options(**options)
        self._backends = Backends(own, files_for(own.sweep_dir))
        self._stop = threading.Event()
        self._studies: OrderedDict[str, _Study] = OrderedDict()

    def open(self, specification: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Begins a study in this slot.

        Returns its environment, its training inputs, and the specification with all
        that it left open settled.
        """
        study = StudySpecification.from_json(specification)
        self._studies.setdefault(study.cell.name, _Study(study))
        prepared = self._prepared(study.cell.name)
        settled = prepared.study.to_json()
        return prepared.environment, prepared.training_inputs, settled

    def run(
        self, cell: str, jobs: Sequence[Job], *states: TrialState | None
    ) -> list[TurnReport]:
        """Runs a turn, and returns its reports without the arrays of the states.

        The arrays stay in this slot. The states of the jobs have no arrays either: a
        trial goes on from its entry in `states`, or from the state that this slot
        holds.
        """
        held = self._studies[cell].states
        whole = []
        for job, state in zip(jobs, states, strict=True):
            if state is None and job.state is not None:
                state = held.get(job.trial)
                if state is None or state.step != job.state.step:
                    raise StateMissing(f"trial {job.trial} at step {job.state.step}")
            whole.append(replace(job, state=state))
        reports = self._prepared(cell).runner.run(0, whole, self._stop.is_set)
        held |= {report.trial: report.state for report in reports}
        return [replace(r, state=TrialState(r.step, ())) for r in reports]

    def give(self, cell: str, trial: int, *, keep: bool) -> TrialState | None:
        """Returns the state of a trial, None if this slot does not hold it.

        With `keep` this slot goes on holding it. May be called during a turn.
        """
        study = self._studies.get(cell)
        if study is None:
            return None
        state = study.states.get(trial) if keep else study.states.pop(trial, None)
        if state is None:
            return None
        # The driver, which may get them, has no TensorFlow.
        return replace(state, arrays=tuple(state.arrays))

    def provenance(self, cell: str, trial: int) -> TrialProvenance:
        """Returns the seeds and the pruning of a trial."""
        return self._prepared(cell).runner.provenance(trial)

    def close(self, cell: str) -> None:
        """Drops a study and the states of its trials."""
        self._studies.pop(cell, None)

    def stop(self) -> None:
        """Ends the running turn and every later one at the end of its slice."""
        self._stop.set()

    def _prepared(self, cell: str) -> PreparedStudy:
        """Returns a study with its program; drops the oldest other programs."""
        study = self._studies[cell]
        self._studies.move_to_end(cell)
        if study.prepared is None:
            kept = [s for s in self._studies.values() if s.prepared is not None]
            for other in kept[: len(kept) + 1 - _MAX_PROGRAMS]:
                other.prepared = None
            specification = study.specification
            study.prepared = self._backends(specification).prepare(specification)
            study.specification = study.prepared.study
        return study.prepared


class SlotPool:
    """The slots, by number, that studies lease; any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[int] = []
        self._holder: dict[int, str] = {}
        self._wanted: dict[str, int] = {}

    def add(self, slot: int) -> None:
        """Adds a slot that studies can lease from now on."""
        with self._lock:
            self._slots.append(slot)

    def remove(self, slot: int) -> None:
        """Removes a slot that is lost or leaving, also from the study that has it."""
        with self._lock:
            if slot in self._slots:
                self._slots.remove(slot)
            self._holder.pop(slot, None)

    def enter(self, study: str, wanted: int) -> None:
        """Lets a study lease slots, after the studies that came before it."""
        with self._lock:
            self._wanted[study] = wanted

    def leave(self, study: str) -> None:
        """Takes all slots back from a study, which leases no further ones."""
        with self._lock:
            self._wanted.pop(study, None)
            self._holder = {
                s: name for s, name in self._holder.items() if name != study
            }

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def spare(self) -> int:
        """Number of slots that no study wants now."""
        with self._lock:
            return max(0, len(self._slots) - sum(self._wanted.values()))

    def lease(self, study: str, busy: Collection[int], wanted: int) -> list[int]:
        """Returns the idle slots of a study, after leasing or returning some.

        Args:
            study: name of the study.
            busy: the slots in which its trials run; they are never taken away.
            wanted: how many groups of trials it could run now, with the running ones.
        """
        with self._lock:
            self._wanted[study] = wanted
            granted = self._granted(study)
            leased = [slot for slot in self._slots if self._holder.get(slot) == study]
            idle = [slot for slot in leased if slot not in busy]
            while idle and len(leased) > granted:
                returned = idle.pop()
                leased.remove(returned)
                del self._holder[returned]
            for slot in self._slots:
                if len(leased) >= granted:
                    break
                if slot not in self._holder:
                    self._holder[slot] = study
                    leased.append(slot)
                    idle.append(slot)
            return idle

    def _granted(self, study: str) -> int:
        """Returns how many slots a study may have after the studies before it."""
        left = len(self._slots)
        for name, wanted in self._wanted.items():
            if name == study:
                return min(wanted, left)
            left -= min(wanted, left)
        return 0
