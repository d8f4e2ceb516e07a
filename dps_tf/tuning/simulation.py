"""Simulated workloads have expected losses in closed form and are not trained.

They go through the same points, races, records and reports as trained ones, in seconds,
and their true K* is known. So the whole pipeline can be tried, taught and tested. A gin
file asks for one with `workload.dataset = 'simulation'`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dps_tf.core import (
    Argument,
    Backend,
    Job,
    NoisyQuadratic,
    PreparedStudy,
    Reads,
    Runner,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
    UserError,
    Workload,
    check_known,
    derive_seed,
    is_number,
)

DATASET = "simulation"
"""The data set of simulated workloads: no examples, fresh noise at every step."""
METRIC = "validation/loss"
TRAINING_EXAMPLES = 2**40
"""Number of training examples in the records: larger than any batch."""

_MODELS = {"noisy_quadratic": NoisyQuadratic}
# Momentum has the default that it has in training; `momentum` of `ema` is its decay.
_READS: Mapping[str, Reads] = {
    "sgd": {"learning_rate": Argument()},
    "momentum": {"learning_rate": Argument(), "momentum": Argument(0.9)},
    "ema": {"learning_rate": Argument(), "momentum": Argument()},
}
_EVALUATIONS_AHEAD = 64
"""Number of losses computed in one call; a single one would cost as much."""


def model_of(workload: Workload) -> NoisyQuadratic:
    """Returns the model of a simulated workload; UserError if its names are unknown."""
    check_known("network", workload.network, _MODELS)
    model = _MODELS[workload.network]
    parameters = inspect.signature(model).parameters
    for name, value in workload.network_arguments.items():
        check_known("argument of the network", name, parameters)
        _check_number(name, value, whole=isinstance(parameters[name].default, int))
    if workload.dataset_arguments:
        raise UserError(
            f"dataset_arguments is {dict(workload.dataset_arguments)}; a simulation "
            "takes none: give network_arguments."
        )
    return model(**workload.network_arguments)


def _check_number(name: str, value: object, *, whole: bool) -> None:
    if not is_number(value) or (whole and not isinstance(value, int)):
        raise UserError(
            f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number."
        )


class SimulatedBackend(Backend):
    """The backend of simulated studies, which have no data."""

    def check(self, study: StudySpecification) -> None:
        """Raises UserError unless a simulated study can be run."""
        workload = study.workload
        model_of(workload)
        check_known("optimizer", workload.optimizer, _READS)
        workload.check_metaparameters(_READS[workload.optimizer])
        for name, value, required in (
            ("goal.metric", study.goal.metric, METRIC),
            ("learning_rate_schedule", workload.learning_rate_schedule, "constant"),
            ("sweep.evaluation_mode", study.evaluation, "exact"),
            ("sparsity", study.cell.sparsity, 0.0),
        ):
            if value != required:
                raise UserError(
                    f"{name} is {value!r}; workload {workload.name} is simulated, and "
                    f"there it can be {required!r} only."
                )

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        """Returns the runner of a simulated study, which has one slot."""
        del show
        study = study.settled_by({"lanes": 1, "xla": False, "deterministic": False})
        workload = study.workload
        network = [workload.network, dict(workload.network_arguments)]
        text = json.dumps(network, sort_keys=True)
        return PreparedStudy(
            runner=SimulatedRunner(study),
            environment={"numpy": np.__version__, "machine": platform.machine()},
            training_inputs={
                "training_examples": TRAINING_EXAMPLES,
                "validation_examples": 0,
                "content_hash": hashlib.sha256(text.encode()).hexdigest(),
            },
            study=study,
        )


class SimulatedRunner(Runner):
    """Runs turns of simulated trials one at a time, as they take no time.

    A trial diverges at the first step at which its expected loss is beyond float64.
    """

    def __init__(self, specification: StudySpecification):
        self._specification = specification
        self._model = model_of(specification.workload)
        self._curves: dict[int, dict[int, float]] = {}

    @property
    def slots(self) -> int:
        """Always one."""
        return 1

    @property
    def lanes(self) -> int:
        """The study's own number: its trials are independent in any number of lanes."""
        return self._specification.lanes

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds that a trained trial would have; nothing is drawn."""
        seed = self._specification.cell.seed
        return TrialProvenance(
            initial_seed=derive_seed(seed, trial, "initial point"),
            order_seed=derive_seed(seed, trial, "order"),
        )

    def run(
        self, slot: int, jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> Sequence[TurnReport]:
        """Simulates trials up to their jobs' evaluation, or up to their divergence."""
        del slot, stop
        return [self._turn(job) for job in jobs]

    def _turn(self, job: Job) -> TurnReport:
        begun = time.monotonic()
        first = 0 if job.state is None else job.state.step
        loss = self._loss_at(job)
        diverged = None
        if not math.isfinite(loss):
            diverged = self._first_infinite(job.point, first, job.until)
        step = diverged or job.until
        return TurnReport(
            trial=job.trial,
            state=TrialState(step, ()),
            step=step,
            metrics={METRIC: loss} if diverged is None else None,
            diverged_step=diverged,
            steps_executed=step - first,
            seconds=time.monotonic() - begun,
        )

    def _loss_at(self, job: Job) -> float:
        curve = self._curves.get(job.trial, {})
        if job.until not in curve:
            interval = self._specification.evaluations.interval
            ahead = [job.until + i * interval for i in range(_EVALUATIONS_AHEAD)]
            losses = self._losses(job.point, ahead)
            curve = dict(zip(ahead, losses, strict=True))
            self._curves[job.trial] = curve
        return curve[job.until]

    def _losses(self, point: Mapping[str, float], steps: list[int]) -> list[float]:
        optimizer = self._specification.workload.optimizer
        momentum = point.get("momentum", _READS["momentum"]["momentum"].default)
        batch_size = self._specification.cell.batch_size
        losses = self._model.loss(
            optimizer, point["learning_rate"], momentum or 0.0, batch_size, steps
        )
        return [float(loss) for loss in losses]

    def _first_infinite(
        self, point: Mapping[str, float], finite: int, infinite: int
    ) -> int:
        """Returns the first step in (finite, infinite] whose loss is not finite."""
        while infinite - finite > 1:
            middle = (finite + infinite) // 2
            if math.isfinite(self._losses(point, [middle])[0]):
                finite = middle
            else:
                infinite = middle
        return infinite
