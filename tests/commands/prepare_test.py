"""The command `python -m dps_tf.prepare`: what it says and how it ends."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from absl.testing import parameterized

from tests import interpreter
from tests.data import raw_files, tiny_published

ROOT = Path(__file__).parents[2]

# The command as it is, with the tiny CIFAR-10 in place of the published one.
WITH_TINY_SET = """
import sys
from dps_tf import prepare
from tests.data import tiny_published
with tiny_published.in_place_of_published("cifar10"):
    prepare.main()
"""


def run(*arguments: object, script: str | None = None) -> subprocess.CompletedProcess:
    program = ["-m", "dps_tf.prepare"] if script is None else ["-c", script]
    # A proxy on this machine that nobody listens on: no test reaches the network.
    nobody = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}
    with tempfile.TemporaryDirectory() as empty:
        return interpreter.run(
            [*program, *arguments],
            cwd=empty,
            env={**os.environ, **nobody, "PYTHONPATH": str(ROOT)},
        )


class PrepareCommandTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = raw_files.new_folder(self)
        self.flags = [f"--data_dir={self.root / 'data'}", f"--raw_dir={self.root}"]

    def test_prepares_once_and_says_so_again(self):
        tiny_published.write("cifar10", self.root / "cifar10")
        flags = ["--dataset=cifar10", *self.flags]
        folder = self.root / "data" / "cifar10" / "3.0.2"
        for expected in ("is prepared in", "is already prepared in"):
            done = run(*flags, script=WITH_TINY_SET)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            last = done.stdout.splitlines()[-1]
            self.assertEqual(last, f"cifar10 {expected} {folder}")
        self.assertNotIn("download", done.stdout.lower())

    @parameterized.parameters(
        ((), "--dataset is missing"),
        (("--dataset=mnist",), "--data_dir is missing"),
        (("--dataset=mnits", "--data_dir=P"), "did you mean 'mnist'"),
        (("--datset=mnist",), "'datset'"),
        (("--dataset=mnist", "mnist"), "'mnist'"),
        (("--dataset=mnist", "--data_dir=P", "--raw_dir=/nowhere"), "/nowhere"),
    )
    def test_mistake_is_one_line_and_code_2(self, flags, expected):
        self.assert_mendable(run(*flags), expected)

    def test_missing_raw_files_are_named(self):
        done = run("--dataset=fashion_mnist", *self.flags)
        self.assert_mendable(done, "or in its folder fashion_mnist/: train-images")

    def test_wrong_raw_files_are_named_and_leave_nothing(self):
        tiny_published.write("mnist", self.root / "mnist")
        done = run("--dataset=mnist", *self.flags)
        self.assert_mendable(done, "is not the published file")
        self.assertFalse((self.root / "data" / "mnist").exists())

    def test_no_network_is_one_line_that_says_what_to_do(self):
        done = run("--dataset=tiny_shakespeare", self.flags[0])
        self.assert_mendable(done, "--raw_dir")
        self.assertIn("cannot download https://", done.stderr)

    def test_help_names_the_flags(self):
        done = run("--help")
        for flag in ("--dataset", "--data_dir", "--raw_dir"):
            self.assertIn(flag, done.stdout)

    def assert_mendable(self, done: subprocess.CompletedProcess, expected: str) -> None:
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        self.assertLen(lines, 1, done.stderr)
        self.assertStartsWith(lines[0], "error: ")
        self.assertIn(expected, lines[0])
        self.assertNotIn("Traceback", done.stderr)
