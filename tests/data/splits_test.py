"""Splits are disjoint, complete, repeatable, and one of them is the published one."""

from __future__ import annotations

import numpy as np
from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.data.dataset import split_indices


class SplitsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("seeded", 60_000, 6_000),
        ("seeded", 2, 1),
        ("seeded", 10, 9),
        ("first", 60_000, 5_000),
        ("last", 10, 9),
        ("lee2021", 60_000, 6_000),
        ("lee2021", 50_000, 5_000),
        ("lee2021", 1_797, 179),
    )
    def test_every_example_is_on_one_side(self, split, examples, validation):
        for test in {0, min(validation, examples - validation - 1)}:
            parts = split_indices(split, examples, validation, 0, test)
            sizes = [examples - validation - test, validation, test]
            self.assertEqual([len(part) for part in parts], sizes)
            every = np.concatenate(parts)
            np.testing.assert_array_equal(np.sort(every), np.arange(examples))

    def test_lee2021_is_the_published_shuffle_of_a_list(self):
        order = list(range(60_000))
        np.random.RandomState(0).shuffle(order)  # noqa: NPY002
        train, validation, _ = split_indices("lee2021", 60_000, 6_000, 0)
        self.assertEqual(validation.tolist(), order[:6_000])
        self.assertEqual(train.tolist(), order[6_000:])
        self.assertEqual(validation[:4].tolist(), [3048, 19563, 58303, 8870])

    def test_seeded_split_is_frozen(self):
        """Another split here would change the validation set of stored studies."""
        for test in (0, 3):
            _, validation, _ = split_indices("seeded", 10, 4, 0, test)
            self.assertEqual(validation.tolist(), [3, 2, 1, 8])

    def test_seed_decides_and_zero_is_a_seed(self):
        zero, again, one = (split_indices("seeded", 99, 9, s)[1] for s in (0, 0, 1))
        np.testing.assert_array_equal(zero, again)
        self.assertFalse(np.array_equal(zero, one))

    @parameterized.parameters(("first", range(4)), ("last", range(16, 20)))
    def test_ends_of_the_file_are_held_out_whatever_the_seed(self, split, held):
        for seed in (0, 1):
            train, validation, test = split_indices(split, 20, 4, seed, 3)
            self.assertCountEqual(validation.tolist(), held)
            rest = [i for i in split_indices("seeded", 20, 1, seed)[0] if i not in held]
            self.assertEqual([*test, *train][-len(rest) :], rest)

    @parameterized.parameters(0, -1, 10, 11)
    def test_empty_side_is_refused(self, validation):
        with self.assertRaisesRegex(UserError, "at least one of 10"):
            split_indices("seeded", 10, validation, 0)

    @parameterized.parameters((6_001, 0), (6_000, 1))
    def test_published_split_has_no_choice(self, validation, seed):
        with self.assertRaisesRegex(UserError, r"the published one: .*\(6000\)"):
            split_indices("lee2021", 60_000, validation, seed)
