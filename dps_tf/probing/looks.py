"""What is measured at one update of a trial: smoothness along it, noise before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dps_tf.probing.example_gradients import ExampleGradients
from dps_tf.probing.noise_scale import estimate
from dps_tf.probing.smoothness import local_smoothness

QUANTITIES = ("smoothness", "gradient_square", "noise_trace", "noise_scale")
"""See `smoothness` and `noise_scale`; one value each per update."""


def measure_update(
    gradients: ExampleGradients,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    masks: Sequence[np.ndarray] | None = None,
    label_smoothing: float = 0.0,
) -> dict[str, float]:
    """Returns QUANTITIES at the update from `before` to `after`.

    Both come from the same gradients: smoothness from those over all examples, noise
    from these and those of the batches they are made of. Costs ten of them.

    Args:
        gradients: over the stated examples.
        before: weights of the network before the update.
        after: weights after it.
        masks: one per trainable variable; None for a dense network.
        label_smoothing: of the loss.
    """
    base = gradients.at(before, masks, label_smoothing)

    def gradient(point: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        moved = gradients.with_trainable(before, point)
        return gradients.at(moved, masks, label_smoothing).values

    noise = estimate(base.batch_size, base.batch_square, base.examples, base.square)
    smoothness = local_smoothness(
        gradient, gradients.trainable(before), gradients.trainable(after), base.values
    )
    return dict(
        zip(
            QUANTITIES,
            (smoothness, noise.gradient_square, noise.noise_trace, noise.scale),
            strict=True,
        )
    )
