"""One process of a group that trains a trial together.

`python -m tests.training.group_member STEPS FOLDER`, with TF_CONFIG. After every tenth
step it writes a line of JSON to its output and, if it is the first of the group, the
state into the folder, from which a group that is started again goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from dps_tf.core import TrialState, UserError
from dps_tf.training import Program
from dps_tf.training import strategy as strategies
from tests.training.problems import Problem, error_of

INTERVAL = 10
PROBLEM = Problem(
    network="mlp_batch_norm",
    optimizer="momentum",
    smoothing=True,
    arguments={"ghost_batch_size": 4},
)


def resume(program: Program, folder: Path) -> int:
    """Loads the latest state, or a fresh one; returns its step."""
    found = sorted(folder.glob("*.npz"))
    if not found:
        PROBLEM.begin(program)
        return 0
    with np.load(found[-1]) as arrays:
        state = TrialState(int(found[-1].stem), tuple(arrays[n] for n in arrays.files))
    program.load(state, PROBLEM.point)
    return state.step


def save(program: Program, folder: Path) -> None:
    """Writes the state under its step, all or nothing."""
    state = program.read()
    draft = folder / "draft"
    with draft.open("wb") as file:
        np.savez(file, *state.arrays)
    draft.rename(folder / f"{state.step:09}.npz")


def main(steps: int, folder: Path) -> None:
    """Trains up to a step and says how it goes."""
    strategies.configure_threads(1, 1)
    strategy = strategies.build("multi_worker_mirrored")
    is_first = strategy.cluster_resolver.task_id == 0
    program = PROBLEM.program(strategy)
    for step in range(resume(program, folder), steps, INTERVAL):
        loss = program.advance(PROBLEM.order(step, INTERVAL)).loss
        line = {
            "step": step + INTERVAL,
            "loss": loss,
            "error": error_of(program.evaluate()),
        }
        if is_first:
            save(program, folder)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        tf.get_logger().disabled = True
        sys.exit(f"error: {error}")
