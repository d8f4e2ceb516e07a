"""Simulated sweeps whose law is known: the process behind a K*, without any training.

A trial at batch size B with learning rate r takes (c1/B + c2) 2^(a x^2 + 0.1 z) steps,
x = log2 r / r_opt(B), z standard normal. K* is the least over 100 trials, seen at the
next evaluation.
"""

from __future__ import annotations

import functools

import numpy as np

TRIALS = 100
NOISE = 0.1  # Octaves.
CURVATURE = 0.2  # Octaves per squared octave of the learning rate.
RANGE = 13.3  # Octaves of learning rates: 1e-4 .. 1.


def log2_minimum(rng, shape):
    """Returns log2 of (least steps / (c1/B + c2)), of any shape."""
    rates = (np.arange(TRIALS) + 0.5) / TRIALS * RANGE - RANGE / 2
    # The best rate moves with the batch size, and with it the grid of rates.
    best = rng.uniform(-2, 2, shape)
    x = rates - best[..., None]
    z = rng.standard_normal((*shape, TRIALS))
    return (CURVATURE * x**2 + NOISE * z).min(axis=-1)


@functools.cache
def minimum_factor():
    """Returns the geometric mean of least steps / (c1/B + c2), by brute force.

    A minimum over trials lies below the law of one trial at the best rate, by a factor
    that is the same for every batch size. The law of K* is therefore f c1 / B + f c2,
    and this is the truth that intervals have to cover; c1/c2 is unchanged.
    """
    return float(np.exp2(log2_minimum(np.random.default_rng(1), (20_000,)).mean()))


def sweep(rng, c1, c2, batch_sizes, interval=100):
    """Returns K* per batch size, rounded up to the evaluation that sees it."""
    steps = (c1 / batch_sizes + c2) * np.exp2(log2_minimum(rng, batch_sizes.shape))
    return np.ceil(steps / interval) * interval if interval else steps


def sweep_at_edge(rng, c1, c2, batch_sizes, interval=100):
    """Returns K* per batch size, and which winners lie at the end of their range.

    From the sixth batch size on the best rate lies up to two octaves beyond the range.
    """
    rates = (np.arange(TRIALS) + 0.5) / TRIALS * RANGE - RANGE / 2
    beyond = np.arange(len(batch_sizes)) >= 5
    shift = np.where(beyond, RANGE / 2 + rng.uniform(0, 2, len(batch_sizes)), 0.0)
    x = rates - (rng.uniform(-2, 2, len(batch_sizes)) + shift)[:, None]
    log2_steps = CURVATURE * x**2 + NOISE * rng.standard_normal(x.shape)
    steps = (c1 / batch_sizes + c2) * np.exp2(log2_steps.min(axis=1))
    at_end = np.abs(rates[log2_steps.argmin(axis=1)]) > 0.9 * RANGE / 2
    return np.ceil(steps / interval) * interval, at_end


def first_passage(rng, steps, interval, noise):
    """Returns the first evaluation at which a curve that goes up and down meets a goal.

    Without noise it is met at `steps` and ever after. Each evaluation errs by `noise`
    octaves of steps, independently of the others, so that an early one may meet it.
    """
    at = interval * np.arange(1, int(np.ceil(1.5 * steps / interval)) + 1)
    limits = steps * np.exp2(noise * rng.standard_normal(len(at)))
    return float(at[np.argmax(at >= limits)])
