"""Sequences of many lengths, padded, whose tokens are augmented; a network that drops.

Token 0 is padding in the inputs, -1 in the labels, which then count nothing.
"""

from __future__ import annotations

import numpy as np
import tf_keras as keras

from dps_tf import register_dataset, register_network
from dps_tf.data import Chain, CropTokens, MaskTokens, Source

UNKNOWN = 1


def counting(data_dir, examples=240, length=12, vocabulary=8, seed=0):
    """Returns sequences that count upwards from a token of their own, padded."""
    generator = np.random.default_rng(seed)
    first = generator.integers(0, vocabulary, (examples, 1))
    tokens = (first + np.arange(length + 1)) % vocabulary + 2
    beyond = np.arange(length) >= generator.integers(4, length + 1, (examples, 1))
    inputs = np.where(beyond, 0, tokens[:, :-1]).astype(np.int32)
    labels = np.where(beyond, -1, tokens[:, 1:]).astype(np.int32)
    transform = Chain((CropTokens(10), MaskTokens(0.1, UNKNOWN, keep=0)))
    return Source(inputs, labels, vocabulary + 2, examples // 4, transform=transform)


def recurrent(input_shape, classes, width=16, dropout=0.1):
    """Returns a recurrent network over the tokens before each position."""
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = layers.Embedding(classes, width)(tokens)
    x = layers.SpatialDropout1D(dropout)(x)
    x = layers.GRU(width, return_sequences=True, dropout=dropout)(x)
    x = layers.Dropout(dropout)(x)
    return keras.Model(tokens, layers.Dense(classes)(x))


register_dataset("counting", counting)
register_network("recurrent", recurrent)
