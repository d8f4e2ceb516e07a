"""Two processes share the batches of one trial, over loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.training.group_member import INTERVAL, PROBLEM
from tests.training.group_processes import PROCESSES, free_ports
from tests.training.problems import error_of

ROOT = Path(__file__).parents[2]


def start_group(member: str, *arguments: object) -> list[subprocess.Popen]:
    """Starts the processes of a group: a module of tests.training, with arguments."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(PROCESSES)]
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.training.{member}", *map(str, arguments)],
            cwd=ROOT,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": workers},
                        "task": {"type": "worker", "index": index},
                    }
                ),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(PROCESSES)
    ]


def lines_of(group: list[subprocess.Popen]) -> list[list[dict]]:
    """What each process said; fails with its errors where one did."""
    found = []
    for process in group:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
        found.append([json.loads(line) for line in output.splitlines()])
    return found


@pytest.mark.slow
@pytest.mark.multi_device
class MultiWorkerTest(tf.test.TestCase):
    def assert_curve(self, lines: list[dict], first: int, steps: int) -> None:
        """Compares with one device in this process, from some step on."""
        program = PROBLEM.program()
        PROBLEM.begin(program)
        losses, evaluations = PROBLEM.curve(program, steps, INTERVAL)
        self.assertEqual(
            [line["step"] for line in lines],
            list(range(first + INTERVAL, steps + 1, INTERVAL)),
        )
        skipped = first // INTERVAL
        self.assertAllClose(
            [line["loss"] for line in lines], losses[skipped:], rtol=0, atol=1e-5
        )
        self.assertEqual(
            [line["error"] for line in lines],
            [error_of(found) for found in evaluations[skipped:]],
        )

    def test_curve_is_that_of_one_device(self):
        one, other = lines_of(start_group("group_member", 50, self.get_temp_dir()))
        self.assertEqual(one, other)
        self.assert_curve(one, 0, 50)

    def test_killed_process_ends_the_group_and_starting_again_resumes(self):
        folder = self.get_temp_dir()
        group = start_group("group_member", 1_000_000, folder)
        for _ in range(3):
            group[0].stdout.readline()
        group[1].kill()
        killed = time.monotonic()
        _, errors = group[0].communicate(timeout=120)
        group[1].communicate()
        self.assertLess(time.monotonic() - killed, 30)
        self.assertNotEqual(group[0].returncode, 0)
        self.assertIn("error: another process of the group", errors)
        reached = max(int(path.stem) for path in Path(folder).glob("*.npz"))
        self.assertGreaterEqual(reached, 3 * INTERVAL)
        if reached > 500:
            self.skipTest("the group was too quick to compare its whole curve")
        one, other = lines_of(start_group("group_member", reached + 20, folder))
        self.assertEqual(one, other)
        self.assert_curve(one, reached, reached + 20)


if __name__ == "__main__":
    tf.test.main()
