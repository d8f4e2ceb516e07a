"""The networks: functional tf_keras models that return logits in float32.

Layers are named, so that variable names (and with them layer reports) do not depend on
what else a process has built. Variables come in layer order, kernel before bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps_tf._keras import keras
from dps_tf.core.errors import UserError
from dps_tf.models.layers import (
    GhostBatchNormalization,
    PadChannels,
    PositionEmbedding,
    SelfAttention,
)

layers = keras.layers


def fan_in_normal() -> keras.initializers.Initializer:
    """Returns a new truncated normal of variance 1 / fan-in.

    Source: Lee et al. 2021, published code (variance scaling, fan-in, scale 1).
    """
    return keras.initializers.VarianceScaling(1.0, "fan_in", "truncated_normal")


def dense(units: int, name: str, **arguments: Any) -> keras.layers.Layer:
    """Returns a Dense layer whose kernel starts as `fan_in_normal`."""
    return layers.Dense(
        units, kernel_initializer=fan_in_normal(), name=name, **arguments
    )


def conv(filters: int, size: int, name: str, **arguments: Any) -> keras.layers.Layer:
    """Returns a Conv2D layer whose kernel starts as `fan_in_normal`."""
    return layers.Conv2D(
        filters, size, kernel_initializer=fan_in_normal(), name=name, **arguments
    )


def require_image(name: str, input_shape: Sequence[int]) -> None:
    """Raises UserError unless inputs are [height, width, channels]."""
    if len(input_shape) != 3:
        raise UserError(
            f"model {name!r} takes images [height, width, channels], not inputs of "
            f"shape {list(input_shape)}"
        )


def simple_cnn(input_shape: Sequence[int], classes: int) -> keras.Model:
    """Returns the Simple-CNN of Lee et al.: no hidden dense layer.

    `input_shape`: [height, width, channels]. 62,346 parameters on 28 x 28 x 1 and ten
    classes. Source: Lee et al. 2021, published code; Shallue et al. have a hidden
    dense layer.
    """
    require_image("simple_cnn", input_shape)
    inputs = keras.Input(tuple(input_shape), name="image")
    x = inputs
    for index, filters in enumerate((32, 64), start=1):
        x = conv(filters, 5, f"conv{index}", activation="relu")(x)
        x = layers.MaxPooling2D(2, name=f"pool{index}")(x)
    x = layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, dense(classes, "dense")(x), name="simple_cnn")


def resnet8(input_shape: Sequence[int], classes: int) -> keras.Model:
    """Returns the ResNet-8 of Lee et al.: pre-activation, no batch normalization.

    `input_shape`: [height, width, channels], sides divisible by 4. 75,050 parameters on
    32 x 32 x 3 and ten classes. Source: Lee et al. 2021, published code: the first
    block's shortcut is its input before the ReLU, those of the down-sampling blocks
    are the input after it, averaged 2 x 2 and padded with channels of zeros.
    """
    require_image("resnet8", input_shape)
    inputs = keras.Input(tuple(input_shape), name="image")
    x = conv(16, 3, "conv1", padding="same")(inputs)
    for block, (filters, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        active = layers.ReLU(name=f"block{block}_relu1")(x)
        shortcut = x
        if stride > 1:
            pooled = layers.AveragePooling2D(stride, name=f"block{block}_pool")(active)
            shortcut = PadChannels(filters, name=f"block{block}_pad")(pooled)
        y = conv(filters, 3, f"conv{2 * block}", strides=stride, padding="same")(active)
        y = layers.ReLU(name=f"block{block}_relu2")(y)
        y = conv(filters, 3, f"conv{2 * block + 1}", padding="same")(y)
        x = layers.Add(name=f"block{block}_add")([shortcut, y])
    x = layers.ReLU(name="relu")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, dense(classes, "dense")(x), name="resnet8")


def mlp(
    input_shape: Sequence[int],
    classes: int,
    widths: Sequence[int] = (64,),
    pooling: int = 1,
) -> keras.Model:
    """Returns a fully connected ReLU network with hidden layers of `widths` units.

    `pooling`: side of the squares over which images are averaged before the first
    layer; 1 takes inputs of any shape as they are.
    """
    inputs = x = keras.Input(tuple(input_shape), name="input")
    if pooling != 1:
        require_image("mlp with pooling", input_shape)
        x = layers.AveragePooling2D(pooling, name="pool")(x)
    x = layers.Flatten(name="flatten")(x)
    for index, width in enumerate(widths, start=1):
        x = dense(width, f"dense{index}", activation="relu")(x)
    logits = dense(classes, f"dense{len(widths) + 1}")(x)
    return keras.Model(inputs, logits, name="mlp")


def mlp_batch_norm(
    input_shape: Sequence[int],
    classes: int,
    widths: Sequence[int] = (64,),
    ghost_batch_size: int | None = None,
) -> keras.Model:
    """Returns `mlp` with batch normalization before each ReLU.

    `ghost_batch_size`: examples that share their statistics (None: the whole batch on
    a replica); hidden layers have no bias, beta of the normalization replaces it.
    """
    inputs = keras.Input(tuple(input_shape), name="input")
    x = layers.Flatten(name="flatten")(inputs)
    for index, width in enumerate(widths, start=1):
        x = dense(width, f"dense{index}", use_bias=False)(x)
        x = GhostBatchNormalization(ghost_batch_size, name=f"norm{index}")(x)
        x = layers.ReLU(name=f"relu{index}")(x)
    logits = dense(classes, f"dense{len(widths) + 1}")(x)
    return keras.Model(inputs, logits, name="mlp_batch_norm")


def tiny_transformer(
    input_shape: Sequence[int],
    classes: int,
    width: int = 64,
    heads: int = 4,
    blocks: int = 2,
) -> keras.Model:
    """Returns a causal language model: int32 [batch, length] -> logits.

    `input_shape`: [length]; `classes`: vocabulary. Logits are float32 [batch, length,
    vocabulary]; those at position t read tokens 0..t only. Pre-normalized blocks of
    attention and a 4 x wide perceptron.
    """
    if len(input_shape) != 1 or width % heads:
        raise UserError(
            f"model 'tiny_transformer' takes token sequences [length] and a width that "
            f"its heads divide, not inputs of shape {list(input_shape)}, width {width} "
            f"and {heads} heads"
        )
    inputs = keras.Input(tuple(input_shape), dtype="int32", name="tokens")
    embed = layers.Embedding(
        classes, width, embeddings_initializer=small_normal(), name="embedding"
    )
    x = PositionEmbedding(name="position")(embed(inputs))
    for index in range(1, blocks + 1):
        x = _transformer_block(x, width, heads, f"block{index}")
    x = layers.LayerNormalization(name="norm")(x)
    # Small, so that the first loss is that of a uniform guess, log(vocabulary).
    output = layers.Dense(classes, kernel_initializer=small_normal(), name="dense")
    return keras.Model(inputs, output(x), name="tiny_transformer")


def small_normal() -> keras.initializers.Initializer:
    """Returns a new normal of standard deviation 0.02."""
    return keras.initializers.RandomNormal(stddev=0.02)  # GPT-2's choice


def _transformer_block(x: Any, width: int, heads: int, name: str) -> Any:
    y = layers.LayerNormalization(name=f"{name}_norm1")(x)
    y = dense(3 * width, f"{name}_attention_in")(y)
    y = SelfAttention(heads, name=f"{name}_attention")(y)
    y = dense(width, f"{name}_attention_out")(y)
    x = layers.Add(name=f"{name}_add1")([x, y])
    y = layers.LayerNormalization(name=f"{name}_norm2")(x)
    y = dense(4 * width, f"{name}_dense1", activation="gelu")(y)
    y = dense(width, f"{name}_dense2")(y)
    return layers.Add(name=f"{name}_add2")([x, y])
