"""One-shot scores at the initial point: larger means kept.

Notation: theta = initial point, g = gradient of the mean loss of a batch of 100
examples, H = its Hessian; sums run over batches. A score is a list of float32 arrays,
one per trainable variable, whether that one is prunable or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dps_tf.core.seeds import derive_seed
from dps_tf.objectives.batch_sums import Progress
from dps_tf.sparsity.gradients import GradientProgram

Arrays = Sequence[np.ndarray]


def mask_gradient_sum(
    program: GradientProgram,
    theta: Arrays,
    inputs: np.ndarray,
    labels: np.ndarray,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Returns the signed sum over batches of d loss / d mask, float64.

    d loss / d mask_j = theta_j g_j, where g is taken at the point of the program:
    theta itself for mask = 1, theta times mask for others.

    Args:
        program: set to the point.
        theta: of the trainable variables, unmasked.
        inputs: [n, ...] training examples, in order.
        labels: int [n] or [n, length].
        progress: called with (batches done, batches).

    Source: Lee, Ajanthan, Torr 2019, eq. 5; summed over an epoch in Lee et al. 2021,
    published code.
    """
    gradients = program.loss_gradient(inputs, labels, progress=progress)
    return [t * g for t, g in zip(theta, gradients, strict=True)]


def snip(
    program: GradientProgram,
    theta: Arrays,
    inputs: np.ndarray,
    labels: np.ndarray,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Returns |sum theta g|: the absolute value after the sum over batches.

    Zero-initialized biases have a score of exactly 0, so with the prunable set
    `kernels_and_biases` they are the first to go: none is left at any real sparsity.

    Source: Lee, Ajanthan, Torr 2019 (one mini-batch); Lee et al. 2021, published code
    (one epoch). Deviation: not divided by the total, which changes no order.
    """
    sums = mask_gradient_sum(program, theta, inputs, labels, progress)
    return [np.abs(part).astype(np.float32) for part in sums]


def grasp(  # noqa: PLR0913 - the arguments of every score, and its own
    program: GradientProgram,
    theta: Arrays,
    inputs: np.ndarray,
    labels: np.ndarray,
    temperature: float = 200.0,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Returns theta (H g) with logits divided by `temperature`.

    Removing entry j changes |g|^2 by -2 theta_j (H g)_j in first order; the paper's
    score is -theta (H g), of which it removes the largest: what is harmful to gradient
    flow. Here the sign is turned, so that the largest are kept.

    Source: Wang, Zhang, Grosse 2020, eq. 8 and algorithm 1; temperature and class
    balance from the published code. Deviations: g and H are of all trainable variables,
    biases included, and dense layers are not drawn anew before scoring, because the
    mask is for the initial point that will be trained; divided by the largest absolute
    score (so that float32 holds them) and not by their sum, which changes no order; the
    examples are the first of each class, not random ones.
    """

    def half(first: int) -> Progress | None:
        if progress is None:
            return None
        return lambda done, batches: progress(first * batches + done, 2 * batches)

    gradient = program.loss_gradient(inputs, labels, temperature, half(0))
    product = program.hessian_product(inputs, labels, gradient, temperature, half(1))
    parts = [t * p for t, p in zip(theta, product, strict=True)]
    largest = max((np.abs(part).max(initial=0.0) for part in parts), default=0.0)
    return [(part / (largest or 1.0)).astype(np.float32) for part in parts]


def magnitude(theta: Arrays) -> list[np.ndarray]:
    """Returns |theta|, the baseline of most papers."""
    return [np.abs(part).astype(np.float32) for part in theta]


def random(theta: Arrays, seed: int) -> list[np.ndarray]:
    """Returns float32 uniform on [0, 1), a function of `seed` and the shapes alone."""
    generator = np.random.default_rng(derive_seed(seed, 0, "random scores"))
    return [generator.random(np.shape(part), np.float32) for part in theta]


def ones_like(arrays: Sequence[Any]) -> list[np.ndarray]:
    """Returns masks that keep everything, float32."""
    return [np.ones(np.shape(array), np.float32) for array in arrays]
