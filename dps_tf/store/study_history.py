"""The curves and ends of a study's trials, as its logs record them.

The logs are the truth. The order of events of several writers does not matter. A
trial's evaluations are a function of the trial and the step, so two workers that report
the same evaluation must agree.
"""

from __future__ import annotations

import functools
import math
import platform
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dps_tf.core import (
    VALIDATION,
    Goal,
    GoalWatch,
    Nearest,
    StudySpecification,
    Trajectory,
    TrialProvenance,
    TurnReport,
    is_further,
    nearest_of,
)
from dps_tf.store.log import Event
from dps_tf.store.records import FORMAT

_PACKAGES = (
    "dps_tf",
    "tensorflow",
    "tf-keras",
    "keras-tuner",
    "tensorflow-model-optimization",
    "tensorflow-datasets",
    "gin-config",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
)


class Irreproducible(RuntimeError):
    """A repeated evaluation has other values: a defect, or other rounding."""


@dataclass
class Work:
    """The work that was executed for a trial, repeats included.

    `steps` counts updates; `seconds` is the wall time of the trial's turns, `data_wait`
    the part of it for which trials waited for streamed data.
    """

    steps: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    data_wait: float = 0.0


@dataclass
class TrialHistory:
    """Everything that the logs record of one trial.

    Attributes:
        evaluations: metric columns by step.
        bounds: steps whose validation metrics are bounds.
        diverged_step: see `Trajectory`.
        failures: texts of errors so far, in order of time.
        failed: text of the error that stands, if any.
        provenance: seeds and pruning, once the trial has started.
        work: steps, evaluations and seconds.
        point: metaparameters, where an oracle chose them while the study ran.
    """

    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    bounds: set[int] = field(default_factory=set)
    diverged_step: int | None = None
    failures: list[str] = field(default_factory=list)
    failed: str | None = None
    provenance: TrialProvenance | None = None
    work: Work = field(default_factory=Work)
    point: dict[str, float] | None = None
    _contiguous: dict[int, int] = field(default_factory=dict)
    _watches: dict[tuple[Goal, int], GoalWatch] = field(default_factory=dict)

    def contiguous_step(self, interval: int) -> int:
        """Returns the step up to which the logs lack no evaluation."""
        step = self._contiguous.get(interval, 0)
        while step + interval in self.evaluations:
            step += interval
        self._contiguous[interval] = step
        return step

    def _watched(self, goal: Goal, interval: int, last: int) -> GoalWatch:
        """Returns how near the trial came to a goal up to the step `last`."""
        # Called after every turn: earlier evaluations are not compared again.
        watch = self._watches.get((goal, interval))
        if watch is None:
            watch = self._watches[goal, interval] = GoalWatch(goal)
        for step in range(watch.last + interval, last + 1, interval):
            is_bound = step in self.bounds
            value = math.nan if is_bound else self.evaluations[step][goal.metric]
            watch.add(step, value)
        return watch

    def nearest(self, goal: Goal, interval: int, trial: int) -> Nearest | None:
        """Returns the evaluation nearest to a goal, up to the one that met the goal.

        `trial` is the number of this trial.
        """
        last = self.contiguous_step(interval)
        nearest = self._watched(goal, interval, last).nearest
        return None if nearest is None else replace(nearest, trial=trial)

    def trajectory(self, goal: Goal, interval: int) -> Trajectory:
        """Returns the trajectory by which a race is decided.

        Evaluations after a gap, which damage to a log can leave, count once the trial
        has been trained up to them again.
        """
        last = self.contiguous_step(interval)
        finish = self._watched(goal, interval, last).finish
        diverged = self.diverged_step
        if diverged is not None and last < (diverged - 1) // interval * interval:
            diverged = None
        return Trajectory(last, finish, diverged, self.failed)


class StudyHistory:
    """Everything that the logs record of the trials of a study.

    Attributes:
        trials: history of each trial, by its number.
        slots: number of trials side by side in the latest session.
        fingerprints: fingerprints of the specifications of all sessions.
        settled: fields that the latest session had settled; see `core.study.OPEN`.
        version: version of the package in the latest session, empty before any.
    """

    def __init__(self) -> None:
        self.trials: defaultdict[int, TrialHistory] = defaultdict(TrialHistory)
        self.slots = 1
        self.fingerprints: set[str] = set()
        self.settled: dict[str, Any] = {}
        self.version = ""

    def __getitem__(self, trial: int) -> TrialHistory:
        return self.trials[trial]

    def trajectories(self, goal: Goal, interval: int) -> list[Trajectory]:
        """Returns the trajectories of trials 0, 1, ... up to the last in the logs."""
        unknown = TrialHistory()
        return [
            self.trials.get(number, unknown).trajectory(goal, interval)
            for number in range(1 + max(self.trials, default=-1))
        ]

    def nearest(self, goal: Goal, interval: int) -> Nearest | None:
        """Returns the evaluation of all trials that came nearest to a goal."""
        return nearest_of(
            goal,
            (
                trial.nearest(goal, interval, number)
                for number, trial in self.trials.items()
            ),
        )

    def add(self, event: Event) -> None:
        """Adds what one event records; ignores events of an unknown kind."""
        kind = event.get("kind")
        if kind == "evaluation":
            self._add_evaluation(event)
        elif kind == "divergence":
            self[event["trial"]].diverged_step = event["step"]
        elif kind == "failure":
            trial = self[event["trial"]]
            trial.failures.append(event["error"])
            trial.failed = event["error"]
        elif kind == "start":
            fields = dict(event["facts"])
            fields["layers"] = tuple(fields["layers"])
            self[event["trial"]].provenance = TrialProvenance(**fields)
        elif kind == "point":
            self[event["trial"]].point = event["point"]
        elif kind == "session":
            self.slots = event["slots"]
            self.fingerprints.add(event["fingerprint"])
            self.settled = event["settled"]
            self.version = event["versions"].get("dps_tf", "")
        if kind in ("evaluation", "divergence", "turn"):
            self._add_work(event)

    @property
    def data_wait(self) -> float:
        """Fraction in [0, 1] of the time of turns that trials waited for data."""
        works = [trial.work for trial in self.trials.values()]
        seconds = sum(work.seconds for work in works)
        return sum(work.data_wait for work in works) / seconds if seconds else 0.0

    def _add_evaluation(self, event: Event) -> None:
        trial, step = self[event["trial"]], event["step"]
        metrics = dict(event["metrics"])
        before = trial.evaluations.setdefault(step, metrics)
        if event["is_bound"] and step in trial.bounds:
            # Which part of the split an evaluation looked at is no result: versions of
            # the package differ in it.
            validation = {name for name in before if name.startswith(f"{VALIDATION}/")}
            metrics |= {name: before[name] for name in validation}
        if before is not metrics and not _agree(before, metrics):
            raise Irreproducible(
                f"Trial {event['trial']} gave {metrics} at step {step}, and {before} "
                "when it was trained before: this machine or TensorFlow build rounds "
                "otherwise; continue the study where it was begun."
            )
        trial.evaluations[step] = {**before, **metrics}
        if event["is_bound"]:
            trial.bounds.add(step)
        trial.failed = None

    def _add_work(self, event: Event) -> None:
        work = self[event["trial"]].work
        work.steps += event["steps_executed"]
        work.seconds += event["seconds"]
        work.data_wait += event.get("data_wait", 0.0)
        work.evaluations += event["kind"] == "evaluation"


def _agree(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    """Returns whether two reports of one evaluation have the same values."""
    # One report alone may have further splits: these belong to the end of a budget,
    # which may have grown.
    always = {name for name in {*a, *b} if not is_further(name)}
    return always <= a.keys() & b.keys() and all(
        a[name] == b[name] or (a[name] != a[name] and b[name] != b[name])
        for name in a.keys() & b.keys()
    )


def report_event(report: TurnReport) -> Event:
    """Returns the event that records a turn."""
    event: Event = {
        "trial": report.trial,
        "steps_executed": report.steps_executed,
        "seconds": round(report.seconds, 6),
    }
    if report.data_wait:
        event["data_wait"] = round(report.data_wait, 6)
    if report.diverged_step is not None:
        return event | {"kind": "divergence", "step": report.diverged_step}
    if report.metrics is None:
        return event | {"kind": "turn", "step": report.step}
    return event | {
        "kind": "evaluation",
        "step": report.step,
        "metrics": dict(report.metrics),
        "is_bound": report.is_bound,
    }


def start_event(trial: int, provenance: TrialProvenance) -> Event:
    """Returns the event that records a trial's seeds and pruning."""
    return {"kind": "start", "trial": trial, "facts": asdict(provenance)}


def session_event(slots: int, study: StudySpecification) -> Event:
    """Returns the event that begins a session."""
    return {
        "kind": "session",
        "format": FORMAT,
        # For estimates of the time left.
        "slots": slots,
        # Match the log to its study, and continue it, where study.json is lost.
        "fingerprint": study.fingerprint,
        "settled": study.settled,
        # For people who compare runs later.
        "versions": _package_versions(),
    }


def failure_event(trial: int, error: str) -> Event:
    """Returns the event that records the error of a trial."""
    return {"kind": "failure", "trial": trial, "error": error}


@functools.cache
def _package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
