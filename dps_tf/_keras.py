"""The only import of Keras: `from dps_tf._keras import keras` gives tf_keras.

Two Keras versions live in one process (keras-tuner brings Keras 3, tfmot needs
tf_keras), and the order of imports decides which of them `tf.keras` means. No other
module of the package imports either, so the package does not depend on that order.
"""

from __future__ import annotations

from dps_tf._tensorflow import import_tensorflow

import_tensorflow()

import tf_keras as keras  # noqa: E402

__all__ = ["keras"]
