"""One slot of a cluster, in the process that trains there.

It holds the states of the trials that it runs: they travel only when a trial moves to
another slot, or is saved.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dps_tf.core.execution import (
    Backend,
    Job,
    PreparedStudy,
    TrialProvenance,
    TrialState,
    TurnReport,
)
from dps_tf.core.study import StudySpecification
from dps_tf.tuning.simulation import SimulatedBackend, is_simulated

_MAX_PROGRAMS = 2
"""Studies whose compiled programs a slot keeps; one that comes back later is traced
again."""


class StateMissing(RuntimeError):
    """A slot does not hold the state that it was asked to go on from."""


@dataclass
class _Study:
    """What a slot knows of a study: states by trial, and the program while kept."""

    specification: StudySpecification
    states: dict[int, TrialState] = field(default_factory=dict)
    prepared: PreparedStudy | None = None


class RemoteSlot:
    """Runs turns of trials in a process of its own, one at a time.

    Args:
        options: of the run, as the values of `Options`.
    """

    def __init__(self, options: Mapping[str, Any]):
        for module in options["imports"]:
            importlib.import_module(module)
        self._options = options
        self._trained: Backend | None = None
        self._stop = threading.Event()
        self._studies: OrderedDict[str, _Study] = OrderedDict()

    def open(self, specification: Mapping[str, Any]) -> tuple[Any, Any]:
        """Makes a study known; returns its environment and its training inputs.

        Raises:
            UserError: its data are not on this machine, or do not fit.
        """
        study = StudySpecification.from_json(specification)
        self._studies.setdefault(study.cell.name, _Study(study))
        prepared = self._prepared(study.cell.name)
        return prepared.environment, prepared.training_inputs

    def run(self, cell: str, job: Job, state: TrialState | None) -> TurnReport:
        """Runs a turn; the state stays here, and the report has its step only.

        Args:
            cell: name of a study that was opened.
            job: its state has a step and no arrays, or is None before the first step.
            state: where the trial stands, if this slot does not hold it.
        """
        held = self._studies[cell].states
        if state is None and job.state is not None:
            state = held.get(job.trial)
            if state is None or state.step != job.state.step:
                raise StateMissing(f"trial {job.trial} at step {job.state.step}")
        runner = self._prepared(cell).runner
        report = runner.run(0, replace(job, state=state), self._stop.is_set)
        held[job.trial] = report.state
        return replace(report, state=TrialState(report.step, ()))

    def give(self, cell: str, trial: int, *, keep: bool) -> TrialState | None:
        """Returns the state of a trial, and forgets it unless it is to be kept.

        Called while another trial runs here. None if the state is not held.
        """
        study = self._studies.get(cell)
        if study is None:
            return None
        return study.states.get(trial) if keep else study.states.pop(trial, None)

    def provenance(self, cell: str, trial: int) -> TrialProvenance:
        """Returns the seeds and the pruning of a trial."""
        return self._prepared(cell).runner.provenance(trial)

    def close(self, cell: str) -> None:
        """Forgets a study."""
        self._studies.pop(cell, None)

    def stop(self) -> None:
        """Ends the turn that runs, and every later one, after its slice."""
        self._stop.set()

    def _prepared(self, cell: str) -> PreparedStudy:
        """Returns a study with its program, which others may have to make way for."""
        study = self._studies[cell]
        self._studies.move_to_end(cell)
        if study.prepared is None:
            kept = [s for s in self._studies.values() if s.prepared is not None]
            for other in kept[: len(kept) + 1 - _MAX_PROGRAMS]:
                other.prepared = None
            specification = study.specification
            study.prepared = self._backend(specification).prepare(specification)
        return study.prepared

    def _backend(self, study: StudySpecification) -> Backend:
        if is_simulated(study.workload):
            return SimulatedBackend()
        if self._trained is None:
            # Loads TensorFlow, which a simulation does without.
            from dps_tf.training.gfile_files import files_for
            from dps_tf.tuning.backends import TrainedBackend
            from dps_tf.tuning.options import Options
            from dps_tf.tuning.resources import configure_threads

            configure_threads()
            options = Options(**self._options)
            files = files_for(options.sweep_dir)
            self._trained = TrainedBackend(options, files, say=lambda text: None)
        return self._trained
