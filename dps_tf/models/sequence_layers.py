"""Layers of sequence models that tf_keras lacks; serializable like all of `layers`.

Keras writes the name of this module into the configuration of an LSTM, which is part of
the structure hash that studies record: moving the cell would change that hash.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.models.layers import fan_in_normal, small_normal

_register = keras.utils.register_keras_serializable(package="dps_tf")


def _rates(width: int) -> np.ndarray:
    half = width // 2
    return np.asarray(10_000.0 ** (-np.arange(half) / max(half - 1, 1)))


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Returns float32 [positions, width]: sines in the first half, then cosines.

    Entry (t, i) is sin(t / 10000^(i / (h - 1))) for i < h = width // 2, and (t, h + i)
    the cosine of the same angle. Source: Vaswani et al. 2017, section 3.5, with the
    halves side by side instead of interleaved, as in the published code of
    Tensor2Tensor; `width` is even.
    """
    angles = np.arange(positions)[:, None] * _rates(width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _sinusoids_like(inputs: tf.Tensor) -> tf.Tensor:
    """Returns `sinusoids` for inputs [batch, length, width] of any length."""
    width = inputs.shape[-1]
    rates = tf.constant(_rates(width))
    angles = tf.range(tf.cast(tf.shape(inputs)[1], tf.float64))[:, None] * rates
    return tf.cast(tf.concat([tf.sin(angles), tf.cos(angles)], axis=1), tf.float32)


@_register
class SinusoidalPositions(keras.layers.Layer):
    """Adds a fixed wave to each position: float [batch, length, width] -> same.

    Unless `scale` is False, inputs are first multiplied by the square root of their
    width, so that waves do not dominate embeddings (Vaswani et al. 2017, section 3.4).
    """

    def __init__(self, scale: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the scaled inputs with the wave of each position added."""
        _, length, width = inputs.shape
        is_static = length is not None
        waves = sinusoids(length, width) if is_static else _sinusoids_like(inputs)
        waves = tf.cast(waves, inputs.dtype)
        return (inputs * width**0.5 if self.scale else inputs) + waves

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "scale": self.scale}


@_register
class TiedEmbedding(keras.layers.Layer):
    """One matrix that embeds tokens and that computes logits from features.

    `layer(tokens)`: int32 [batch, length] -> float [batch, length, width].
    `layer(features, readout=True)`: [batch, length, width] -> float32 logits [batch,
    length, vocabulary].

    Source: Press and Wolf 2017; Inan et al. 2017.
    """

    def __init__(self, vocabulary: int, width: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.vocabulary = vocabulary
        self.width = width
        self.embeddings_initializer = small_normal()

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates `embeddings`, float32 [vocabulary, width]."""
        self.embeddings = self.add_weight(
            "embeddings",
            [self.vocabulary, self.width],
            initializer=self.embeddings_initializer,
        )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, readout: bool = False) -> tf.Tensor:
        """Returns the vectors of tokens, or with `readout` the logits of features."""
        if not readout:
            return tf.gather(self.embeddings, inputs)
        return tf.cast(tf.matmul(inputs, self.embeddings, transpose_b=True), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {"vocabulary": self.vocabulary, "width": self.width}
        return {**super().get_config(), **own}


@_register
class ProjectedLSTMCell(keras.layers.Layer):
    """An LSTM cell with a linear projection of its output inside the recurrence.

    The output of `units` memory cells is projected to `projection` values. Gates read
    the input and the projected output of the previous step. Kernels hold the gates in
    the order input, forget, candidate, output; the forget gate's bias starts at 1.

    Source: Sak, Senior, Beaufays 2014, without peepholes; Jozefowicz et al. 2016
    (LSTM-2048-512). Stock LSTM layers cannot project inside of the recurrence.
    """

    def __init__(self, units: int, projection: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = units
        self.projection_size = projection
        self.kernel_initializer = fan_in_normal()
        self.recurrent_initializer = fan_in_normal()
        self.bias_initializer = ForgetBias(units)
        self.projection_initializer = fan_in_normal()

    @property
    def state_size(self) -> list[int]:
        """The sizes of the projected output and of the memory."""
        return [self.projection_size, self.units]

    @property
    def output_size(self) -> int:
        """The size of the projected output."""
        return self.projection_size

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates the kernels of the gates, their bias and the projection."""
        units, out = self.units, self.projection_size
        shapes = {
            "kernel": ([input_shape[-1], 4 * units], self.kernel_initializer),
            "recurrent_kernel": ([out, 4 * units], self.recurrent_initializer),
            "bias": ([4 * units], self.bias_initializer),
            "projection": ([units, out], self.projection_initializer),
        }
        for name, (shape, initializer) in shapes.items():
            setattr(self, name, self.add_weight(name, shape, initializer=initializer))
        super().build(input_shape)

    def call(
        self, inputs: tf.Tensor, states: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns (projected output, [projected output, memory]) of one step."""
        output, memory = states
        gates = inputs @ self.kernel + output @ self.recurrent_kernel + self.bias
        enter, keep, candidate, leave = tf.split(gates, 4, axis=-1)
        memory = tf.sigmoid(keep) * memory + tf.sigmoid(enter) * tf.tanh(candidate)
        output = (tf.sigmoid(leave) * tf.tanh(memory)) @ self.projection
        return output, [output, memory]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {"units": self.units, "projection": self.projection_size}
        return {**super().get_config(), **own}

    def get_build_config(self) -> None:
        """Returns None, so that only the RNN layer builds the cell, in its scope."""
        # Otherwise a copied model names the cell's variables without the layer.


@_register
class ForgetBias(keras.initializers.Initializer):
    """A bias [4 * units] of ones for the forget gate and zeros for the other gates."""

    def __init__(self, units: int):
        self.units = units

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
        """Returns the bias; `shape` is [4 * units]."""
        del shape, kwargs
        bias = np.zeros(4 * self.units)
        bias[self.units : 2 * self.units] = 1.0
        return tf.constant(bias, dtype or tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"units": self.units}
