"""Networks for images, and fully connected networks for inputs of any shape.

The networks are functional tf_keras models that return float32 logits. Layers are
named, so that variable names (and layer reports) do not depend on other models of the
process. Variables are in layer order, kernel before bias. Details that a paper leaves
open are arguments, with the source of each default beside it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from dps_tf._keras import keras
from dps_tf.core import UserError, check_known, check_whole, is_whole
from dps_tf.models.language_networks import attention_block
from dps_tf.models.layers import (
    GhostBatchNormalization,
    PadChannels,
    PositionEmbedding,
    dense,
    fan_in_normal,
    small_dense,
)
from dps_tf.models.sequence_layers import SinusoidalPositions

layers = keras.layers


def conv(filters: int, size: int, name: str, **arguments: Any) -> keras.layers.Layer:
    """Returns a Conv2D layer with a kernel drawn from `fan_in_normal`."""
    return layers.Conv2D(
        filters, size, kernel_initializer=fan_in_normal(), name=name, **arguments
    )


def image_input(name: str, input_shape: Sequence[int]) -> Any:
    """Returns a Keras input [height, width, channels]; UserError for other shapes."""
    if len(input_shape) != 3:
        raise UserError(
            f"model {name!r} takes images [height, width, channels], not inputs of "
            f"shape {list(input_shape)}"
        )
    return keras.Input(tuple(input_shape), name="image")


def simple_cnn(input_shape: Sequence[int], classes: int) -> keras.Model:
    """Returns the Simple-CNN of Lee et al., which has no hidden dense layer.

    It has 62,346 parameters on inputs 28 x 28 x 1 and ten classes. `input_shape`:
    [height, width, channels]. Source: Lee et al. 2021, published code; the network of
    Shallue et al. has a hidden dense layer.
    """
    inputs = x = image_input("simple_cnn", input_shape)
    for index, filters in enumerate((32, 64), start=1):
        x = conv(filters, 5, f"conv{index}", activation="relu")(x)
        x = layers.MaxPooling2D(2, name=f"pool{index}")(x)
    x = layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, dense(classes, "dense")(x), name="simple_cnn")


def resnet8(
    input_shape: Sequence[int], classes: int, width: int = 16, blocks: int = 1
) -> keras.Model:
    """Returns the ResNet-8 of Lee et al.: pre-activation, no batch normalization.

    It has 75,050 parameters on inputs 32 x 32 x 3 and ten classes.

    Args:
        input_shape: [height, width, channels], sides divisible by 4.
        classes: number of classes.
        width: channels of the first stage; each of the two other stages doubles them.
        blocks: blocks of each stage, n of He et al. 2016, section 4.2: 6n + 2 layers.

    Source: Lee et al. 2021, published code. The shortcut of a block is the block's
    input before the ReLU. The first blocks of the second and third stage down-sample:
    their shortcut is the input after the ReLU, averaged over 2 x 2 and padded with
    channels of zeros.
    """
    inputs = image_input("resnet8", input_shape)
    check_whole("width of resnet8", width)
    check_whole("blocks of resnet8", blocks)
    x = conv(width, 3, "conv1", padding="same")(inputs)
    forms = [
        (width * 2**stage, 2 if stage and not index else 1)
        for stage in range(3)
        for index in range(blocks)
    ]
    for block, (filters, stride) in enumerate(forms, start=1):
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

    `pooling`: side in pixels of squares that images are averaged over before the first
    layer; 1 averages nothing and takes inputs of any shape.
    """
    inputs = x = keras.Input(tuple(input_shape), name="input")
    if pooling != 1:
        image_input("mlp with pooling", input_shape)
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

    Hidden layers have no bias, because normalization adds beta. `ghost_batch_size`:
    examples that share their statistics; None is the whole batch on a replica. See
    `GhostBatchNormalization`.
    """
    inputs = keras.Input(tuple(input_shape), name="input")
    x = layers.Flatten(name="flatten")(inputs)
    for index, width in enumerate(widths, start=1):
        x = dense(width, f"dense{index}", use_bias=False)(x)
        x = GhostBatchNormalization(ghost_batch_size, name=f"norm{index}")(x)
        x = layers.ReLU(name=f"relu{index}")(x)
    logits = dense(classes, f"dense{len(widths) + 1}")(x)
    return keras.Model(inputs, logits, name="mlp_batch_norm")


def shallue2019_simple_cnn(
    input_shape: Sequence[int],
    classes: int,
    filters: Sequence[int] = (32, 64),
    units: int = 1024,
) -> keras.Model:
    """Returns the Simple CNN of Shallue et al.: SAME padding, a hidden dense layer.

    It has 3,274,634 parameters on inputs 28 x 28 x 1 and ten classes. The narrow form
    is `filters=(16, 32)`, `units=512`, the wide form `(64, 128)` and 2,048 (halving and
    doubling are not verified by a source). `simple_cnn` is the one of Lee et al.

    Source: Shallue et al. 2019, as re-implemented by Ren and Goldfarb 2021.
    """
    inputs = x = image_input("shallue2019_simple_cnn", input_shape)
    for index, width in enumerate(filters, start=1):
        x = conv(width, 5, f"conv{index}", activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, name=f"pool{index}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = dense(units, "dense1", activation="relu")(x)
    logits = dense(classes, "dense2")(x)
    return keras.Model(inputs, logits, name="shallue2019_simple_cnn")


# Number of convolutions before each max-pool: Simonyan and Zisserman 2015, model A.
_VGG11 = (1, 1, 2, 2, 2)


def vgg11(
    input_shape: Sequence[int],
    classes: int,
    units: int = 4096,
    dropout: float = 0.5,
    widths: Sequence[int] = (64, 128, 256, 512, 512),
) -> keras.Model:
    """Returns VGG-11: eight convolutions, three dense layers, no normalization.

    132,863,336 parameters on 224 x 224 x 3 and 1,000 classes; sides are at least 32.
    `units`: units of each hidden dense layer; `dropout`: share of their outputs that
    training drops; `widths`: channels of the convolutions before each of the five
    max-pools. The head starts with small weights, so that the first loss is ln(classes)
    although inputs are bytes less their mean. Source: Simonyan and Zisserman 2015,
    model A. Shallue et al. state neither dropout nor initializers: dropout is as in the
    original, and the head starts as in `resnet50`.
    """
    inputs = x = image_input("vgg11", input_shape)
    if min(input_shape[:2]) < 32:
        raise UserError(
            f"model 'vgg11' halves its images five times: {list(input_shape)} is too "
            "small, give sides of at least 32."
        )
    if len(widths) != len(_VGG11) or not all(is_whole(w, 1) for w in widths):
        raise UserError(
            f"model 'vgg11' has convolutions of widths {widths!r}: give five whole "
            "numbers of at least 1, one before each max-pool."
        )
    convolutions = itertools.count(1)
    for group, (count, width) in enumerate(zip(_VGG11, widths, strict=True), start=1):
        for _ in range(count):
            name = f"conv{next(convolutions)}"
            x = conv(width, 3, name, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, name=f"pool{group}")(x)
    x = layers.Flatten(name="flatten")(x)
    for index in (1, 2):
        x = dense(units, f"dense{index}", activation="relu")(x)
        if dropout:
            x = layers.Dropout(dropout, name=f"dropout{index}")(x)
    return keras.Model(inputs, _flat_head(classes, 0.001, "dense3")(x), name="vgg11")


def resnet50(
    input_shape: Sequence[int],
    classes: int,
    ghost_batch_size: int | None = 32,
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
) -> keras.Model:
    """Returns the pre-activation ResNet-50 with ghost batch normalization.

    It has 25,549,352 trainable parameters on inputs 224 x 224 x 3 and 1,000 classes. A
    bottleneck is BN-ReLU-1x1, BN-ReLU-3x3 (with the stride) and BN-ReLU-1x1 with four
    times the channels. The shortcut of the first bottleneck of each of four groups is a
    projection of its pre-activated input. Convolutions have no bias; epsilon is 1e-5
    and the momentum of the moving averages 0.997.

    Args:
        input_shape: [height, width, channels].
        classes: number of classes.
        ghost_batch_size: examples that share their statistics; None: the whole batch.
        blocks: number of bottlenecks in each group.
        width: channels of the first group's bottlenecks; each next group doubles them.

    Source: He et al. 2016 (pre-activation); details of the official TensorFlow models,
    version 2; ghost batches of 32 as in Shallue et al. 2019. The head starts with small
    weights, so that the first loss is ln(classes), as in a record of their archive.
    """
    inputs = image_input("resnet50", input_shape)
    norm = functools.partial(_normalized, ghost_batch_size)
    x = layers.ZeroPadding2D(3, name="pad1")(inputs)
    x = conv(width, 7, "conv1", strides=2, use_bias=False)(x)
    x = layers.MaxPooling2D(3, 2, padding="same", name="pool1")(x)
    for group, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if group and not block else 1
            name = f"group{group + 1}_block{block + 1}"
            x = _bottleneck(x, width * 2**group, stride, not block, name, norm)
    x = norm(x, "head")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, _flat_head(classes, 0.003, "dense")(x), name="resnet50")


def _flat_head(classes: int, deviation: float, name: str) -> keras.layers.Layer:
    normal = keras.initializers.RandomNormal(stddev=deviation)
    return layers.Dense(classes, kernel_initializer=normal, name=name)


def _normalized(ghost_batch_size: int | None, x: Any, name: str) -> Any:
    norm = GhostBatchNormalization(
        ghost_batch_size, momentum=0.997, epsilon=1e-5, name=f"{name}_norm"
    )
    return layers.ReLU(name=f"{name}_relu")(norm(x))


def _bottleneck(
    x: Any,
    width: int,
    stride: int,
    projects: bool,
    name: str,
    norm: Callable[[Any, str], Any],
) -> Any:
    active = norm(x, f"{name}_1")
    shortcut = x
    if projects:
        shortcut = conv(
            4 * width, 1, f"{name}_shortcut", strides=stride, use_bias=False
        )(active)
    y = conv(width, 1, f"{name}_conv1", use_bias=False)(active)
    y = norm(y, f"{name}_2")
    if stride > 1:
        # Both sides are padded equally for any size; SAME could pad only one side.
        y = layers.ZeroPadding2D(1, name=f"{name}_pad")(y)
    padding = "valid" if stride > 1 else "same"
    y = conv(
        width, 3, f"{name}_conv2", strides=stride, padding=padding, use_bias=False
    )(y)
    y = conv(4 * width, 1, f"{name}_conv3", use_bias=False)(norm(y, f"{name}_3"))
    return layers.Add(name=f"{name}_add")([shortcut, y])


def vit(  # noqa: PLR0913 - each argument is a binding
    input_shape: Sequence[int],
    classes: int,
    patch: int = 16,
    width: int = 384,
    depth: int = 12,
    heads: int = 6,
    positions: str = "sinusoidal",
    dropout: float = 0.0,
) -> keras.Model:
    """Returns a vision transformer; the defaults are ViT-S/16.

    Patches of `patch` x `patch` pixels are the tokens. Pre-normalized blocks have
    attention and a perceptron of 4 `width` units with GELU. A head that starts with
    small weights classifies the mean over the tokens.

    Args:
        input_shape: [height, width, channels], with sides that `patch` divides.
        classes: number of classes.
        patch: side of a patch, in pixels.
        width: length of a token's vector; a multiple of `heads`.
        depth: number of blocks.
        heads: number of attention heads.
        positions: `sinusoidal` (fixed waves over the patches in reading order) or
            `learned`.
        dropout: share of each block's outputs that training drops.

    Source: Dosovitskiy et al. 2021; Beyer et al. 2022 (mean instead of a class token,
    fixed positions). Deviations: waves run over one index, not over two. The head
    starts from a normal of deviation 0.02, because with a head of zeros no other
    weights would change at the first step.
    """
    inputs = image_input("vit", input_shape)
    rows, columns = input_shape[0] // patch, input_shape[1] // patch
    if input_shape[0] % patch or input_shape[1] % patch or width % heads:
        raise UserError(
            f"model 'vit' cuts images into patches of {patch}, and {width} into "
            f"{heads} heads: {list(input_shape)} does not fit, choose divisors."
        )
    check_known("positions", positions, ("sinusoidal", "learned"))
    x = conv(width, patch, "patches", strides=patch)(inputs)
    x = layers.Reshape((rows * columns, width), name="tokens")(x)
    if positions == "learned":
        x = PositionEmbedding(name="position")(x)
    else:
        x = SinusoidalPositions(scale=False, name="position")(x)
    for index in range(1, depth + 1):
        name = f"block{index}"
        x = attention_block(x, width, heads, name, causal=False, dropout=dropout)
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(inputs, small_dense(classes)(x), name="vit")
