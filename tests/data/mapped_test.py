"""Sets that are mapped from files equal those in memory, and stay in the files."""

from __future__ import annotations

import hashlib
import itertools
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from dps_tf import data
from dps_tf.data import MappedRows, Source, Whitening, content_hash, transforms
from dps_tf.data import dataset as datasets

COUNT = 60
NUMBERS = itertools.count()


def pixels() -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (COUNT, 3, 4, 2), np.uint8)


class MappedRowsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.array = pixels()
        self.indices = np.random.default_rng(1).permutation(COUNT)[:41]
        whitening = Whitening.of(self.array)
        self.read: list[int] = []

        def noted(rows: np.ndarray) -> np.ndarray:
            self.read.append(len(rows))
            return whitening(rows)

        self.rows = MappedRows(self.array, self.indices, noted)
        self.expected = whitening(self.array[self.indices])

    def test_describes_itself_like_the_array(self):
        for name in ("shape", "dtype", "ndim", "size", "nbytes"):
            self.assertEqual(getattr(self.rows, name), getattr(self.expected, name))
        self.assertLen(self.rows, 41)

    @parameterized.parameters(
        (slice(3, 20),),
        (slice(None, None, 7),),
        (slice(5, 5),),
        (np.array([4, 0, 4, -1]),),
        (np.arange(6).reshape(2, 3),),
        (np.int64(2),),
        (np.arange(41) % 3 == 0,),
    )
    def test_indexing_is_that_of_the_array(self, key):
        np.testing.assert_array_equal(np.asarray(self.rows[key]), self.expected[key])

    def test_slices_of_slices_and_other_types(self):
        view = self.rows[10:30][5:]
        np.testing.assert_array_equal(view, self.expected[15:30])
        self.assertEqual(np.asarray(view, np.float64).dtype, np.float64)
        with pytest.raises(ValueError, match="without a copy"):
            view.__array__(copy=False)

    def test_only_what_is_asked_for_is_read(self):
        self.assertEqual(self.read, [1])
        view = self.rows[4:40]
        self.assertEqual(self.read, [1])
        _ = view[np.arange(5)]
        self.assertEqual(self.read, [1, 5])


class MappedSetTest(parameterized.TestCase):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    def mapped(self, array: np.ndarray, name: str) -> np.ndarray:
        np.save(self.path / f"{name}.npy", array)
        return np.load(self.path / f"{name}.npy", mmap_mode="r")

    def load(self, source: Source) -> data.Dataset:
        name = f"mapped set {next(NUMBERS)}"
        data.register(name, lambda data_dir: source)
        return data.load(name)

    def check(self, one: data.Dataset, other: data.Dataset) -> None:
        self.assertEqual(one.content_hash, other.content_hash)
        self.assertEqual(one.input_shape, other.input_shape)
        for split in ("train", "validation"):
            whole, mapped = getattr(one, split), getattr(other, split)
            np.testing.assert_array_equal(whole.inputs, mapped.inputs)
            np.testing.assert_array_equal(whole.labels, mapped.labels)

    def test_images_stay_bytes_in_their_file(self):
        array, labels = pixels(), np.arange(COUNT) % 10
        file = self.mapped(array, "images")
        whitening = Whitening.of(array)
        one = self.load(Source(array, labels, 10, 12, whitening))
        other = self.load(Source(file, labels, 10, 12, whitening))
        self.check(one, other)
        self.assertIsInstance(other.train.inputs, MappedRows)
        self.assertIsInstance(other.train.labels, np.ndarray)

    def test_tokens_and_their_labels_stay_in_files(self):
        tokens = np.random.default_rng(0).integers(0, 9, (COUNT, 5))
        inputs, labels = tokens[:, :-1].astype(np.int32), tokens[:, 1:]
        one = self.load(Source(inputs, labels, 9, 12))
        files = self.mapped(inputs, "inputs"), self.mapped(labels, "labels")
        other = self.load(Source(*files, 9, 12))
        self.check(one, other)
        self.assertIsInstance(other.train.labels, MappedRows)

    def test_labels_of_examples_come_into_memory(self):
        """Methods of pruning compare all of them with a class."""
        labels = self.mapped(np.arange(COUNT) % 10, "labels")
        found = self.load(Source(pixels(), labels, 10, 12)).train.labels
        self.assertIs(type(found), np.ndarray)

    @parameterized.parameters(1, 50, 10_000)
    def test_content_is_that_of_whole_arrays_however_it_is_read(self, size):
        arrays = (pixels(), np.arange(7.0), np.zeros([0, 3]))
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.tobytes())
        with mock.patch.object(datasets, "_HASHED_BYTES", size):
            self.assertEqual(content_hash(*arrays), digest.hexdigest())

    def test_whitening_is_that_of_all_pixels_however_they_are_counted(self):
        whole = Whitening.of(pixels())
        with mock.patch.object(transforms, "_COUNTED_IMAGES", 7):
            parts = Whitening.of(self.mapped(pixels(), "images"))
        np.testing.assert_array_equal(whole.table, parts.table)
