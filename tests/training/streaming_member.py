"""One process of a group that trains a trial on streamed data, with TF_CONFIG.

`python -m tests.training.streaming_member STEPS`. Before the first and after every
tenth step it writes a line of JSON, at the end one with the training rows that it
gathered.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from dps_tf.core import Goal
from dps_tf.data import Examples
from dps_tf.training import Program
from dps_tf.training import strategy as strategies
from dps_tf.training.device_memory import place
from tests.training.group_member import INTERVAL, PROBLEM
from tests.training.noted_rows import NotedRows
from tests.training.problems import error_of

GOAL = Goal("validation/classification_error", 0.2)


def main(steps: int) -> None:
    """Trains up to a step and says how it goes."""
    strategies.configure_threads(1, 1)
    strategy = strategies.build("multi_worker_mirrored")
    train = PROBLEM.dataset.train
    noted = NotedRows(train.inputs)
    dataset = dataclasses.replace(PROBLEM.dataset, train=Examples(noted, train.labels))
    # Data fit into the memory of the first process only, so that both have to stream.
    memory = 0.0 if strategy.cluster_resolver.task_id else 1e15
    data = place(dataset, strategy, "auto", memory)
    program = Program(PROBLEM.task, data, PROBLEM.batch_size, goal=GOAL)
    PROBLEM.begin(program)
    for step in range(-INTERVAL, steps, INTERVAL):
        loss = 0.0
        if step >= 0:
            loss = program.advance(PROBLEM.order(step, INTERVAL)).loss
        found = program.evaluate()
        line = {"loss": loss, "error": error_of(found), "is_bound": found.is_bound}
        print(json.dumps(line), flush=True)
    rows = [asked.tolist() for asked in noted.asked]
    print(json.dumps({"placement": data.placement, "rows": rows}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
