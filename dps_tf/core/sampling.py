"""Which points a study draws: quasi-random, each a pure function of (seed, index)."""

from __future__ import annotations

import numpy as np
from scipy.stats import qmc

from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.space import Space

SEQUENCES = ("sobol", "lee2021")

# Direction numbers m of the published points (Burkardt's table), as bits of a 31-bit
# fraction; dimension 1 is the van der Corput sequence.
# dimension: (degree, inner coefficients of the primitive polynomial, initial m)
_LEE2021 = {2: (1, (), (1,)), 3: (2, (1,), (1, 1)), 4: (3, (0, 1), (1, 3, 7))}
_BITS = 31


def points(
    space: Space, sequence: str, seed: int, count: int
) -> list[dict[str, float]]:
    """Returns the first `count` points of a study.

    The list is prefix-stable: point i is the same for every `count`.

    Args:
        space: the tuned names in the order in which dimensions are given out.
        sequence: `sobol` is scipy's Sobol sequence, scrambled by `seed`; `lee2021` is
            exactly the published list of Lee et al. 2021 (unscrambled Sobol without
            the origin, Burkardt's direction numbers), the same for every seed.
        seed: study seed; 0 is a seed.
        count: number of points, at least 0.

    Raises:
        UserError: unknown sequence, or `lee2021` in more than four dimensions.
    """
    if sequence not in SEQUENCES:
        raise UserError(
            f"sequence {sequence!r} is unknown: {near_matches(sequence, SEQUENCES)}."
        )
    dimensions = len(space.parameters)
    if dimensions == 0:
        raise UserError("the space is empty: give at least one tuned metaparameter.")
    if sequence == "lee2021":
        unit = lee2021_unit_points(dimensions, count)
    else:
        unit = _scrambled_sobol(dimensions, seed, count)
    return [space.from_unit(row) for row in unit]


def _scrambled_sobol(dimensions: int, seed: int, count: int) -> np.ndarray:
    """Returns [count, dimensions] in [0, 1)."""
    rng = np.random.default_rng(seed)
    engine = qmc.Sobol(d=dimensions, scramble=True, rng=rng)
    # One at a time: a draw whose length is no power of two makes scipy warn, and the
    # loss of balance it warns of is the price of a prefix-stable list.
    rows = [engine.random(1)[0] for _ in range(count)]
    return np.asarray(rows, np.float64).reshape(count, dimensions)


def lee2021_unit_points(dimensions: int, count: int) -> np.ndarray:
    """Returns [count, dimensions] in (0, 1): Gray-code Sobol without the origin.

    Source: Lee et al. 2021, published code (`skip=2` of its Sobol routine drops only
    the origin). Refused in more than four dimensions, where it published nothing.
    """
    if not 1 <= dimensions <= 4:
        raise UserError(
            f"sequence 'lee2021' has one to four dimensions, and the space has "
            f"{dimensions}; use 'sobol'."
        )
    directions = [_direction_numbers(j + 1) for j in range(dimensions)]
    state = [0] * dimensions
    rows = np.empty((count, dimensions), np.float64)
    for index in range(count):
        # Position of the lowest zero bit of index: the bit the Gray code flips next.
        bit = ((~index) & (index + 1)).bit_length() - 1
        state = [x ^ v[bit] for x, v in zip(state, directions, strict=True)]
        rows[index] = state
    return rows / 2.0**_BITS


def _direction_numbers(dimension: int) -> list[int]:
    """Returns the _BITS direction numbers of one dimension, as _BITS-bit integers."""
    if dimension == 1:
        return [1 << (_BITS - 1 - i) for i in range(_BITS)]
    degree, inner, initial = _LEE2021[dimension]
    m = list(initial)
    for i in range(degree, _BITS):
        value = m[i - degree] ^ (m[i - degree] << degree)
        for k, coefficient in enumerate(inner, start=1):
            value ^= (m[i - k] << k) * coefficient
        m.append(value)
    return [m[i] << (_BITS - 1 - i) for i in range(_BITS)]
