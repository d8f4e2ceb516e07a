"""A data set that is read in a row takes a module and a gin file."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf.core import UserError
from dps_tf.data import Source, load, stored_once, write_arrays

FILE = Path(__file__).with_name("from_tf_data.gin")


def pairs(count: int):
    return ((np.full([2], n, np.float32), np.int64(n % 2)) for n in range(count))


def test_a_generator_is_read_once_and_then_reached_by_number(tmp_path):
    read = []

    def examples():
        read.append("all")
        return pairs(600)

    first = stored_once(tmp_path / "sets" / "numbers", examples, 600)
    again = stored_once(tmp_path / "sets" / "numbers", examples, 600)
    assert read == ["all"] and first.content == again.content
    np.testing.assert_array_equal(again.inputs[:, 1], np.arange(600))
    np.testing.assert_array_equal(again.labels, np.arange(600) % 2)
    # As if it had been written in one piece.
    inputs, labels = map(np.stack, zip(*pairs(600), strict=True))
    write_arrays(tmp_path / "whole", [(inputs, labels)])
    name = "inputs.bin"
    whole = (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "sets" / "numbers" / name).read_bytes() == whole


def test_who_comes_second_takes_what_is_there_and_a_failure_leaves_nothing(tmp_path):
    def slow():
        # Another process has written the same meanwhile.
        stored_once(tmp_path / "set", lambda: pairs(3), 3)
        return pairs(3)

    assert len(stored_once(tmp_path / "set", slow, 3).labels) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def broken():
        yield from pairs(3)
        raise RuntimeError("the network is gone")

    with pytest.raises(RuntimeError, match="gone"):
        stored_once(tmp_path / "broken", broken, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ([], "no example was given"),
        ([(np.zeros(2), 0), (np.zeros(3), 0)], r"inputs.*float64 \[2\], then .* \[3\]"),
        ([(np.zeros(2), 0), (np.zeros(2), 0.5)], "labels.*int64.*, then float64"),
    ],
)
def test_what_cannot_be_stored_is_one_sentence(tmp_path, examples, said):
    with pytest.raises(UserError, match=said):
        stored_once(tmp_path / "set", lambda: examples)


def test_a_source_of_what_is_read_in_a_row_is_refused(tmp_path):
    waves = importlib.import_module("tests.extensions.from_tf_data").waves
    for arguments in ((waves(), None), (np.zeros([4, 2]), None), (iter([]), [1])):
        with pytest.raises(UserError, match=r"of a Source are .*stored_once"):
            Source(*arguments, 3, 1)


def test_a_batched_dataset_is_refused_and_one_that_was_unbatched_is_not(tmp_path):
    waves = importlib.import_module("tests.extensions.from_tf_data").waves().take(4)
    for batched in (
        waves.batch(2),
        waves.batch(2, drop_remainder=True).prefetch(1),
        waves.padded_batch(2).cache(),
    ):
        with pytest.raises(UserError, match=r"is batched.*call \.unbatch\(\) on it"):
            stored_once(tmp_path / "set", lambda source=batched: source)
        single = stored_once(tmp_path / "one", batched.unbatch, 4)
        assert single.inputs.shape == (4, 32)
        shutil.rmtree(tmp_path / "one")
    flat = waves.batch(2).flat_map(
        lambda *pair: tf.data.Dataset.from_tensor_slices(pair)
    )
    assert stored_once(tmp_path / "flat", lambda: flat, 4).labels.shape == (4,)


@pytest.mark.slow
def test_waves_go_from_a_tf_dataset_to_their_tables(tmp_path, monkeypatch):
    importlib.import_module("tests.extensions.from_tf_data")
    monkeypatch.chdir(tmp_path)
    results = dps_tf.run(dps_tf.sweep(str(FILE)), tmp_path / "sweep").results
    assert results["steps_to_result"].notna().all()
    assert (tmp_path / "data" / "waves" / "manifest.json").is_file()
    assert load("stored_waves").classes == 3
