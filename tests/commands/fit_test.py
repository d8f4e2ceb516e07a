"""The command `python -m dps_tf.fit`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import interpreter

ROOT = Path(__file__).parents[2]


def run(*arguments):
    words = ["-m", "dps_tf.fit", *arguments]
    return interpreter.run(words, modules=interpreter.TABLES, cwd=ROOT)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "table with space.csv"
    rows = [f"{2**k},{100_000 / 2**k + 400}" for k in range(8)]
    path.write_text("\n".join(["batch_size,steps_to_result", *rows]))
    return path


def test_prints_fit_forms_and_regimes(csv):
    done = run(f"--csv={csv}", "--level=0.9")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "K* = c1/B + c2" in done.stdout
    assert "100,000" in done.stdout and "exponent" in done.stdout
    assert "medians and 90 % intervals" in done.stdout
    assert "By the fit, perfect scaling" in done.stdout


def test_prints_one_json_object(csv):
    done = run(f"--csv={csv}", "--json")
    assert done.returncode == 0, done.stderr
    [curve] = json.loads(done.stdout)["curves"]
    assert curve["fit"]["c2"]["value"] == pytest.approx(400, rel=3e-2)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "--csv is missing"),
        (["--csv=absent.csv"], "'absent.csv' cannot be read"),
        (["--cvs=x"], "cvs"),
    ],
)
def test_what_a_user_can_mend_is_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
