"""The backends of a run: each runs the trials of the studies on some data sets.

This module loads no TensorFlow: slots of a cluster that simulate do without it.
"""

from __future__ import annotations

from collections.abc import Callable

from dps_tf.core import Backend, Registry, StudySpecification, SweepSpecification
from dps_tf.store import FileSystem
from dps_tf.tuning import simulation
from dps_tf.tuning.options import Options

MakeBackend = Callable[[Options, FileSystem], Backend]

BACKENDS: Registry[MakeBackend] = Registry("backend")
"""Functions that make a backend, by the data set whose studies it runs."""


def register_backend(dataset: str, make: MakeBackend) -> None:
    """Has studies whose `workload.dataset` is a name run by a backend of one's own.

    Studies on any other data set are trained. Slots of a cluster make their own
    backends, after they have imported the modules named by `--import`.

    Args:
        dataset: the name; no data set needs to be registered under it.
        make: (options of the run, file system of the sweep) -> `dps_tf.core.Backend`.

    Raises:
        UserError: another function is registered under the name.

    Examples:
        >>> import dps_tf
        >>> from dps_tf.tuning.simulation import SimulatedBackend
        >>> def imitation(options, files):
        ...     return SimulatedBackend()
        >>> dps_tf.register_backend("imitation", imitation)
    """
    BACKENDS.register(dataset, make)


def _simulated(options: Options, files: FileSystem) -> Backend:
    del options, files
    return simulation.SimulatedBackend()


def _trained(options: Options, files: FileSystem) -> Backend:
    # Loads TensorFlow.
    from dps_tf.tuning.trained_backend import TrainedBackend

    return TrainedBackend(options, files)


register_backend(simulation.DATASET, _simulated)


class Backends:
    """The backends of a run, each made when a study first asks for it."""

    def __init__(self, options: Options, files: FileSystem):
        self._options = options
        self._files = files
        self._made: dict[MakeBackend, Backend] = {}

    def __call__(self, study: StudySpecification) -> Backend:
        """Returns the backend of a study."""
        dataset = study.workload.dataset
        make = BACKENDS[dataset] if dataset in BACKENDS.names() else _trained
        if make not in self._made:
            self._made[make] = make(self._options, self._files)
        return self._made[make]

    def check(self, sweep: SweepSpecification) -> None:
        """Raises UserError unless every name in a sweep is registered."""
        # Loads TensorFlow, which slots of a cluster do not need for this.
        from dps_tf import sparsity

        for name in sweep.sparsity_methods:
            sparsity.SPARSITY_METHODS.reads(name)
        for study in sweep.studies:
            self(study).check(study)

    def try_out(self, sweep: SweepSpecification) -> float:
        """Raises UserError for whatever would keep a study from being run.

        Returns the longest time, in seconds, that it took to make and prune an initial
        point.
        """
        for study in sweep.studies:
            self(study).check_data(study)
        return max(
            backend.try_out([s for s in sweep.studies if self(s) is backend])
            for backend in self._made.values()
        )
