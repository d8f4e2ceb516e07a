"""Tiny sweeps, trained as the command does."""

from __future__ import annotations

from dps_tf.core import SweepSpecification
from dps_tf.store import LocalFiles, SweepLayout
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.sweep import Sweep, SweepOutcome
from dps_tf.tuning.trained_backend import TrainedBackend
from dps_tf.workloads.reading import read_configuration

BINDINGS = (
    "workload.name = 'blobs'",
    "workload.dataset = 'synthetic'",
    "workload.dataset_arguments = {'examples': 96, 'classes': 3}",
    "workload.network = 'mlp'",
    "workload.network_arguments = {'widths': (6,)}",
    "workload.optimizer = 'nesterov'",
    "workload.space = {'learning_rate': ('log', 1e-3, 1.0)}",
    "workload.fixed = {'label_smoothing': 0.05}",
    "workload.points = 3",
    "workload.step_budget = 40",
    "workload.evaluation = @evaluation()",
    "workload.goal = @goal()",
    "evaluation.steps = 5",
    "goal.threshold = 0.3",
    "sweep.workloads = @workload()",
    "sweep.batch_sizes = (8,)",
    "sweep.finishers = 1",
)


def configured(bindings, names=()) -> SweepSpecification:
    """Returns the sweep of shipped files and bindings, its names checked."""
    sweep, _ = read_configuration(names, bindings)
    Backends(Options(""), LocalFiles()).check(sweep)
    return sweep


def launched(directory, sweep, resources=None) -> SweepOutcome:
    """Runs a sweep in a directory; returns what became of its cells.

    In one slot: no result depends on their number, and each has a program to trace.
    """
    files, options = LocalFiles(), Options(str(directory), slots=1)
    backends = Backends(options, files)
    if resources is not None:
        trained_there = TrainedBackend(options, files, resources)
        backends = lambda study: trained_there  # noqa: E731 - it stands for backends
    return Sweep(files, sweep, options, backends, StopRequest()).run("")


def trained(directory, more=()) -> SweepLayout:
    """Returns the layout of a sweep of BINDINGS and more, after it has been run."""
    launched(directory, configured([*BINDINGS, *more]))
    return SweepLayout(str(directory))
