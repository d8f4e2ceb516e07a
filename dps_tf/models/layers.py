"""Layers that tf_keras lacks, and initializers of kernels.

Each layer is serializable, so that a model can be cloned, and keeps the initializer of
its variable `<attribute>` as `<attribute>_initializer`, as stock layers do.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError

_register = keras.utils.register_keras_serializable(package="dps_tf")


def fan_in_normal() -> keras.initializers.Initializer:
    """Returns a new truncated normal initializer of variance 1 / fan-in.

    Source: Lee et al. 2021, published code (variance scaling, fan-in, scale 1).
    """
    return keras.initializers.VarianceScaling(1.0, "fan_in", "truncated_normal")


def small_normal() -> keras.initializers.Initializer:
    """Returns a new normal initializer of standard deviation 0.02."""
    return keras.initializers.RandomNormal(stddev=0.02)  # GPT-2's choice


def dense(units: int, name: str, **arguments: Any) -> keras.layers.Layer:
    """Returns a Dense layer with a kernel drawn from `fan_in_normal`."""
    return keras.layers.Dense(
        units, kernel_initializer=fan_in_normal(), name=name, **arguments
    )


def small_dense(classes: int, use_bias: bool = True) -> keras.layers.Layer:
    """Returns a Dense layer for logits, with a kernel drawn from `small_normal`.

    The first loss is then nearly log(classes), the loss of a uniform guess.
    """
    normal = small_normal()
    return keras.layers.Dense(
        classes, use_bias=use_bias, kernel_initializer=normal, name="dense"
    )


@_register
class PadChannels(keras.layers.Layer):
    """Appends channels of zeros: [..., channels] -> [..., `channels`]."""

    def __init__(self, channels: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.channels = channels

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns `inputs` followed by zeros along the last axis."""
        missing = self.channels - inputs.shape[-1]
        paddings = [[0, 0]] * (inputs.shape.rank - 1) + [[0, missing]]
        return tf.pad(inputs, paddings)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "channels": self.channels}


class _Refused(UserError):
    """A user's mistake that is detected when a layer is called."""

    # With this attribute Keras does not add the arguments of the call to the message,
    # which is one sentence.
    _keras_call_info_injected = True


def _indivisible(examples: str, ghost_batch_size: Any, replicas: int) -> str:
    """Returns the message for `examples` that cannot be split into ghost batches."""
    if replicas == 1:
        return (
            f"normalization is given {examples}, not a multiple of ghost_batch_size "
            f"{ghost_batch_size}: use a batch size that is one or is smaller, or a "
            "ghost_batch_size that divides it."
        )
    return (
        f"normalization is given {examples} on each of {replicas} replicas, not a "
        f"multiple of ghost_batch_size {ghost_batch_size}: use fewer replicas or a "
        "larger batch size, so that each has a multiple, or a smaller "
        "ghost_batch_size."
    )


@_register
class GhostBatchNormalization(keras.layers.Layer):
    """Batch normalization over ghost batches: [batch, ..., channels] -> same.

    In training, each `ghost_batch_size` consecutive examples are normalized by their
    own mean and variance, so that the statistics have one meaning for all batch sizes
    of a sweep. With `ghost_batch_size=None`, the examples of a replica are one ghost
    batch. In evaluation, inputs are normalized by the moving averages, without ghost
    batches. A step keeps the share `momentum` of the averages. With Keras's 0.99 the
    initial values would spoil evaluations in the first hundreds of steps, in which
    goals may be reached.

    Statistics, averages and the normalization itself are float32 in every precision;
    the outputs have the type of the inputs.

    Raises:
        UserError: `ghost_batch_size` does not divide the examples of a replica; other
            ghost batches would make results depend on the number of replicas.

    Source: Hoffer, Hubara, Soudry 2017 (ghost batches).
    Deviations: a step updates the moving averages once, with the mean over its ghost
    batches. On one replica a batch smaller than `ghost_batch_size` is one ghost batch,
    so that a sweep can begin below that size.
    """

    def __init__(
        self,
        ghost_batch_size: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-3,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if ghost_batch_size is not None and ghost_batch_size < 2:
            raise UserError(
                f"ghost_batch_size is {ghost_batch_size!r}: a variance needs at least "
                "2 examples (or None for the whole batch)"
            )
        self.ghost_batch_size = ghost_batch_size
        self.momentum = momentum
        self.epsilon = epsilon
        self.gamma_initializer = keras.initializers.Ones()
        self.beta_initializer = keras.initializers.Zeros()
        self.moving_mean_initializer = keras.initializers.Zeros()
        self.moving_variance_initializer = keras.initializers.Ones()

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates gamma, beta and the two moving averages, float32 [channels]."""
        # Each replica has averages of its own examples; reading gives their mean.
        moving = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.MEAN,
        }
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            variable = self.add_weight(
                name,
                [input_shape[-1]],
                initializer=getattr(self, f"{name}_initializer"),
                experimental_autocast=False,
                **(moving if name.startswith("moving") else {}),
            )
            setattr(self, name, variable)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the normalized inputs; in training, updates the moving averages."""
        exact = tf.cast(inputs, tf.float32)
        if not training:
            normal = self._normalize(exact, self.moving_mean, self.moving_variance)
            return tf.cast(normal, inputs.dtype)
        ghosts = [-1, self._examples_of_one(exact)]
        grouped = tf.reshape(exact, tf.concat([ghosts, tf.shape(exact)[1:]], 0))
        axes = list(range(1, grouped.shape.rank - 1))
        mean, variance = tf.nn.moments(grouped, axes, keepdims=True)
        self._move(self.moving_mean, mean)
        self._move(self.moving_variance, variance)
        normal = self._normalize(grouped, mean, variance)
        return tf.cast(tf.reshape(normal, tf.shape(inputs)), inputs.dtype)

    def _examples_of_one(self, inputs: tf.Tensor) -> Any:
        """Returns the examples of a ghost batch, an int if the shape is static."""
        batch, size = inputs.shape[0], self.ghost_batch_size
        if size is None:
            return tf.shape(inputs)[0] if batch is None else batch
        context = tf.distribute.get_replica_context()  # None outside of any replica
        replicas = 1 if context is None else context.num_replicas_in_sync
        if batch is not None:
            # On several replicas a smaller size would depend on their number.
            size = min(size, batch) if replicas == 1 else size
            if batch % size:
                raise _Refused(_indivisible(f"{batch} examples", size, replicas))
            return size
        batch = tf.shape(inputs)[0]
        size = tf.minimum(size, batch) if replicas == 1 else size
        sentence = _indivisible("a batch", self.ghost_batch_size, replicas)
        check = tf.debugging.assert_equal(batch % size, 0, sentence)
        with tf.control_dependencies([check]):
            return tf.identity(size)

    def _normalize(self, inputs: Any, mean: Any, variance: Any) -> tf.Tensor:
        scale = self.gamma * tf.math.rsqrt(variance + self.epsilon)
        return (inputs - mean) * scale + self.beta

    def _move(self, average: tf.Variable, statistics: tf.Tensor) -> None:
        mean = tf.reduce_mean(statistics, axis=list(range(statistics.shape.rank - 1)))
        average.assign(self.momentum * average + (1.0 - self.momentum) * mean)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "ghost_batch_size": self.ghost_batch_size,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
        }


@_register
class PositionEmbedding(keras.layers.Layer):
    """Adds one trained vector per position: float32 [batch, length, width] -> same."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.position_initializer = keras.initializers.RandomNormal(stddev=0.02)

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates `position`, float32 [length, width]."""
        self.position = self.add_weight(
            "position", input_shape[1:], initializer=self.position_initializer
        )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns `inputs` with the vector of each position added."""
        return inputs + self.position


@_register
class SelfAttention(keras.layers.Layer):
    """Scaled dot-product attention: [batch, length, 3 * width] -> [..., width].

    Inputs are the queries, keys and values. `heads` must divide the width; `causal`
    hides later positions. The layer has no variables, so that every kernel of a model
    is a two-dimensional Dense kernel, which can be pruned.
    """

    def __init__(self, heads: int, causal: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.heads = heads
        self.causal = causal

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the values, averaged by attention."""
        length, width = inputs.shape[1], inputs.shape[2] // 3
        if length is None:  # in a network for sequences of any length
            length = tf.shape(inputs)[1]
        depth = width // self.heads
        parts = tf.reshape(inputs, [-1, length, 3, self.heads, depth])
        query, key, value = tf.unstack(parts, axis=2)
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key) / depth**0.5
        # Sums over a sequence are float32 in every precision of the layer.
        scores = tf.cast(scores, tf.float32)
        if self.causal:
            allowed = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
            scores = tf.where(allowed, scores, scores.dtype.min)
        weights = tf.nn.softmax(scores)
        weights = tf.cast(weights, inputs.dtype)
        mixed = tf.einsum("bhqk,bkhd->bqhd", weights, value)
        return tf.reshape(mixed, [-1, length, width])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "heads": self.heads, "causal": self.causal}
