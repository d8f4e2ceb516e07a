"""Sets larger than memory: what they cost, and what is said of waiting for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_set_of_ten_times_the_memory_is_trained_as_fast_as_one_in_memory(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tests.training.large_set", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["set"] >= 10 * found["grown"], found
    # What is not waiting is what steps take in memory, while other processors read. A
    # slice of sixteen steps waits for the first of its pieces.
    assert found["wait"] < 0.1, found
    assert found["held"] >= 0.7 * found["streamed"], found
    # Twenty milliseconds for each example that the threads decode.
    assert found["starved"] > 0.5, found
