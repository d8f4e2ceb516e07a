"""Two processes stream the batches of one trial, each its own half, over loopback."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.training.group_processes import ends, start_group
from tests.training.problems import error_of
from tests.training.streaming_member import GOAL, INTERVAL, PROBLEM

STEPS = 30


@pytest.mark.slow
@pytest.mark.multi_device
class StreamingGroupTest(tf.test.TestCase):
    def test_curve_is_that_of_one_device_and_each_process_reads_its_half(self):
        words = ["-m", "tests.training.streaming_member", str(STEPS)]
        told = []
        for code, output, errors in ends(start_group(words)):
            self.assertEqual(code, 0, errors[-3000:])
            told.append([json.loads(line) for line in output.splitlines()])
        (*one, last), (*other, other_last) = told
        self.assertEqual(one, other)
        program = PROBLEM.program(goal=GOAL)
        PROBLEM.begin(program)
        untrained = program.evaluate()
        losses, evaluations = PROBLEM.curve(program, STEPS, INTERVAL)
        found = [line["loss"] for line in one[1:]]
        self.assertAllClose(found, losses, rtol=0, atol=1e-5)
        found = [(line["error"], line["is_bound"]) for line in one]
        expected = [(error_of(e), e.is_bound) for e in (untrained, *evaluations)]
        self.assertEqual(found, expected)
        # Some stopped once the goal was out of reach, some did not.
        self.assertLen({is_bound for _, is_bound in found}, 2)
        self.assertEqual((last["placement"], other_last["placement"]), ("stream",) * 2)
        # Threads gather the pieces of a slice, so pieces are asked for in any order.
        halves = np.split(PROBLEM.order(0, STEPS), 2, axis=1)
        for found, half in zip((last, other_last), halves, strict=True):
            rows = np.concatenate(found["rows"])
            self.assertEqual(sorted(rows.tolist()), sorted(half.tolist()))


if __name__ == "__main__":
    tf.test.main()
