"""Several labels at once: which digits are on a picture of four?"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from dps_tf import register_dataset, register_metric
from dps_tf.data import Source
from dps_tf.objectives import Metric, count


def mosaics(data_dir, examples=900, seed=0):
    """Returns pictures of 2 x 2 digits, and which of ten digits each has."""
    digits = load_digits()
    rows = np.random.default_rng(seed).integers(0, len(digits.target), (examples, 4))
    tiles = digits.images[rows].reshape(examples, 2, 2, 8, 8)
    pictures = tiles.transpose(0, 1, 3, 2, 4).reshape(examples, 16, 16, 1)
    labels = np.zeros((examples, 10), np.int32)
    labels[np.arange(examples)[:, None], digits.target[rows]] = 1
    inputs = (pictures / 8 - 1).astype(np.float32)
    return Source(inputs, labels, classes=10, validation_examples=examples // 3)


def exact_match():
    """Returns the fraction of pictures all of whose labels are right."""

    def sums(labels, outputs, weights):
        right = tf.reduce_all((outputs > 0) == (labels > 0), axis=-1)
        there = tf.reduce_any(weights > 0, axis=-1)
        return {"right": count(right & there), "pictures": count(there)}

    return Metric("exact_match", lambda found: found["right"] / found["pictures"], sums)


register_dataset("mosaics", mosaics)
register_metric("exact_match", exact_match)
