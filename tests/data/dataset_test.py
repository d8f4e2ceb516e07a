"""Data sets by name: what every one keeps, and what the errors say."""

from __future__ import annotations

import itertools
import unittest

import numpy as np
import pytest
from absl.testing import parameterized

from dps_tf import data
from dps_tf.core import UserError
from dps_tf.data import Examples, Source, Whitening, content_hash
from tests.data import raw_files

EMBEDDED = ("digits", "synthetic")


class EmbeddedTest(parameterized.TestCase):
    @parameterized.parameters(*EMBEDDED)
    def test_has_the_types_and_ranges_of_the_contract(self, name):
        dataset = data.load(name)
        for examples in (dataset.train, dataset.validation):
            self.assertEqual(examples.inputs.dtype, np.float32)
            self.assertEqual(examples.labels.dtype, np.int32)
            self.assertEqual(examples.inputs.shape[1:], dataset.input_shape)
            self.assertEqual(set(examples.labels), set(range(dataset.classes)))

    @parameterized.parameters(*EMBEDDED)
    def test_same_arguments_give_the_same_content(self, name):
        first, second = data.load(name), data.load(name)
        self.assertEqual(first.content_hash, second.content_hash)
        other = data.load(name, split_seed=1)
        self.assertNotEqual(first.content_hash, other.content_hash)
        self.assertEqual((first.split, other.split), ("seeded(0)", "seeded(1)"))

    def test_digits_are_whitened_and_split_as_documented(self):
        digits = data.load("digits")
        self.assertEqual((len(digits.train), len(digits.validation)), (1_500, 297))
        self.assertEqual(digits.input_shape, (8, 8, 1))
        both = np.concatenate([digits.train.inputs, digits.validation.inputs])
        self.assertAlmostEqual(both.mean(dtype=np.float64), 0.0, places=5)
        self.assertAlmostEqual(both.std(dtype=np.float64), 1.0, places=5)


class RegistryTest(parameterized.TestCase):
    @parameterized.parameters("mnist", "fashion_mnist", "cifar10", "tiny_shakespeare")
    def test_unprepared_set_names_the_command_that_prepares_it(self, name):
        folder = raw_files.new_folder(self)
        with self.assertRaises(UserError) as caught:
            data.load(name, folder)
        command = f"python -m dps_tf.prepare --dataset={name} --data_dir='{folder}'"
        self.assertEndsWith(str(caught.exception), command)
        with self.assertRaisesRegex(UserError, "needs --data_dir"):
            data.load(name)

    def test_half_made_folder_does_not_look_prepared(self):
        folder = raw_files.new_folder(self)
        (folder / "mnist" / "3.0.1.incompleteABC").mkdir(parents=True)
        (folder / ".preparing-mnist" / "tfds" / "mnist" / "3.0.1").mkdir(parents=True)
        with self.assertRaisesRegex(UserError, "is not prepared"):
            data.load("mnist", folder)

    def test_damaged_folder_is_named(self):
        folder = raw_files.new_folder(self) / "mnist" / "3.0.1"
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text("{")
        with self.assertRaisesRegex(UserError, f"cannot be read .*remove {folder}"):
            data.load("mnist", folder.parents[1])

    def test_an_unknown_split_gives_a_near_match(self):
        with self.assertRaisesRegex(UserError, "did you mean 'lee2021'"):
            data.load("digits", split="lee2020")

    def test_user_set_is_split_like_any_other_and_keeps_its_name(self):
        def tokens(data_dir, length=3):
            del data_dir
            inputs = np.arange(20 * length, dtype=np.int32).reshape(20, length)
            return Source(inputs, inputs + 1, 61, 5)

        data.register("tokens_for_test", tokens)
        dataset = data.load("tokens_for_test", length=4)
        self.assertEqual(dataset.train.labels.shape, (15, 4))
        np.testing.assert_array_equal(dataset.train.inputs + 1, dataset.train.labels)


def places(inputs: np.ndarray) -> list[int]:
    return inputs[:, 0].astype(int).tolist()


class TestSetTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data.register("numbers_for_test", cls.numbers)

    @staticmethod
    def numbers(data_dir, has: str = "both"):
        """20 examples, and sets of their own at 100 and at 200."""
        del data_dir
        own = [(np.arange(5.0)[:, None] + start, np.arange(5)) for start in (100, 200)]
        return Source(
            np.arange(20.0)[:, None],
            np.arange(20),
            20,
            4,
            preprocess=lambda inputs: inputs.astype(np.float32),
            given_validation=own[0] if has == "both" else None,
            given_test=(lambda: own[1]) if has == "both" else None,
        )

    def test_carved_test_set_leaves_the_validation_split_and_the_rest(self):
        without = data.load("numbers_for_test")
        for size, expected in ((None, 4), (3, 3)):
            found = data.load("numbers_for_test", test="carved", test_examples=size)
            self.assertLen(found.test, expected)
            np.testing.assert_array_equal(
                found.validation.inputs, without.validation.inputs
            )
            parts = (found.train, found.validation, found.test)
            together = sum((places(part.inputs) for part in parts), [])
            self.assertEqual(sorted(together), list(range(20)))
            self.assertNotEqual(found.content_hash, without.content_hash)
        self.assertIsNone(without.test)

    def test_given_sets_are_taken_whole_and_in_order(self):
        found = data.load("numbers_for_test", split="given", test="given")
        self.assertEqual(places(found.validation.inputs), list(range(100, 105)))
        self.assertEqual(places(found.test.inputs), list(range(200, 205)))
        self.assertEqual(sorted(places(found.train.inputs)), list(range(20)))
        self.assertEqual(found.split, "given")
        self.assertEqual(found.test.inputs.dtype, np.float32)
        carved = data.load("numbers_for_test", split="given", test="carved")
        together = places(carved.train.inputs) + places(carved.test.inputs)
        self.assertEqual(sorted(together), list(range(20)))
        self.assertLen(carved.test, 4)

    def test_evaluated_part_of_training_is_fixed_and_as_large_as_validation(self):
        found = data.load("numbers_for_test", test="given")
        part = found.evaluated("train")
        self.assertLen(part, 4)
        self.assertLess(set(places(part.inputs)), set(places(found.train.inputs)))
        again = data.load("numbers_for_test").evaluated("train")
        np.testing.assert_array_equal(part.inputs, again.inputs)
        np.testing.assert_array_equal(places(part.inputs), part.labels)
        self.assertIs(found.evaluated("validation"), found.validation)
        self.assertIs(found.evaluated("test"), found.test)

    @parameterized.parameters("seeded", "last", "given")
    def test_subsets_for_training_are_random_and_lie_in_larger_ones(self, split):
        def subset(count, seed=0):
            how = {"split": split, "split_seed": seed, "training_examples": count}
            found = data.load("numbers_for_test", **how)
            self.assertLen(found.train, count)
            return set(places(found.train.inputs)), places(found.validation.inputs)

        subsets = [subset(count) for count in (2, 4, 8, 16)]
        for (smaller, held), (larger, other) in itertools.pairwise(subsets):
            self.assertLess(smaller, larger)
            self.assertEqual(held, other)
        self.assertEqual(subset(8), subsets[2])
        self.assertNotEqual(subset(8, seed=1)[0], subsets[2][0])
        self.assertNotEqual(subsets[2][0], set(sorted(subsets[3][0])[:8]))

    def test_what_the_source_does_not_have_is_refused(self):
        for asked, message in (
            ({"split": "given"}, "no validation set of its own: bind workload.split"),
            ({"test": "given"}, "no test set of its own: bind workload.test to 'carve"),
        ):
            with self.assertRaisesRegex(UserError, message):
                data.load("numbers_for_test", has="neither", **asked)
        with self.assertRaisesRegex(UserError, "leave at least one of 20"):
            data.load("numbers_for_test", test="carved", test_examples=16)
        with self.assertRaisesRegex(UserError, "validation_examples is 3, and the spl"):
            data.load("numbers_for_test", split="given", validation_examples=3)
        with self.assertRaisesRegex(UserError, "has no split 'test'"):
            data.load("numbers_for_test").evaluated("test")

    def test_labels_keep_their_kind(self):
        for given, expected in (
            (np.arange(8, dtype=np.uint8), np.int32),
            (np.arange(8) % 2 == 0, np.int32),
            (np.linspace(0, 1, 8), np.float32),
        ):
            source = Source(np.zeros([8, 1]), given, 8, 2)
            labels = source.examples(np.arange(8)).labels
            self.assertEqual(labels.dtype, expected)
            np.testing.assert_allclose(labels, given)
        source = Source(np.zeros([2, 1]), np.array(["cat", "dog"]), 2, 1)
        with self.assertRaisesRegex(UserError, "labels are str.*whole numbers or"):
            source.examples(np.arange(2))


class ContentHashTest(unittest.TestCase):
    def test_sees_values_types_shapes_and_order(self):
        array = np.arange(6, dtype=np.int32)
        variants = [
            array,
            array[::-1],
            array.reshape(2, 3),
            array.astype(np.float32),
            array + 1,
        ]
        self.assertEqual(len({content_hash(v) for v in variants}), len(variants))
        self.assertNotEqual(content_hash(array, -array), content_hash(-array, array))

    def test_examples_of_different_counts_are_refused(self):
        with self.assertRaisesRegex(ValueError, "2 inputs, 3 labels"):
            Examples(np.zeros([2, 1]), np.zeros([3]))


class WhiteningTest(unittest.TestCase):
    def test_equals_the_formula_per_channel(self):
        pixels, _ = raw_files.random_images(7, (5, 4, 3))
        scaled = pixels / 255
        expected = (scaled - scaled.mean((0, 1, 2))) / scaled.std((0, 1, 2))
        whitened = Whitening.of(pixels)(pixels[2:4])
        self.assertEqual(whitened.dtype, np.float32)
        np.testing.assert_allclose(whitened, expected[2:4], rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    unittest.main()


def test_a_function_that_returns_no_source_is_refused(monkeypatch):
    monkeypatch.setitem(data.DATASETS._entries, "own", lambda data_dir: [1, 2])
    monkeypatch.setitem(data.DATASETS._reads, "own", {})
    with pytest.raises(UserError, match="'own' is a list; its function must return"):
        data.load("own")
