"""What trials are trained again with, and looked at with, compiled once and kept."""

from __future__ import annotations

import json
from dataclasses import replace

from dps_tf.data.dataset import Dataset, Examples
from dps_tf.probing.example_gradients import ExampleGradients
from dps_tf.probing.recorded_study import RecordedStudy
from dps_tf.training.environment import describe
from dps_tf.training.program import Program
from dps_tf.tuning import build
from dps_tf.tuning.resources import Resources


class ProgramCache:
    """The latest program and gradients, for as long as the next study needs the same.

    Programs serve all trials of a study; gradients all studies of a network and data,
    and are taken on one device, in float32, however trials are trained.

    Args:
        resources: what trials are trained again on; None is one device of this machine.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        """Touches no device yet."""
        self._resources = resources
        self._program: tuple[str, Program] | None = None
        self._gradients: tuple[str, ExampleGradients] | None = None

    def program(self, study: RecordedStudy, dataset: Dataset) -> Program:
        """Returns a program of a study that evaluates exactly.

        Where the study stopped evaluations early, its record holds bounds, which
        depend on the goal of that time.
        """
        key = study.specification.fingerprint + dataset.content_hash
        if self._program is None or self._program[0] != key:
            exact = replace(study.specification, evaluation="exact")
            self._program = None  # its memory is free before the next one is built
            self._program = key, self._machine().programs(exact, dataset)[0]
        return self._program[1]

    def environment(self) -> dict[str, str]:
        """Returns what the bits of trials depend on that are trained again."""
        return describe(self._machine().replicas, self._machine().processes)

    def _machine(self) -> Resources:
        if self._resources is None:
            self._resources = Resources.of_this_machine(slots=1)
        return self._resources

    def gradients(
        self, study: RecordedStudy, dataset: Dataset, examples: int
    ) -> ExampleGradients:
        """Returns gradients over the first `examples` training examples."""
        workload = study.specification.workload
        arguments = dict(workload.network_arguments)
        key = json.dumps(
            [workload.network, arguments, dataset.content_hash, examples],
            sort_keys=True,
        )
        if self._gradients is None or self._gradients[0] != key:
            train = dataset.train
            first = Examples(train.inputs[:examples], train.labels[:examples])
            network = build.build_task(workload, dataset).network
            self._gradients = key, ExampleGradients(network, first)
        return self._gradients[1]
