"""The command `python -m dps_tf.measure`: what it prints and how it ends."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from absl.testing import parameterized

from dps_tf.store import LocalFiles, SweepReader
from tests import interpreter
from tests.made_up import small_sweeps

ROOT = Path(__file__).parents[2]
CELL = "blobs-nesterov-none-seed0-b8-s0.0"


def run(*arguments: object) -> subprocess.CompletedProcess:
    return interpreter.run(["-m", "dps_tf.measure", *arguments], cwd=ROOT)


class MeasureCommandTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def test_measures_finished_cells_prints_them_and_keeps_them(self):
        sweep = self.folder / "sweep"
        layout = small_sweeps.trained(sweep, ["sweep.batch_sizes = (8, 16)"])
        other = CELL.replace("b8", "b16")
        Path(layout.cell(other).closed).unlink()
        done = run(f"--sweep_dir={sweep}", "--examples=30", "--times=3", "--curvature")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertIn(f"{other}: left out, it is not finished.", done.stdout)
        self.assertRegex(done.stdout, f"{CELL}: trial . is trained again")
        columns = ("smoothness", "gradient_square", "noise_trace", "noise_scale")
        for column in (*columns, "largest_eigenvalue"):
            self.assertIn(column, done.stdout)
        measured = SweepReader(LocalFiles(), str(sweep)).tables().measurements
        self.assertEqual(set(measured.groupby("quantity").size()), {3})

    def test_nothing_measured_is_no_success(self):
        sweep = self.folder / "sweep"
        small_sweeps.trained(
            sweep, ["goal.threshold = -1.0", "workload.step_budget = 5"]
        )
        done = run(f"--sweep_dir={sweep}", "--examples=30", "--times=3")
        self.assertIn("no trial reached the goal; name one with --trial", done.stdout)
        self.assertEqual(done.stderr, "error: nothing was measured, see above.\n")
        self.assertEqual(done.returncode, 2)

    @parameterized.parameters(
        ((), "--sweep_dir is missing"),
        (("--sweep_dir=.",), "holds no sweep"),
        (("--sweep_dir=.", "--trial=one"), "trial"),
        (("--sweep_dir=.", "--cel=x"), "'cel'"),
    )
    def test_what_a_user_can_mend_is_one_line(self, arguments, expected):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2)
        self.assertStartsWith(done.stderr, "error: ")
        self.assertIn(expected, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)

    def assertStartsWith(self, text, start):
        self.assertEqual(text[: len(start)], start)
