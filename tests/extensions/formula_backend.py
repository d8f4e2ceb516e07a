"""A backend: the loss is a formula, in the place of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dps_tf import register_backend
from dps_tf.core import (
    Backend,
    Job,
    PreparedStudy,
    Runner,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
)


def loss(rate: float, step: int) -> float:
    """Returns the loss after some steps."""
    return 1 / (1 + rate * step)


class FormulaRunner(Runner):
    """Runs one turn at a time, as it takes no time."""

    @property
    def slots(self) -> int:
        """Always one."""
        return 1

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns no seeds, as nothing is drawn."""
        return TrialProvenance(initial_seed=0, order_seed=0)

    def run(
        self, slot: int, jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> Sequence[TurnReport]:
        """Evaluates the formula at the step of each job."""
        return [self._turn(job) for job in jobs]

    def _turn(self, job: Job) -> TurnReport:
        made = 0 if job.state is None else job.state.step
        return TurnReport(
            job.trial,
            TrialState(job.until, ()),
            job.until,
            {"validation/loss": loss(job.point["rate"], job.until)},
            steps_executed=job.until - made,
        )


class FormulaBackend(Backend):
    """The backend of studies on the data set `formula`."""

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        """Returns the runner; the formula stands for the content of the data."""
        inputs = {
            "training_examples": 1_000_000,
            "validation_examples": 0,
            "content_hash": "1 / (1 + rate step)",
        }
        study = study.settled_by({"lanes": 1})
        return PreparedStudy(FormulaRunner(), {"formula": "1"}, inputs, study)


register_backend("formula", lambda options, files: FormulaBackend())
