"""The plan of the whole grid: its arithmetic, and that launch/README.md shows it."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import tensorflow as tf

from dps_tf import models
from dps_tf.tuning.resources import Resources
from dps_tf.workloads.reading import read_configuration
from tests.benchmarks import grid_cost, machine_rate
from tests.packaging.source_tree import SOURCE_TREE


def one_study(name: str, batch_size: int):
    sweep, _ = read_configuration(
        [name], [f"sweep.batch_sizes = ({batch_size},)", "sweep.sparsities = (0.0,)"]
    )
    return sweep.studies[0]


def multiplications(network: str) -> int:
    """Returns kernel entries times the places that each is used at, layer by layer."""
    model = models.build(network, machine_rate.SHAPES[network], 10)
    total = 0
    for layer in model.layers:
        if layer.trainable_weights:
            places = layer.output_shape[1:-1]
            total += int(np.prod(layer.kernel.shape)) * int(np.prod(places))
    return total


class GridCostTest(tf.test.TestCase):
    maxDiff = None

    def test_readme_shows_the_plan_of_the_measured_tables(self):
        text = (SOURCE_TREE / "launch" / "README.md").read_text()
        section = text.partition("## Cost of the whole grid")[2].partition("\n## ")[0]
        shown = [line for line in section.splitlines() if line.startswith("|")]
        head, rule, *rows = grid_cost.show(grid_cost.read_seconds()).splitlines()
        self.assertEqual(shown, [head, rule, rows[-1]])
        with (grid_cost.TABLES / "cost.csv").open(newline="") as file:
            recorded = list(csv.reader(file))
        self.assertEqual(
            recorded,
            [line.strip("| ").split(" | ") for line in (head, *rows)],
        )

    def test_command_of_the_readme_is_understood(self):
        flags = ["--strategy=tpu", "--grid_seconds=seconds.csv"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks", *flags, "no_such_benchmark"],
            cwd=Path(grid_cost.__file__).parents[2],
            capture_output=True,
            text=True,
        )
        self.assertIn(
            "no benchmark is named no_such_benchmark", done.stdout + done.stderr
        )
        text = (SOURCE_TREE / "launch" / "README.md").read_text()
        (line,) = re.findall("python -m tests.benchmarks (.*)", text)
        self.assertEqual(line.split(), ["grid_cost", *flags])

    def test_laws_are_of_every_study(self):
        laws = grid_cost.read_laws()
        self.assertTrue(laws.index.is_unique)
        studies = list(grid_cost.studies())
        self.assertLen(studies, 14 * 4 * 9)
        for study in studies:
            self.assertGreater(grid_cost.steps_to_result(study, laws), 0)

    def test_multiplications_of_an_example(self):
        for network, expected in grid_cost.MULTIPLICATIONS.items():
            self.assertEqual(multiplications(network), expected)

    def test_race_takes_every_trial_to_the_best(self):
        study = one_study("lee2021/mnist_sgd", 64)
        work = grid_cost.with_race(study, 600)
        self.assertEqual(work, grid_cost.Work(100 * 600, 600))

    def test_without_race_agrees_with_the_integral_over_the_range(self):
        # log10 of the rate is uniform on (-4, 0) and the best is -1. Steps are inverse
        # to the rate, and the budget is met at log10 rate c.
        best, budget = 600, 40_000
        c = -1 + math.log10(best / budget)
        inverse = best * (10 ** (-1 - c) - 1) / math.log(10)
        slow = ((c + 4) * budget + inverse) / 4
        study = one_study("lee2021/mnist_sgd", 64)
        for diverge, failed in ((True, 100), (False, budget)):
            work = grid_cost.without_race(study, best, diverge)
            expected = 100 * (slow + failed / 4)
            self.assertAllClose(work.steps, expected, rtol=0.02)

    def test_seconds_between_and_beyond_what_was_measured(self):
        table = pd.DataFrame(
            {
                "network": "simple_cnn",
                "batch_size": [4, 16],
                "seconds": [0.01, 0.04],
                "evaluation_seconds": [0.5, 0.5],
            }
        )
        seconds = grid_cost.measured(table)
        for batch_size, expected in ((4, 0.01), (8, 0.02), (16, 0.04), (64, 0.16)):
            self.assertAllClose(seconds("simple_cnn", batch_size), (expected, 0.5))

    def test_formula_of_an_accelerator(self):
        machine = grid_cost.Accelerator("made up", 4, 1e12, (0.1, 0.5), (0.001, 0.01))
        step, evaluation = grid_cost.assumed(machine, True)("simple_cnn", 100)
        forward = 2 * 3_747_840 / 0.1e12
        self.assertAllClose(step, (0.01 + 300 * forward) / 4)
        self.assertAllClose(evaluation, (0.01 + 6_000 * forward) / 4)

    def test_machine_is_measured(self):
        path = Path(self.get_temp_dir()) / "seconds.csv"
        few = {"simple_cnn": 8}
        shapes = {"simple_cnn": machine_rate.SHAPES["simple_cnn"]}
        with mock.patch.multiple(machine_rate, VALIDATION_EXAMPLES=few, SHAPES=shapes):
            machine_rate.write_table(
                path,
                Resources.of_this_machine(slots=2),
                (2,),
                train_examples=16,
                repeats=1,
                seconds=0.02,
            )
        table = grid_cost.read_seconds(path)
        self.assertEqual(list(table["batch_size"]), [2])
        self.assertAllEqual(table["slots"], [2])
        self.assertGreater(table[["seconds", "evaluation_seconds"]].min().min(), 0)
