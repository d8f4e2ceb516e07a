"""The benchmarks run, on little data; what they measure is for a quiet machine."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.step_times import checked_step_times
from tests.benchmarks import problem, step_time, worker


class BenchmarksTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        inputs, labels = problem.examples(64)
        for target in (
            mock.patch.object(problem, "TRAIN_EXAMPLES", 64),
            mock.patch.object(problem, "examples", lambda: (inputs, labels)),
            mock.patch.object(problem, "steps_per_turn", lambda batch_size: 4),
        ):
            target.start()
            self.addCleanup(target.stop)

    @parameterized.parameters(
        "loop_2_threads", "loop_4_unrolled", "loop_masked", "engine_masked", "keras_fit"
    )
    def test_candidate_trains(self, name):
        candidate = worker.CANDIDATES[name](8)
        candidate.warm_up()
        found = worker.measure(candidate, 0.5)
        self.assertGreater(found["steps_per_second"], 0)
        if name.startswith("engine"):
            self.assertBetween(found["outside_slices"], 0, 1)

    def test_table_of_step_times_is_what_cost_analysis_reads(self):
        path = Path(self.get_temp_dir()) / "step_times.csv"
        step_time.write_table(
            path,
            "mirrored",
            (8, 9),
            devices=("CPU:0", "CPU:1"),
            price_per_device_hour=1.5,
            repeats=1,
            seconds=0.05,
        )
        table = checked_step_times(read_csv(path))
        self.assertEqual(list(table["batch_size"]), [8])  # two cannot share nine
        self.assertEqual(list(table["devices"]), [2])
        self.assertEqual(list(table["price"]), [3.0])


if __name__ == "__main__":
    tf.test.main()
