from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dps_tf.core import UserError
from dps_tf.sparsity import Candidates
from dps_tf.sparsity.prunable import VariableRole
from dps_tf.sparsity.selection import choose, kept_count, select

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
                choose("global", candidates(scores), sparsity, {})
            return
        masks = choose("global", candidates(scores), sparsity, {})
        self.assertEqual([m.shape for m in masks], [s.shape for s in scores])
        self.assertAllEqual(flat(masks), by_sorting(flat(scores), kept))
        pruned = flat(scores)[flat(masks) == 0]
        if pruned.size:
            self.assertGreaterEqual(flat(scores)[flat(masks) == 1].min(), pruned.max())

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

    def test_one_survivor_and_none(self):
        self.assertEqual(select([np.arange(10.0)], 0.9)[0].sum(), 1)
        with self.assertRaisesRegex(UserError, "keeps none of 10"):
            choose("global", candidates([np.arange(10.0)]), 0.96, {})

    @parameterized.parameters(1.0, -0.1, 2.0)
    def test_sparsity_outside_of_its_range_is_refused(self, sparsity):
        with self.assertRaisesRegex(UserError, "outside of"):
            select([np.arange(10.0)], sparsity)

    def test_nan_scores_are_refused(self):
        with self.assertRaisesRegex(UserError, "variable 1 are NaN"):
            scores = [np.zeros(2), np.array([np.nan, 1.0])]
            choose("global", candidates(scores), 0.5, {})


KERNELS = st.lists(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=5),
        elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, -1.0]),
    ),
    min_size=1,
    max_size=3,
)


def candidates(scores, allowed=None):
    roles = [
        VariableRole(f"l{i}/kernel", f"l{i}", "kernel") for i in range(len(scores))
    ]
    return Candidates(scores, roles, allowed)


def best_of_blocks(score, n, m):
    """The same, column by column and block by block."""
    columns = score.reshape(-1, score.shape[-1])
    mask = np.zeros(columns.shape, np.float32)
    for output in range(columns.shape[1]):
        for start in range(0, len(columns), m):
            block = list(columns[start : start + m, output])
            kept = n if len(block) == m else int(np.ceil(len(block) * n / m))
            order = sorted(range(len(block)), key=lambda i, b=block: (-b[i], i))
            mask[[start + i for i in order[:kept]], output] = 1
    return mask.reshape(score.shape)


class SelectionsTest(tf.test.TestCase, parameterized.TestCase):
    @given(KERNELS, st.sampled_from([(1, 2), (2, 4), (1, 4), (3, 4), (2, 6)]))
    @settings(deadline=None)
    def test_n_of_m_is_that_of_a_loop_over_columns_and_blocks(self, scores, numbers):
        n, m = numbers
        masks = choose("n_of_m", candidates(scores), 1 - n / m, {"m": m})
        for mask, score in zip(masks, scores, strict=True):
            self.assertAllEqual(mask, best_of_blocks(score, n, m))

    def test_n_of_m_keeps_what_is_allowed_before_what_scores(self):
        score = np.array([[4.0], [3.0], [2.0], [1.0]])
        allowed = np.array([[0.0], [1.0], [0.0], [1.0]])
        (mask,) = choose("n_of_m", candidates([score], [allowed]), 0.5, {"m": 4})
        self.assertAllEqual(mask, allowed)

    @given(KERNELS, SPARSITY)
    @settings(deadline=None)
    def test_filters_are_whole_and_the_best_by_their_mean(self, scores, sparsity):
        total, hidden = flat(scores).size, sum(score.size for score in scores[:-1])
        if not hidden or sparsity * total >= hidden:
            with self.assertRaisesRegex(UserError, "keeps the last kernel whole"):
                choose("filters", candidates(scores), sparsity, {})
            return
        masks = choose("filters", candidates(scores), sparsity, {})
        self.assertAllInSet(masks[-1], [1.0])
        rounding = 0.0
        for mask, score in zip(masks[:-1], scores[:-1], strict=True):
            outputs = score.shape[-1]
            means = [float(score[..., i].astype(float).mean()) for i in range(outputs)]
            order = sorted(range(outputs), key=lambda i, m=means: (-m[i], i))
            kept = {i for i in range(outputs) if mask[..., i].any()}
            self.assertEqual(kept, set(order[: len(kept)]))
            self.assertTrue(all(mask[..., i].all() for i in kept))
            rounding += score.size / outputs  # one is kept where none would be
        realised = 1 - flat(masks).mean()
        self.assertLessEqual(abs(realised - sparsity), rounding / total + 1e-9)

    def test_filters_of_a_depthwise_kernel_are_channels_that_may_stay(self):
        means = np.array([4.0, 3.0, 2.0, 1.0, 8.0])  # the last channel must not return
        scores = [np.ones((3, 3, 5, 1)) * means[:, None], np.ones((5, 1))]
        allowed = [np.ones((3, 3, 5, 1)) * (means[:, None] < 8), scores[1]]
        names = ("d/depthwise_kernel", "l/kernel")
        roles = [VariableRole(name, name[0], "kernel") for name in names]
        mask, _ = choose("filters", Candidates(scores, roles, allowed), 0.54, {})
        self.assertAllEqual(mask, allowed[0] * (means[:, None] > 2))

    @parameterized.parameters(("n_of_m", {"m": 2}), ("filters", {}))
    def test_biases_have_no_inputs(self, name, arguments):
        roles = [VariableRole("l/bias", "l", "bias")]
        with self.assertRaisesRegex(UserError, "no meaning for l/bias"):
            choose(name, Candidates([np.ones(3)], roles), 0.5, arguments)
