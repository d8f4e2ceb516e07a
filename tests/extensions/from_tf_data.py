"""Examples of a `tf.data.Dataset`, written once and then reached by their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from dps_tf import register_dataset
from dps_tf.data import Source, stored_once


def waves():
    """Returns a dataset of noisy waves of three frequencies, one example at a time."""
    time = tf.linspace(0.0, 6.28, 32)

    def wave(number):
        label = tf.cast(number % 3, tf.int32)
        noise = tf.random.stateless_normal([32], [0, number], stddev=0.5)
        return tf.sin(tf.cast(label + 1, tf.float32) * time) + noise, label

    return tf.data.Dataset.range(300).map(wave)


def stored_waves(data_dir):
    """Returns the waves, of which the first call makes files in the data folder."""
    arrays = stored_once(Path(data_dir or "data") / "waves", waves)
    return Source(
        arrays.inputs,
        np.asarray(arrays.labels),
        classes=3,
        validation_examples=60,
        content=arrays.content,
    )


register_dataset("stored_waves", stored_waves)
