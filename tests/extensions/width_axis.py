"""A network whose width is to be an axis of the cells."""

from __future__ import annotations

import tf_keras as keras

from dps_tf import register_network


def one_layer(input_shape, classes, width=16):
    """Returns a perceptron with one hidden layer."""
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(width, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


register_network("one_layer", one_layer)
