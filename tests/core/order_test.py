from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dps_tf.core import examples_at

SEEDS = st.integers(0, 2**63 - 1)


def stream(seed: int, examples: int, batch_size: int, count: int) -> np.ndarray:
    """Returns the first `count` examples that training sees."""
    steps = -(-count // batch_size)
    return examples_at(0, steps, seed, examples, batch_size).ravel()[:count]


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 400), st.integers(1, 900), st.integers(1, 4))
def test_each_epoch_is_a_permutation_whatever_the_batch_size(
    seed, examples, batch_size, epochs
):
    seen = stream(seed, examples, batch_size, epochs * examples)
    for epoch in seen.reshape(epochs, examples):
        assert np.array_equal(np.sort(epoch), np.arange(examples))


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 300), st.integers(1, 300), st.data())
def test_any_step_is_found_without_those_before_it(seed, examples, batch_size, data):
    first = data.draw(st.integers(0, 40))
    steps = data.draw(st.integers(0, 10))
    whole = examples_at(0, first + steps, seed, examples, batch_size)
    part = examples_at(first, steps, seed, examples, batch_size)
    assert part.shape == (steps, batch_size)
    assert part.dtype == np.int32
    assert np.array_equal(part, whole[first:])


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 50), st.integers(1, 7), st.integers(1, 7))
def test_batches_cut_one_stream_and_straddle_epochs(seed, examples, a, b):
    assert np.array_equal(
        stream(seed, examples, a, 3 * examples), stream(seed, examples, b, 3 * examples)
    )


def test_far_steps_need_no_more_than_near_ones():
    far = examples_at(10**9, 2, 5, 54_000, 512)
    assert far.min() >= 0 and far.max() < 54_000
    assert len(np.unique(far)) == 1024  # an epoch has no example twice


def test_epochs_and_seeds_differ():
    epochs = stream(1, 1000, 10, 3000).reshape(3, 1000)
    other = stream(2, 1000, 10, 1000)
    for a, b in itertools.combinations([*epochs, other], 2):
        assert (a == b).mean() < 0.01  # 1 of 1000 by chance


def evenness(orders: np.ndarray, bins: int) -> float:
    """Returns the p-value of every (share of places, share of examples) being as full.

    Args:
        orders: [draws, examples], permutations.
        bins: shares.
    """
    draws, examples = orders.shape
    share = np.arange(examples) * bins // examples
    table = np.zeros((bins, bins))
    np.add.at(table, (np.broadcast_to(share, orders.shape), share[orders]), 1)
    expected = draws * np.outer(np.bincount(share), np.bincount(share)) / examples
    # A permutation has no example twice, which narrows the counts by this much.
    statistic = ((table - expected) ** 2 / expected).sum() * (examples - 1) / examples
    return stats.chi2.sf(statistic, (bins - 1) ** 2)


@pytest.mark.parametrize(
    ("examples", "bins", "draws"), [(33, 33, 1500), (1437, 20, 200)]
)
def test_every_example_is_as_likely_at_every_place(examples, bins, draws):
    # Smaller sets than 33 are not quite even, as a Feistel network of few bits is not.
    seeds = np.stack([stream(seed, examples, 1, examples) for seed in range(draws)])
    assert evenness(seeds, bins) > 1e-3
    epochs = stream(3, examples, 1, draws * examples).reshape(draws, examples)
    assert evenness(epochs, bins) > 1e-3
    # A twentieth of the draws in the order of the data would be noticed.
    epochs[: draws // 20] = np.arange(examples)
    assert evenness(epochs, bins) < 1e-6


def test_neighbours_in_the_data_are_no_neighbours_in_the_order():
    # Files are often sorted by class: what is together there must not stay together.
    order = stream(4, 10_000, 1, 10_000)
    place = np.argsort(order)
    assert abs(np.corrcoef(place[:-1], place[1:])[0, 1]) < 0.04
    first_batch_classes = np.bincount(order[:1000] // 1000, minlength=10)
    assert stats.chisquare(first_batch_classes).pvalue > 1e-3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 2, 0, 10, 4), [[5, 0, 6, 4], [7, 1, 8, 9]]),
        ((1000, 1, 2**63 - 1, 54_000, 6), [[28409, 22025, 19108, 43995, 16883, 14046]]),
        ((3, 1, 42, 3, 7), [[0, 1, 2, 2, 1, 0, 2]]),
    ],
)
def test_order_is_frozen(arguments, expected):
    assert examples_at(*arguments).tolist() == expected
