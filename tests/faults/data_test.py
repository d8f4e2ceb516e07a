"""Data that no trial may be trained on: each is refused in a sentence, at its place."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from dps_tf import data, models, objectives, optim
from dps_tf.core import UserError
from dps_tf.data import Source, stored_once, write_arrays
from dps_tf.training import DeviceData, Program, StreamedData, Task
from tests.training.problems import one_device

COUNT = 40
NUMBERS = itertools.count()
LIMIT = 2**31 - 1
FLOATS = (np.float16, np.float32, np.float64)
WIDE = {
    np.int64: (2**32 + 3, LIMIT + 1, -(2**31) - 1),
    np.uint64: (2**32 + 3, 2**64 - 1),
    np.uint32: (2**32 - 1,),
}


def arrays(kind: type = np.float32) -> dict[str, np.ndarray]:
    return {
        "inputs": np.ones((COUNT, 2, 3), kind),
        "labels": (np.arange(COUNT) % 2).astype(np.int64),
    }


def loaded(inputs, labels, validation=10, classes=2, options=None, **source):
    """Loads a source of these arrays by a name of its own."""
    name = f"faulty_{next(NUMBERS)}"
    made = Source(inputs, labels, classes, validation, **source)
    data.register(name, lambda data_dir: made)
    return data.load(name, **(options or {}))


def read_all(dataset):
    """Reads what is on disk too, where rows are checked when they are read."""
    for part in (dataset.train, dataset.validation):
        for array in (part.inputs, part.labels):
            np.asarray(array)


def on_disk(tmp_path, array):
    path = tmp_path / "array.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("place", [(0, 0, 0), (17, 1, 2), (COUNT - 1, 0, 1)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", FLOATS)
def test_an_input_that_is_not_finite_is_named_by_its_place(
    kind, value, place, mapped, tmp_path
):
    inputs = arrays(kind)["inputs"]
    read_all(loaded(**arrays(kind)))
    inputs[place] = value
    held = on_disk(tmp_path, inputs) if mapped else inputs
    said = (
        rf"inputs of example {place[0]} .* hold {value} at \[{place[1]}, {place[2]}\]"
    )
    with pytest.raises(UserError, match=said.replace("-", r"\-")):
        read_all(loaded(held, arrays()["labels"]))


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, v) for kind, values in WIDE.items() for v in values]
)
@pytest.mark.parametrize("part", ["inputs", "labels"])
@pytest.mark.parametrize("mapped", [False, True])
def test_whole_numbers_are_checked_before_they_are_cast(
    part, kind, value, mapped, tmp_path
):
    given = arrays()
    # Labels of sequences stay on disk; one label an example is read at once.
    given["labels"] = np.repeat(given["labels"][:, None], 3, axis=1)
    changed = given[part].astype(kind)
    read_all(loaded(**{**given, part: changed}))
    changed[11].flat[1] = value
    given[part] = on_disk(tmp_path, changed) if mapped else changed
    with pytest.raises(UserError, match=rf"{part} of example 11 .* hold {value}"):
        read_all(loaded(**given))


def test_ends_of_32_bits_are_held():
    labels = np.array([LIMIT, -LIMIT] * (COUNT // 2))
    found = loaded(arrays()["inputs"], labels)
    assert set(found.train.labels.tolist()) == {LIMIT, -LIMIT}
    targets = labels * 1e30
    with pytest.raises(
        UserError, match=r"labels of example .* must be finite in 32 bits"
    ):
        loaded(arrays()["inputs"], targets)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_label_may_be_unknown_and_an_infinite_one_is_refused(kind, mapped, tmp_path):
    labels = np.ones([COUNT, 2], kind)
    labels[3:30, 1] = np.nan
    held = on_disk(tmp_path, labels) if mapped else labels
    read_all(loaded(arrays()["inputs"], held))
    labels[11, 0] = np.inf
    held = on_disk(tmp_path, labels) if mapped else labels
    with pytest.raises(UserError, match=r"labels of example 11 .* inf at \[0\]"):
        read_all(loaded(arrays()["inputs"], held))


KINDS = {
    "masked": lambda a: np.ma.masked_where(np.indices(a.shape)[0] == 5, a),
    "complex": lambda a: a.astype(np.complex64),
    "object": lambda a: a.astype(object),
    "text": lambda a: a.astype(str),
    "time": lambda a: a.astype("datetime64[s]"),
    "void": lambda a: a.astype(tf.bfloat16.as_numpy_dtype),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["inputs", "labels"])
@pytest.mark.parametrize("where", ["source", "given", "stored", "once"])
def test_arrays_of_no_numbers_are_refused_wherever_they_are_given(
    kind, part, where, tmp_path
):
    good = arrays()
    bad = {**good, part: KINDS[kind](np.asarray(good[part], np.int64))}
    with pytest.raises(UserError, match=rf"{part} are .*(masked array|have to be)"):
        if where == "source":
            loaded(**bad)
        elif where == "given":
            given = (bad["inputs"], bad["labels"])
            loaded(**good, given_validation=given, options={"split": "given"})
        elif where == "stored":
            write_arrays(tmp_path / "set", [(bad["inputs"], bad["labels"])])
            # Text may be stored, for a `preprocess` that makes numbers of it.
            stored = data.open_arrays(tmp_path / "set")
            read_all(loaded(stored.inputs, stored.labels))
        else:
            if kind == "object":  # a row of one label is a plain number
                bad["labels"] = bad["labels"][:, None]
            rows = list(zip(bad["inputs"], bad["labels"], strict=True))
            stored = stored_once(tmp_path / "set", lambda: rows)
            read_all(loaded(stored.inputs, stored.labels))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("missing", ["inputs", "labels"])
def test_inputs_and_labels_of_unequal_length(missing, mapped, tmp_path):
    given = arrays()
    given[missing] = given[missing][:-3]
    if mapped:
        given["inputs"] = on_disk(tmp_path, given["inputs"])
    with pytest.raises(UserError, match=r"has \d+ inputs and \d+ labels"):
        loaded(**given)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("preprocess", "is_right"),
    [
        (lambda rows: rows - rows.mean(0), False),
        (lambda rows: rows / np.linalg.norm(rows), False),
        (lambda rows: rows + np.random.default_rng().normal(size=rows.shape), False),
        (lambda rows: rows - rows.mean(1, keepdims=True), True),
        (lambda rows: rows @ np.full((rows.shape[-1], 3), 0.1, np.float32), True),
    ],
)
def test_a_preprocess_of_rows_together(preprocess, is_right, mapped, tmp_path):
    given = arrays()
    given["inputs"] = np.random.default_rng(0).random(given["inputs"].shape, "f")
    if mapped:
        given["inputs"] = on_disk(tmp_path, given["inputs"])
    refused = pytest.raises(UserError, match="must treat each row by itself")
    with contextlib.nullcontext() if is_right else refused:
        read_all(loaded(**given, preprocess=preprocess))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "preprocess", [lambda rows: rows[1:], lambda rows: rows[:0], lambda rows: rows[0]]
)
def test_a_preprocess_that_drops_rows(preprocess, mapped, tmp_path):
    given = arrays()
    if mapped:
        given["inputs"] = on_disk(tmp_path, given["inputs"])
    with pytest.raises(UserError, match=r"preprocess makes \d+ rows of \d+ examples"):
        read_all(loaded(**given, preprocess=preprocess))


def test_a_given_set_without_examples():
    empty = tuple(array[:0] for array in arrays().values())
    for split in ("validation", "test"):
        options = {"split": "given"} if split == "validation" else {"test": "given"}
        with pytest.raises(UserError, match=f"{split} set of .* has no example"):
            loaded(**arrays(), **{f"given_{split}": empty}, options=options)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 3, 1), (6,)])
def test_a_given_set_has_inputs_of_the_shape_of_training(split, shape):
    given = {f"given_{split}": (np.ones((4, *shape), "f"), np.arange(4) % 2)}
    options = {"split": "given"} if split == "validation" else {"test": "given"}
    with pytest.raises(UserError, match=rf"to train on, .* in its {split} set"):
        loaded(**arrays(), **given, options=options)


def indicators(labels):
    labels[17, 1] = 2
    return objectives.build("sigmoid_cross_entropy"), labels


def negative_weights(labels):
    def weights(labels):
        return tf.cast(labels, tf.float32) - 0.5

    return replace(objectives.build("sigmoid_cross_entropy"), weights=weights), labels


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (indicators, "label of data set .* is 2: .* from 0 to 1"),
        (negative_weights, "weights .* from -0.5 to .* at least 0"),
    ],
)
def test_labels_in_files_are_checked_against_the_objective(
    change, message, mapped, tmp_path
):
    objective, labels = change(np.eye(2, dtype=np.int32)[np.arange(COUNT) % 2])
    held = on_disk(tmp_path, labels) if mapped else labels
    dataset = loaded(arrays()["inputs"], held)
    task = Task(
        network=lambda: models.build("mlp", (2, 3), 2, widths=(3,)),
        optimizer=lambda: optim.build("sgd"),
        dataset=dataset,
        objective=objective,
    )
    with pytest.raises(UserError, match=message):
        Program(task, DeviceData(dataset, one_device()), 8)
    with pytest.raises(UserError, match=message):
        Program(task, StreamedData(dataset, one_device()), 8)


@pytest.mark.parametrize("number", [2.5, True, "3", np.float64(4), -1])
@pytest.mark.parametrize(
    "name", ["validation_examples", "test_examples", "training_examples"]
)
def test_numbers_of_examples_are_whole(name, number):
    with pytest.raises(UserError, match=f"{name} of data set .* whole number"):
        loaded(**arrays(), options={name: number, "test": "carved"})
    with pytest.raises(UserError, match=r"classes of data set .* whole number"):
        loaded(**arrays(), classes=number)
    with pytest.raises(UserError, match=r"examples is .* whole number"):
        data.load("synthetic", examples=number)
    loaded(**arrays(), validation=np.int64(4), classes=np.int32(2))


def endless():
    return ((np.ones(2, np.float32), np.int32(n % 2)) for n in itertools.count())


SPECS = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32))
SOURCES = {
    "generator": endless,
    "from_generator": lambda: tf.data.Dataset.from_generator(
        endless, output_signature=SPECS
    ),
    "repeated": lambda: few().repeat(),
    "filtered": lambda: few().repeat().filter(lambda x, y: True),
    "prefetched": lambda: few().repeat().prefetch(2),
}


def few():
    return tf.data.Dataset.from_tensor_slices((np.ones([5, 2], "f"), np.arange(5)))


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_may_have_no_end_needs_a_number(source, tmp_path):
    with pytest.raises(UserError, match=r"may have no end: give .* count="):
        stored_once(tmp_path / "set", SOURCES[source])
    assert not any(tmp_path.iterdir())
    assert len(stored_once(tmp_path / "set", SOURCES[source], 7).labels) == 7
    assert len(stored_once(tmp_path / "set", SOURCES[source]).labels) == 7
    with pytest.raises(UserError, match="holds 7 examples and count is 8"):
        stored_once(tmp_path / "set", SOURCES[source], 8)


def test_a_source_of_known_length_is_read_to_its_end(tmp_path):
    assert len(stored_once(tmp_path / "whole", few).labels) == 5
    assert len(stored_once(tmp_path / "some", few, 3).labels) == 3
    with pytest.raises(UserError, match="holds 5 examples and count is 6"):
        stored_once(tmp_path / "none", few, 6)
    with pytest.raises(UserError, match="count is 2.5; it must be a whole number"):
        stored_once(tmp_path / "other", few, 2.5)


@pytest.mark.parametrize("example", [{"x": 1, "y": 2}, (1, 2, 3), 5, [1], "ab"])
def test_what_is_stored_are_pairs(example, tmp_path):
    with pytest.raises(UserError, match="no pair"):
        stored_once(tmp_path / "set", lambda: [example])


@pytest.mark.parametrize("shape", [(8, 0), (8, 3, 0)])
def test_examples_without_a_number_are_refused(shape):
    with pytest.raises(UserError, match="inputs of a Source are of shape .*without"):
        data.Source(np.zeros(shape, np.float32), np.arange(8) % 2, 2, 2)


@pytest.mark.parametrize("part", ["inputs", "labels", "given_test"])
@pytest.mark.parametrize("kind", ["pandas", "tensor", "h5py"])
def test_what_does_not_have_rows_by_their_place_is_refused(tmp_path, kind, part):
    held = arrays()["inputs"][:, 0, 0], arrays()["labels"]
    shuffled = np.random.default_rng(0).permutation(COUNT)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        made = {
            "pandas": lambda array: pd.Series(array, shuffled),
            "tensor": tf.constant,
            "h5py": lambda array: file.create_dataset("rows", data=array),
        }[kind]
        given = dict(zip(("inputs", "labels"), held, strict=True))
        if part == "given_test":
            given |= {part: (held[0], made(held[1])), "options": {"test": "given"}}
        else:
            given[part] = made(given[part])
        with pytest.raises(UserError, match=r"of a Source are .* numpy\.asarray"):
            loaded(**given)
