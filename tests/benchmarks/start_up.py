"""Seconds from the start of a process to the end of its first step.

Target: under 15 s without scoring.
"""

from __future__ import annotations

import statistics
from typing import Any

from tests.benchmarks import problem
from tests.benchmarks.processes import processes


def run(batch_size: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Returns one row: import, data on the device, network, trace, first steps."""
    del seconds
    found = []
    for _ in range(repeats):
        begun = problem.now()
        with processes(["engine_first_step"], batch_size):
            found.append(problem.now() - begun)
    return {
        "batch_size": batch_size,
        "start_up_seconds": statistics.median(found),
        "start_up_target": 15.0,
    }
