"""A process that measures one candidate, a line of JSON for each line it reads.

`python -m tests.benchmarks.worker CANDIDATE BATCH_SIZE`. A process of its own, because
threads are fixed for the life of a process and Keras `fit` has TensorFlow's choice.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol


class Candidate(Protocol):
    """Something that trains."""

    slots: int

    def warm_up(self) -> None:
        """Traces and runs everything once."""

    def turns(self, slot: int, more: Callable[[], bool]) -> int:
        """Trains in one thread while there is `more` time; returns steps of trials."""


def _loop(batch_size: int, **arguments: Any) -> Candidate:
    from tests.benchmarks.plain_loop import PlainLoop

    return PlainLoop(batch_size, **arguments)


def _engine(batch_size: int, **arguments: Any) -> Candidate:
    from tests.benchmarks.engine import Engine

    return Engine(batch_size, **arguments)


def _keras_fit(batch_size: int, **arguments: Any) -> Candidate:
    from tests.benchmarks.keras_fit import KerasFit

    return KerasFit(batch_size, **arguments)


def _first_step(batch_size: int) -> Candidate:
    from tests.benchmarks.engine import FirstStep

    return FirstStep(batch_size)


# Trials side by side are as many as the processors of the machine these targets are
# for: two.
CANDIDATES: dict[str, Callable[[int], Candidate]] = {
    "loop_2_threads": lambda b: _loop(b, threads=2, unrolled=1),
    "loop_4_threads": lambda b: _loop(b, threads=4, unrolled=1),
    "loop_4_unrolled": lambda b: _loop(b, threads=1, unrolled=4),
    "loop_masked": lambda b: _loop(b, threads=2, unrolled=1, masked=True),
    "engine": lambda b: _engine(b, threads=2),
    "engine_masked": lambda b: _engine(b, threads=2, masked=True),
    "engine_random": lambda b: _engine(b, threads=2, random=True),
    "engine_first_step": _first_step,
    "keras_fit": _keras_fit,
    "keras_fit_silent": lambda b: _keras_fit(b, silent=True),
}


def measure(candidate: Candidate, seconds: float) -> dict[str, float]:
    """Returns steps per second over all slots, and what else the candidate tells."""
    from tests.benchmarks import problem

    for name in ("turn_seconds", "slice_seconds"):
        if hasattr(candidate, name):
            setattr(candidate, name, 0.0)
    begun = problem.now()
    end = begun + seconds
    with ThreadPoolExecutor(candidate.slots) as pool:
        turns = [
            pool.submit(candidate.turns, slot, lambda: problem.now() < end)
            for slot in range(candidate.slots)
        ]
        steps = sum(turn.result() for turn in turns)
    # Up to the end of the last turn. Rates of single threads must not be added up: of
    # more threads than processors some wait, and make up for it when others have left.
    found = {"steps_per_second": steps / (problem.now() - begun)}
    if hasattr(candidate, "turn_seconds"):
        inside = candidate.slice_seconds / candidate.turn_seconds
        found["outside_slices"] = 1 - inside
    return found


def main(name: str, batch_size: int) -> None:
    """Answers requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever libraries print is no answer.
    if not name.startswith("keras_fit"):
        from dps_tf.training import strategy as strategies

        strategies.configure_threads(1, 2)
    candidate = CANDIDATES[name](batch_size)
    candidate.warm_up()
    print(json.dumps({"ready": name}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(candidate, float(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
