"""Sets larger than memory: what they take, and what is said of waiting for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_set_is_trained_in_a_tenth_of_the_memory_that_it_would_take(tmp_path):
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
    # Twenty milliseconds for each example that the threads decode.
    assert found["starved"] > 0.5, found
