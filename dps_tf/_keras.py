"""The one door to Keras: `from dps_tf._keras import keras` gives tf_keras.

Two Keras versions live in one process (keras-tuner brings Keras 3, tfmot needs
tf_keras), and which of them `tf.keras` means depends on who was imported first. No
other module of the package names either, so nothing here depends on that order.
"""

from __future__ import annotations

from dps_tf._tensorflow import import_tensorflow

import_tensorflow()

import tf_keras as keras  # noqa: E402

__all__ = ["keras"]
