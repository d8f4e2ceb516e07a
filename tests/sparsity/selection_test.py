from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dps_tf.core.errors import UserError
from dps_tf.sparsity.selection import kept_count, select

# Few distinct values, so that ties are common.
SCORES = st.lists(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(max_dims=3, max_side=6),
        elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, -1.0, np.inf]),
    ),
    min_size=1,
    max_size=4,
)
SPARSITY = st.floats(0, 0.95)


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


def by_sorting(scores, kept):
    """The same by a stable sort of all entries, largest first."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    mask = np.zeros(len(scores), np.float32)
    mask[order[:kept]] = 1
    return mask


class SelectTest(tf.test.TestCase, parameterized.TestCase):
    @given(SCORES, SPARSITY)
    @settings(deadline=None)
    def test_kept_are_those_that_a_stable_sort_puts_first(self, scores, sparsity):
        kept = kept_count(flat(scores).size, sparsity)
        if kept == 0:
            with self.assertRaises(UserError):
                select(scores, sparsity)
            return
        masks = select(scores, sparsity)
        self.assertEqual([m.shape for m in masks], [s.shape for s in scores])
        self.assertAllEqual(flat(masks), by_sorting(flat(scores), kept))
        pruned = flat(scores)[flat(masks) == 0]
        if pruned.size:
            self.assertGreaterEqual(flat(scores)[flat(masks) == 1].min(), pruned.max())

    @given(SCORES, SPARSITY, SPARSITY)
    @settings(deadline=None)
    def test_the_kept_set_shrinks_with_sparsity(self, scores, one, other):
        low, high = sorted((one, other))
        if kept_count(flat(scores).size, high) == 0:
            return
        inner, outer = flat(select(scores, high)), flat(select(scores, low))
        self.assertAllInSet(outer[inner == 1], [1.0])

    @given(SCORES, SPARSITY)
    @settings(deadline=None)
    def test_layers_keep_their_own_counts(self, scores, sparsity):
        layers = [place % 2 for place in range(len(scores))]
        sizes = [
            sum(s.size for s, own in zip(scores, layers, strict=True) if own == label)
            for label in (0, 1)
        ]
        if not any(kept_count(size, sparsity) for size in sizes):
            return
        masks = select(scores, sparsity, layers)
        for label in (0, 1):
            pairs = zip(masks, layers, strict=True)
            kept = sum(int(m.sum()) for m, own in pairs if own == label)
            self.assertEqual(kept, kept_count(sizes[label], sparsity))

    def test_only_allowed_entries_are_kept_even_at_minus_infinity(self):
        scores = [np.array([5.0, -np.inf, 3.0, -np.inf, -np.inf])]
        among = [np.array([0.0, 0.0, 1.0, 1.0, 1.0])]
        self.assertAllEqual(select(scores, 0.6, among=among)[0], [0, 0, 1, 1, 0])
        with self.assertRaisesRegex(ValueError, "only 3"):
            select(scores, 0.0, among=among)

    @parameterized.parameters(
        (62_346, 0.9, 6_235), (75_050, 0.9, 7_505), (62_346, 0.5, 31_173), (9, 0.0, 9)
    )
    def test_published_counts(self, entries, sparsity, kept):
        self.assertEqual(kept_count(entries, sparsity), kept)

    def test_one_survivor_and_none(self):
        self.assertEqual(select([np.arange(10.0)], 0.9)[0].sum(), 1)
        with self.assertRaisesRegex(UserError, "keeps none of 10"):
            select([np.arange(10.0)], 0.96)

    @parameterized.parameters(1.0, -0.1, 2.0)
    def test_sparsity_outside_of_its_range_is_refused(self, sparsity):
        with self.assertRaisesRegex(UserError, "outside of"):
            select([np.arange(10.0)], sparsity)

    def test_nan_scores_are_refused(self):
        with self.assertRaisesRegex(UserError, "variable 1 are NaN"):
            select([np.zeros(2), np.array([np.nan, 1.0])], 0.5)


if __name__ == "__main__":
    tf.test.main()
