from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from dps_tf.core import Space, UserError, points
from dps_tf.core.space import lee2021_unit_points

LEARNING_RATE = Space.from_dict({"learning_rate": ("log", 1e-4, 1.0)})


def space_of(dimensions: int) -> Space:
    return Space.from_dict({f"x{i}": ("linear", 0.0, 1.0) for i in range(dimensions)})


def rows(dimensions: int, seed: int, count: int) -> np.ndarray:
    found = points(space_of(dimensions), "sobol", seed, count)
    return np.array([list(point.values()) for point in found])


def burkardt(dimensions: int, count: int) -> np.ndarray:
    """Points from the definition: the XOR over the bits of the Gray code.

    Recurrences written out by hand for each polynomial, in exact binary fractions.
    """
    m = [[1] * 40, [1], [1, 1], [1, 3, 7]]
    for k in range(1, 40):
        m[1].append(2 * m[1][k - 1] ^ m[1][k - 1])
        if k >= 2:
            m[2].append(2 * m[2][k - 1] ^ 4 * m[2][k - 2] ^ m[2][k - 2])
        if k >= 3:
            m[3].append(4 * m[3][k - 2] ^ 8 * m[3][k - 3] ^ m[3][k - 3])
    found = np.zeros((count, dimensions))
    for index in range(1, count + 1):
        gray = index ^ index >> 1
        for j in range(dimensions):
            value = 0
            for bit in range(gray.bit_length()):
                if gray >> bit & 1:
                    value ^= m[j][bit] << (40 - bit - 1)
            found[index - 1, j] = value / 2**40
    return found


def test_published_first_points_in_four_dimensions():
    expected = [
        (0.5, 0.5, 0.5, 0.5),
        (0.75, 0.25, 0.75, 0.25),
        (0.25, 0.75, 0.25, 0.75),
        (0.375, 0.375, 0.625, 0.125),
    ]
    assert lee2021_unit_points(4, 4).tolist() == [list(row) for row in expected]


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_published_points_are_those_of_the_definition(dimensions):
    found = lee2021_unit_points(dimensions, 200)
    assert found.tolist() == burkardt(dimensions, 200).tolist()


def test_published_learning_rates_in_one_dimension():
    found = [p["learning_rate"] for p in points(LEARNING_RATE, "lee2021", 0, 100)]
    expected = [1e-2, 1e-1, 1e-3, 10**-2.5, 10**-0.5, 10**-1.5, 10**-3.5]
    assert found[:7] == pytest.approx(expected, rel=1e-12)
    assert min(found) == pytest.approx(1.15e-4, rel=0.01)
    assert max(found) == pytest.approx(0.93, rel=0.01)
    assert len(set(found)) == 100


@pytest.mark.parametrize(("dimensions", "agree"), [(1, True), (2, True), (3, False)])
def test_scipy_agrees_in_two_dimensions_only(dimensions, agree):
    engine = qmc.Sobol(dimensions, scramble=False)
    engine.fast_forward(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = engine.random(200)
    found = lee2021_unit_points(dimensions, 200)
    assert np.array_equal(found, expected) == agree
    assert np.array_equal(found[:, :2], expected[:, :2])


def test_published_points_do_not_depend_on_the_seed_and_follow_the_names():
    space = Space.from_dict(
        {"momentum": ("reverse_log", 0.9, 0.9999), "learning_rate": ("log", 1e-4, 1.0)}
    )
    assert points(space, "lee2021", 0, 9) == points(space, "lee2021", 7, 9)
    second = points(space, "lee2021", 0, 2)[1]
    assert second["momentum"] == pytest.approx(1 - 10 ** (-4 + 3 * 0.75))
    assert second["learning_rate"] == pytest.approx(10 ** (-4 + 4 * 0.25))


def test_published_points_are_refused_in_five_dimensions():
    with pytest.raises(UserError, match=r"one to four dimensions.*has 5"):
        points(space_of(5), "lee2021", 0, 1)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
def test_points_are_a_pure_function_of_seed_and_index(dimensions, seed, a, b):
    short, long = sorted((a, b))
    space = space_of(dimensions)
    longer = points(space, "sobol", seed, long)
    assert len(longer) == long
    assert points(space, "sobol", seed, short) == longer[:short]


@pytest.mark.parametrize("dimensions", [1, 4])
def test_scrambled_points_keep_the_balance_of_sobol(dimensions):
    # Each 2^k first points have one in each of 2^k slices of every dimension.
    found = rows(dimensions, 3, 64)
    for k in range(7):
        count = 2**k
        cells = np.sort(np.floor(found[:count] * count).astype(int), axis=0)
        assert (cells == np.arange(count)[:, None]).all(), k


def test_seed_0_is_a_seed_and_seeds_give_different_points():
    lists = [rows(2, seed, 16).tolist() for seed in (0, 0, 1, 2)]
    assert lists[0] == lists[1]
    assert len({str(found) for found in lists}) == 3


def test_first_points_are_frozen():
    # Another scipy that draws otherwise would make every recorded study another one.
    found = [p["learning_rate"] for p in points(LEARNING_RATE, "sobol", 0, 4)]
    expected = [
        0.004363132022556253,
        0.10338454487093009,
        0.017372497564934686,
        0.0004108893418957438,
    ]
    assert found == pytest.approx(expected, rel=1e-12)


def test_unknown_sequence_names_its_near_match():
    with pytest.raises(UserError, match=r"'sobool'.*did you mean 'sobol'"):
        points(LEARNING_RATE, "sobool", 0, 1)


def test_empty_space_is_refused():
    with pytest.raises(UserError, match="space is empty"):
        points(Space(()), "sobol", 0, 1)
