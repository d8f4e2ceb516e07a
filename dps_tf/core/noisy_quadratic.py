"""The noisy quadratic model: expected loss curves in closed form, without training.

The loss is (1/2) sum_i h_i theta_i^2 with curvatures h_i = 1/i, i = 1 .. dimensions,
grouped into geometric bins. A batch of B adds gradient noise of variance h_i / B to
coordinate i, and E[theta_i^2] = 1 at the start. Updates are preconditioned with p_i =
h_i^(-power). With x = lr p h and n = (lr p)^2 h / B, one step is a linear map of the
second moments of a coordinate, plus n. So the expected loss of a step needs no step
before it.

Source: Zhang et al. 2019 (arXiv 1907.04164) and its published code (equations 21, 38).
Deviation: powers of the maps are taken by repeated squaring and not from eigenvectors,
which momentum lacks where two eigenvalues meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dps_tf.core.errors import UserError, check_known, check_positive, check_whole

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]


def sgd_moment(x: Floats, n: Floats, steps: Floats) -> Floats:
    """Returns E[theta^2] after k steps of SGD from 1, in closed form.

    b^k + n (1 - b^k) / (1 - b) with b = (1 - x)^2; arguments broadcast.
    """
    with np.errstate(divide="ignore"):
        log_b = 2 * np.log(np.abs(1 - x))
    # At x = 1 one step forgets everything: log b is then minus infinity.
    power = np.where(steps == 0, 1.0, np.exp(log_b * np.maximum(steps, 1)))
    rest = x * (2 - x)
    # x = 2 is the edge of stability: each step then adds the noise once.
    flat = np.abs(rest) < 1e-14
    total = np.where(flat, steps, (1 - power) / np.where(flat, 1.0, rest))
    return np.asarray(power + n * total, np.float64)


def start(optimizer: str, momentum: float) -> Floats:
    """Returns (E[theta^2], E[w^2], E[theta w], 1) before the first step.

    w is the velocity under `momentum`, and under `ema` the sum that is averaged, which
    starts at theta / (1 - g).
    """
    if optimizer == "momentum":
        return np.array([1.0, 0.0, 0.0, 1.0])
    return np.array([1.0, (1 - momentum) ** -2, 1 / (1 - momentum), 1.0])


def one_step(optimizer: str, x: Floats, n: Floats, momentum: float) -> Floats:
    """Returns the map of one step on the state of `start`, [..., 4, 4]."""
    rows = _momentum_rows if optimizer == "momentum" else _average_rows
    matrix = np.zeros((*x.shape, 4, 4))
    matrix[..., :3, :3] = rows(x, momentum)
    matrix[..., :3, 3] = n[..., None]
    matrix[..., 3, 3] = 1.0
    return matrix


def powers(matrix: Floats, largest: int) -> list[Floats]:
    """Returns the maps of 1, 2, 4, ... steps, as many as `largest` has bits."""
    maps = [matrix]
    for _ in range(1, max(largest, 1).bit_length()):
        maps.append(maps[-1] @ maps[-1])
    return maps


def _momentum_rows(x: Floats, m: float) -> Floats:
    """Returns the map of v <- m v - x theta + noise, theta <- theta + v."""
    ones = np.ones_like(x)
    rows = [
        [(1 - x) ** 2, m**2 * ones, 2 * (1 - x) * m],
        [x**2, m**2 * ones, -2 * x * m],
        [-x * (1 - x), m**2 * ones, (1 - 2 * x) * m],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _average_rows(x: Floats, g: float) -> Floats:
    """Returns the map of theta <- (1 - x) theta + noise, w <- g w + theta."""
    zeros = np.zeros_like(x)
    rows = [
        [(1 - x) ** 2, zeros, zeros],
        [(1 - x) ** 2, g**2 * np.ones_like(x), 2 * g * (1 - x)],
        [(1 - x) ** 2, zeros, g * (1 - x)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


OPTIMIZERS = ("sgd", "momentum", "ema")
_CHUNK = 2048  # Steps at a time: bounds memory, changes no number.


@dataclass(frozen=True)
class NoisyQuadratic:
    """A noisy quadratic problem.

    Attributes:
        dimensions: number of coordinates, the condition number.
        bins: number of geometric bins of coordinates.
        preconditioner_power: power in [0, 1], from 0 (none) to 1 (ideal).

    >>> NoisyQuadratic(dimensions=1, bins=1).loss("sgd", 1.0, 0.0, 4, [0, 1])
    array([0.5  , 0.125])
    """

    dimensions: int = 10**4
    bins: int = 100
    preconditioner_power: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.bins <= self.dimensions:
            raise UserError(
                f"bins is {self.bins}; it must lie between 1 and the dimensions, "
                f"{self.dimensions}."
            )
        if not 0 <= self.preconditioner_power <= 1:
            raise UserError(
                f"preconditioner_power is {self.preconditioner_power}; it must lie "
                "between 0 and 1."
            )

    @cached_property
    def curvature(self) -> Floats:
        """Curvature h of each bin, in falling order, [bins]."""
        return np.geomspace(1.0, 1.0 / self.dimensions, self.bins)

    @cached_property
    def counts(self) -> Floats:
        """Number of coordinates in each bin, the first one not above them, [bins]."""
        exact = 1.0 / np.arange(1, self.dimensions + 1)
        place = np.searchsorted(-self.curvature, -exact)
        return np.bincount(
            np.minimum(place, self.bins - 1), minlength=self.bins
        ).astype(np.float64)

    def loss(
        self,
        optimizer: str,
        learning_rate: float,
        momentum: float,
        batch_size: int,
        steps: ArrayLike,
    ) -> Floats:
        """Returns expected losses after numbers of steps, [s]; infinite if diverged.

        Args:
            optimizer: one of OPTIMIZERS; `ema` is SGD whose weights are averaged.
            learning_rate: positive.
            momentum: in [0, 1); the decay of the average for `ema`; not used by `sgd`.
            batch_size: at least 1.
            steps: numbers of steps, whole, at least 0, [s].
        """
        check_known("optimizer", optimizer, OPTIMIZERS)
        check_positive("learning_rate", learning_rate)
        if optimizer != "sgd" and not 0 <= momentum < 1:
            raise UserError(f"momentum is {momentum!r}; it must lie in [0, 1).")
        check_whole("batch_size", batch_size)
        wanted = np.atleast_1d(np.asarray(steps, np.int64))
        if (wanted < 0).any():
            raise UserError(f"steps is {wanted.min()}; it must be at least 0.")
        rate = learning_rate * self.curvature**-self.preconditioner_power
        x, n = rate * self.curvature, rate**2 * self.curvature / batch_size
        with np.errstate(over="ignore", invalid="ignore"):
            if optimizer == "sgd":
                k = wanted[:, None].astype(np.float64)
                losses = self._loss_of(sgd_moment(x, n, k))
            else:
                step = one_step(optimizer, x, n, momentum)
                steps_of_two = powers(step, int(wanted.max(initial=1)))
                losses = np.empty(len(wanted))
                for i in range(0, len(wanted), _CHUNK):
                    part = slice(i, i + _CHUNK)
                    state = _advanced(optimizer, momentum, steps_of_two, wanted[part])
                    moment = state[..., 0]
                    if optimizer == "ema":
                        moment = (1 - momentum) ** 2 * state[..., 1]
                    losses[part] = self._loss_of(moment)
        return np.where(np.isnan(losses), np.inf, losses)

    def _loss_of(self, moment: Floats) -> Floats:
        """Returns the loss of second moments, [..., bins] to [...]."""
        # A sum and no matrix product: infinities of diverged bins are no warning.
        weight = 0.5 * self.curvature * self.counts
        return np.asarray((moment * weight).sum(axis=-1), np.float64)


def _advanced(
    optimizer: str, momentum: float, steps_of_two: list[Floats], steps: Codes
) -> Floats:
    """Returns the states after each number of steps, [s, bins, 4]."""
    first = start(optimizer, momentum)
    state = np.broadcast_to(first, (len(steps), *steps_of_two[0].shape[:-1]))
    for bit, power in enumerate(steps_of_two):
        moved = np.einsum("bij,sbj->sbi", power, state)
        state = np.where(((steps >> bit) & 1)[:, None, None] == 1, moved, state)
    return state
