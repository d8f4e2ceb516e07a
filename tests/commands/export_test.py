"""The command `python -m dps_tf.export`: what it saves, says and refuses."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

import dps_tf
from dps_tf import data, models
from dps_tf.core import UserError
from dps_tf.probing import trained_trial
from dps_tf.store import LocalFiles, SweepReader
from tests import interpreter
from tests.sparsity.sparse_model_test import loaded

ROOT = Path(__file__).parents[2]
CELL = "digits_mlp-nesterov-snip-seed0-b32-s0.8"
DENSE = "digits_mlp-nesterov-none-seed0-b32-s0.0"
BINDINGS = (
    "sweep.sparsities = (0.0, 0.8)",
    "sweep.sparsity_methods = ('snip',)",
    "workload.step_budget = 20",
    # The first of two points does not reach it, the second does.
    "workload.points = [{'learning_rate': 1e-4, 'momentum': 0.0},"
    " {'learning_rate': 0.1, 'momentum': 0.9}]",
    "goal.threshold = 0.6",
)
WINNER = 1


def run(module: str, *arguments: object) -> subprocess.CompletedProcess:
    return interpreter.run(["-m", module, *arguments], cwd=ROOT)


class ExportCommandTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name)
        cls.sweep = cls.root / "sweep"
        done = run(
            "dps_tf.train",
            "--gin_file=smoke/one_run",
            f"--sweep_dir={cls.sweep}",
            *(f"--gin_bindings={binding}" for binding in BINDINGS),
        )
        assert done.returncode == 0, done.stderr

    def export(self, cell, trial, out):
        return run(
            "dps_tf.export",
            f"--sweep_dir={self.sweep}",
            f"--cell={cell}",
            f"--trial={trial}",
            f"--out={self.root / out}",
        )

    @parameterized.parameters((CELL, 0.8), (DENSE, 0.0))
    def test_what_is_saved_is_the_network_of_the_record(self, cell, sparsity):
        self.check_saved(cell, sparsity)

    @pytest.mark.slow
    def test_averaged_weights_are_saved_where_they_are_evaluated(self):
        """Also under the masks of an optimizer that moves whole matrices."""
        bindings = (
            *BINDINGS[1:3],
            "sweep.sparsities = (0.8,)",
            "workload.optimizer = 'muon'",
            "workload.points = [{'learning_rate': 0.02, 'averaging_decay': 0.9}]",
        )
        done = run(
            "dps_tf.train",
            "--gin_file=smoke/one_run",
            f"--sweep_dir={self.sweep}",
            *(f"--gin_bindings={binding}" for binding in bindings),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_saved(CELL.replace("nesterov", "muon"), 0.8, trial=0)

    def test_best_is_the_trial_that_met_the_goal_first(self):
        """Its weights are those that `dps_tf.load_trial` gives by name."""
        done = self.export(DENSE, "best", "best")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{DENSE}, trial {WINNER}, after 20 steps", done.stdout)
        dataset = data.load("digits")
        network = models.build("mlp", dataset.input_shape, dataset.classes)
        masks = loaded(self.root / "best", network)
        trial = dps_tf.load_trial(self.sweep, DENSE)
        self.assertEqual(trial.trial, WINNER)
        self.assertEqual(trial.point, {"learning_rate": 0.1, "momentum": 0.9})
        shown = repr(trial).splitlines()
        self.assertEqual(shown[0], f"trial {WINNER} of {DENSE}, after 20 steps")
        self.assertLen(shown, 4)
        self.assertLess(max(map(len, shown)), 120)
        saved = {v.name: v.numpy() for v in network.trainable_variables}
        self.assertLen(trial.weights, len(saved))
        for name, value in trial.weights.items():
            np.testing.assert_array_equal(saved[f"{name}:0"], value)
        for mask, value in zip(masks, trial.masks.values(), strict=True):
            np.testing.assert_array_equal(mask, value)

    def test_best_of_a_cell_that_nobody_finished_is_refused(self):
        best = mock.Mock(best_trial=lambda: None)
        with self.assertRaisesRegex(UserError, "no trial of b8 has reached the goal"):
            trained_trial._trial_number(best, "b8", "best")

    def test_damage_that_is_passed_over_is_told(self):
        copy = self.root / "damaged"
        shutil.copytree(self.sweep, copy)
        cell = copy / "cells" / DENSE
        (cell / "trials.parquet").write_bytes(b"")
        newest = sorted(cell.glob(f"states/trial-{WINNER:06d}.*"))[-1]
        newest.write_bytes(newest.read_bytes()[:-1])
        sweep = SweepReader(LocalFiles(), str(copy))
        try:
            told = trained_trial.trained_trial(LocalFiles(), sweep, DENSE).problems
        except UserError as error:  # there was no older state
            told = (*sweep.problems, str(error))
        self.assertIn("trials.parquet", " ".join(told))
        self.assertIn(newest.name, " ".join(told))

    def check_saved(self, cell, sparsity, trial=WINNER):
        done = self.export(cell, trial, cell)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("after 20 steps", done.stdout)
        self.assertIn(f"{sparsity:.4f}\nsaved in", done.stdout)
        dataset = data.load("digits")
        network = models.build("mlp", dataset.input_shape, dataset.classes)
        masks = loaded(self.root / cell, network)
        kernels = [mask for mask in masks if mask.ndim > 1]
        kept = sum(mask.sum() for mask in kernels) / sum(mask.size for mask in kernels)
        self.assertAlmostEqual(1 - kept, sparsity, places=3)
        for value, mask in zip(network.get_weights(), masks, strict=True):
            np.testing.assert_array_equal(value[mask == 0], 0)
        guesses = np.argmax(network(dataset.validation.inputs), axis=-1)
        error = np.mean(guesses != dataset.validation.labels)
        curves = (
            SweepReader(LocalFiles(), str(self.sweep)).study(cell).closed()["curves"]
        )
        last = curves[curves["trial"] == trial].sort_values("step").iloc[-1]
        self.assertAlmostEqual(error, last["validation/classification_error"])

    @parameterized.parameters(
        ("no_cell", 0, "out", "cell 'no_cell' is unknown"),
        (CELL.replace("snip", "snap"), 0, "out", f"did you mean '{CELL}'"),
        (CELL, 7, "out", "trial 7 .* has no kept state: .* have one: 0, 1"),
        (CELL, "worst", "out", "trial 'worst' is no trial: give a number from 0, or"),
    )
    def test_mistakes_are_one_line_and_exit_code_2(self, cell, trial, out, text):
        done = self.export(cell, trial, out)
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = [line for line in done.stderr.splitlines() if "error:" in line]
        self.assertLen(lines, 1)
        self.assertRegex(lines[0], text)
        self.assertNotIn("Traceback", done.stderr)

    def test_missing_flags_are_named(self):
        done = run("dps_tf.export", f"--sweep_dir={self.sweep}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("error: --cell is missing", done.stderr)
