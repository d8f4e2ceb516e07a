"""K* of a network and data of one's own, in one call and without a gin file."""

from __future__ import annotations

import numpy as np
import tf_keras as keras

import dps_tf


def ring_network(input_shape, classes):
    """Returns a network with one hidden layer whose outputs are logits."""
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


# 900 points of the plane on two rings, with their ring as the label.
generator = np.random.default_rng(7)
labels = np.arange(900) % 2
angles = generator.uniform(0, 2 * np.pi, 900)
radii = labels + 1 + generator.normal(0, 0.2, 900)
points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)

if __name__ == "__main__":
    tables = dps_tf.run(
        sweep_dir="sweeps/rings",
        network=ring_network,
        dataset=(points, labels),
        goal=0.05,
        batch_sizes=(8, 32, 128),
        step_budget=2000,
        values={"workload.points": 8, "sweep.finishers": 1},
    )
    print(tables)
    print(tables.best[["batch_size", "steps_to_result", "learning_rate"]])
