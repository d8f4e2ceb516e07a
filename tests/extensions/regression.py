"""A regression: real measurements of patients, and an objective of one's own."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes

from dps_tf import register_dataset, register_objective
from dps_tf.data import Source
from dps_tf.objectives import Objective, mean_loss


def diabetes(data_dir):
    """Returns ten measurements of 442 patients, and how far their disease got."""
    inputs, progression = load_diabetes(return_X_y=True)
    labels = (progression - progression.mean()) / progression.std()
    return Source(
        (inputs / inputs.std(0)).astype(np.float32),
        labels[:, None].astype(np.float32),
        classes=1,
        validation_examples=88,
    )


def huber(delta=1.0):
    """Returns the objective that squares small errors and spares large ones."""

    def loss(labels, outputs, metaparameters):
        error = tf.abs(outputs - labels)
        small = tf.minimum(error, delta)
        return small * (error - 0.5 * small)

    return Objective(loss, (mean_loss("huber_loss"),), labels="numbers")


register_dataset("diabetes", diabetes)
register_objective("huber", huber)
