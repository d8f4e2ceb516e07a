"""A backend: the loss is a formula, in the place of training."""

from __future__ import annotations

from dps_tf import register_backend
from dps_tf.core import (
    Backend,
    PreparedStudy,
    Runner,
    TrialProvenance,
    TrialState,
    TurnReport,
)


class FormulaRunner(Runner):
    slots = 1

    def provenance(self, trial):
        return TrialProvenance(initial_seed=0, order_seed=0)

    def run(self, slot, jobs, stop):
        return [turn(job) for job in jobs]


def turn(job):
    """Returns the loss 1 / (1 + rate step) at the step of a job, and a state there."""
    made = 0 if job.state is None else job.state.step
    return TurnReport(
        job.trial,
        TrialState(job.until, ()),
        job.until,
        {"validation/loss": 1 / (1 + job.point["rate"] * job.until)},
        steps_executed=job.until - made,
    )


class FormulaBackend(Backend):
    def prepare(self, study, show=None):
        inputs = {
            "training_examples": 1_000_000,
            "validation_examples": 0,
            "content_hash": "1 / (1 + rate step)",
        }
        return PreparedStudy(FormulaRunner(), {"formula": "1"}, inputs, study)


register_backend("formula", lambda options, files: FormulaBackend())
