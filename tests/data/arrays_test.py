"""Mapped arrays: written batch by batch, opened without being read, checked in full."""

from __future__ import annotations

import hashlib
import io
import json
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf import data
from dps_tf.core import UserError
from dps_tf.data import DecodedRows, Source, open_arrays, write_arrays
from dps_tf.data.arrays import has_arrays, verify_arrays


def example_set(count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (count, 3, 2), np.uint8)
    return inputs, generator.integers(0, 5, count)


@given(st.lists(st.integers(0, 20), max_size=4))
def test_set_is_the_same_however_it_was_cut(tmp_path_factory, cuts):
    inputs, labels = example_set()
    folders = [tmp_path_factory.mktemp("set") for _ in range(2)]
    write_arrays(folders[0], [(inputs, labels)])
    bounds = sorted({0, *cuts, 20})
    write_arrays(
        folders[1],
        ((inputs[a:b], labels[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)),
        {"made": "in parts"},
    )
    one, other = map(open_arrays, folders)
    np.testing.assert_array_equal(other.inputs, inputs)
    np.testing.assert_array_equal(other.labels, labels)
    assert (other.inputs.dtype, other.labels.dtype) == (inputs.dtype, labels.dtype)
    assert one.content == other.content
    assert other.facts == {"made": "in parts"}
    verify_arrays(folders[1])


def test_content_follows_values_types_and_shapes(tmp_path):
    inputs, labels = example_set()
    variants = [
        (inputs, labels),
        (inputs[::-1], labels),
        (inputs, labels.astype(np.int32)),
        (inputs.reshape(20, 6), labels),
    ]
    found = set()
    for number, variant in enumerate(variants):
        write_arrays(tmp_path / str(number), [variant])
        found.add(open_arrays(tmp_path / str(number)).content)
    assert len(found) == len(variants)


def test_a_set_that_was_not_finished_is_none(tmp_path):
    inputs, labels = example_set()
    write_arrays(tmp_path, [(inputs, labels)])

    def cut_short():
        yield inputs, labels
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_arrays(tmp_path, cut_short())
    assert not has_arrays(tmp_path)


def test_damage_is_found(tmp_path):
    write_arrays(tmp_path, [example_set()])
    path = tmp_path / "inputs.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    open_arrays(tmp_path)  # reads nothing of it
    with pytest.raises(UserError, match=r"inputs.bin has changed .* prepare the set"):
        verify_arrays(tmp_path)
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"inputs.bin does not have the size"):
        open_arrays(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest.json cannot be read"):
        open_arrays(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="another version"):
        open_arrays(tmp_path)


@pytest.mark.parametrize("other", [np.zeros([1, 2, 3], np.uint8), np.zeros([1, 3, 2])])
def test_batches_of_several_kinds_are_refused(tmp_path, other):
    inputs, labels = example_set()
    with pytest.raises(ValueError, match="inputs of several types or shapes"):
        write_arrays(tmp_path, [(inputs, labels), (other, labels[:1])])
    with pytest.raises(ValueError, match="20 inputs, 19 labels"):
        write_arrays(tmp_path, [(inputs, labels[1:])])


def load(source: Source, **arguments) -> data.Dataset:
    with mock.patch.dict(data.DATASETS._entries):
        data.register("set of this test", lambda data_dir: source)
        return data.load("set of this test", **arguments)


def test_a_set_with_a_manifest_is_known_without_being_read(tmp_path):
    write_arrays(tmp_path, [example_set()])
    opened = open_arrays(tmp_path)

    class Unread(np.memmap):
        def __getitem__(self, key):
            raise AssertionError("examples were read")

    def source(content: str) -> Source:
        unread = opened.inputs.view(Unread)
        return Source(unread, opened.labels, 5, 4, content=content)

    with mock.patch("dps_tf.data.dataset._taken", lambda array, *_: array):
        one = load(source(opened.content))
        assert one.content_hash == load(source(opened.content)).content_hash
        other_split = load(source(opened.content), split_seed=1)
        other_set = load(source("another"))
    assert len({d.content_hash for d in (one, other_split, other_set)}) == 3


def test_records_are_decoded_when_they_are_read(tmp_path):
    arrays = [np.full((2, 3), i, np.float32) for i in range(8)]
    records, decoded = [], []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        records.append(file.getvalue())

    def decode(record: bytes) -> np.ndarray:
        decoded.append(hashlib.md5(record, usedforsecurity=False).hexdigest())
        return np.load(io.BytesIO(record))

    rows = DecodedRows(records, decode)
    assert (rows.shape, rows.dtype, len(rows)) == ((8, 2, 3), np.float32, 8)
    assert len(decoded) == 1
    loaded = load(Source(rows, np.arange(8) % 2, 2, 3, content="records"))
    assert len(decoded) <= 3  # one more for each split's shape
    whole = np.asarray(loaded.train.inputs)
    assert sorted(whole[:, 0, 0]) == sorted(set(range(8)) - held(loaded))


def held(dataset: data.Dataset) -> set[float]:
    return set(np.asarray(dataset.validation.inputs)[:, 0, 0])
