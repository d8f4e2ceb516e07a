"""What trials are trained again with, and looked at with, compiled once and kept."""

from __future__ import annotations

import json
from dataclasses import replace

from dps_tf.data.dataset import Dataset, Examples
from dps_tf.training.example_gradients import ExampleGradients
from dps_tf.training.program import Program
from dps_tf.tuning import tasks
from dps_tf.tuning.recorded import RecordedStudy
from dps_tf.tuning.resources import Resources


class Instruments:
    """The latest program and gradients, for as long as the next study needs the same.

    Programs serve all trials of a study; gradients all studies of a network and data.
    """

    def __init__(self) -> None:
        """Touches no device yet."""
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
            machine = Resources.of_this_machine(slots=1)
            self._program = key, machine.programs(exact, dataset)[0]
        return self._program[1]

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
            network = tasks.build_task(workload, dataset).network
            self._gradients = key, ExampleGradients(network, first)
        return self._gradients[1]
