"""A folder of text, and sentences as TensorFlow Datasets builds them, trained on.

From files to K*, by `prepare`, `train` and `status` as a user runs them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from dps_tf.analysis.loading import load
from tests import interpreter
from tests.data.large_sets_test import lm1b

pytestmark = pytest.mark.slow

WORDS = "the cat sat on a mat and saw two dogs near the old red barn".split()
# As large as the set below; what is read and how is that of the real one.
_TINY_LM1B = """
from dataclasses import replace
from dps_tf.data.sentences import SETS
SETS["lm1b"] = replace(
    SETS["lm1b"],
    parts={"train": ("train", 0, 250), "validation": ("test", 0, 30),
           "test": ("test", 30, 70)},
    built_bytes=0,
)
from dps_tf import prepare
prepare.main()
"""
_SMALL = "{'width': 8, 'hidden': 16, 'heads': 2, 'depth': 1}"
COMMON = {
    "sweep.batch_sizes": "(8,)",
    "workload.points": 2,
    "workload.step_budget": 6,
    "evaluation.examples": "None",
    "evaluation.minimum": 1,
    "evaluation.steps": 3,
    "sweep.finishers": 1,
}
SETS = {
    "text_folder": {
        "gin": "shallue2019/text_networks",
        "workload.dataset_arguments": (
            "{'folder': 'mine', 'vocabulary': 30, 'length': 8}"
        ),
        "transformer/workload.network_arguments": _SMALL,
        "lstm/workload.network_arguments": "{'width': 8, 'units': 8, 'projection': 4}",
        "workload.validation_examples": 40,
        "transformer/evaluation.steps": 3,
        "lstm/evaluation.steps": 3,
        "goal.threshold": 0.5,
    },
    "lm1b": {
        "gin": "shallue2019/lm1b_transformer_base_nesterov",
        "workload.dataset_arguments": (
            "{'vocabulary': 30, 'length': 8, 'training_length': 5}"
        ),
        "workload.network_arguments": _SMALL,
        "goal.threshold": 0.5,
    },
}


def write_sets(root: Path) -> None:
    """Makes a folder of text and a built set of sentences."""
    generator = np.random.default_rng(0)
    text = [" ".join(generator.choice(WORDS, 1 + i % 12)) for i in range(300)]
    (root / "mine").mkdir()
    (root / "mine" / "a.txt").write_text("\n".join(text))
    lm1b(root / "data", [line.encode() for line in text])


Trained = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Trained]:
    """The sweep of each set, and how its training ended."""
    root = tmp_path_factory.mktemp("own data")
    write_sets(root)
    raw = {"text_folder": "mine"}
    for name in SETS:
        program = ["-c", _TINY_LM1B] if name == "lm1b" else ["-m", "dps_tf.prepare"]
        flags = [f"--dataset={name}", "--data_dir=data", "--vocabulary=30"]
        flags += ["--length=8", *([f"--raw_dir={raw[name]}"] if name in raw else [])]
        done = interpreter.run([*program, *flags], cwd=root)
        assert done.returncode == 0, done.stderr

    def train(name: str, found: dict[str, object]) -> Trained:
        bound = {**COMMON, **found}
        flags = [f"--gin_file={bound.pop('gin')}", f"--sweep_dir=sweeps/{name}"]
        flags += [f"--gin_bindings={key} = {value}" for key, value in bound.items()]
        words = ["-m", "dps_tf.train", "--data_dir=data", "--slots=1", *flags]
        return root / "sweeps" / name, interpreter.run(words, cwd=root)

    other = "{'folder': 'mine', 'vocabulary': 31, 'length': 8}"
    unprepared = {**SETS["text_folder"], "workload.dataset_arguments": other}
    every = {**SETS, "other": unprepared}
    return {name: train(name, found) for name, found in every.items()}


@pytest.mark.parametrize("name", SETS)
def test_training_ends_and_its_metrics_are_those_of_a_beginning(trained, name):
    folder, done = trained[name]
    assert done.returncode == 0, done.stderr
    tables = load(folder)
    assert set(tables.trials["outcome"]) <= {"complete", "incomplete"}
    networks = 2 if name == "text_folder" else 1
    assert len(tables.trials) == 2 * networks
    curves = tables.curves
    losses = curves["validation/cross_entropy"]
    guess = np.log(30)
    first = losses[curves["step"] == curves["step"].min()]
    assert len(first) == len(tables.trials)
    # Six small steps: not far from a guess among the sub-words that there are.
    assert np.all(np.abs(first - guess) < 1.5)
    assert np.all(np.isfinite(losses))


def test_vocabulary_that_was_not_prepared_is_one_sentence(trained):
    folder, done = trained["other"]
    assert done.returncode == 2
    (sentence,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert "with 31 sub-words and sentences of 8 is not prepared" in sentence
    assert "there are sentences-30-8" in sentence
    assert "--vocabulary=31 --length=8" in sentence
    assert not list(folder.rglob("*.parquet"))
