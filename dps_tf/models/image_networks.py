"""Networks for images beyond the smallest: those of Shallue et al. 2019, and ViT.

Functional tf_keras models that return float32 logits; layers are named as in
`networks`. Details that the paper leaves open are bindings, with the source of each
default beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps_tf._keras import keras
from dps_tf.core.errors import UserError
from dps_tf.models.layers import (
    GhostBatchNormalization,
    PositionEmbedding,
    SelfAttention,
)
from dps_tf.models.networks import conv, dense, require_image, small_normal
from dps_tf.models.sequence_layers import SinusoidalPositions

layers = keras.layers


def shallue2019_simple_cnn(
    input_shape: Sequence[int],
    classes: int,
    filters: Sequence[int] = (32, 64),
    units: int = 1024,
) -> keras.Model:
    """Returns the Simple CNN of Shallue et al.: SAME padding, a hidden dense layer.

    3,274,634 parameters on 28 x 28 x 1 and ten classes. Narrow is `filters=(16, 32)`,
    `units=512`, wide `(64, 128)` and 2,048 (halving and doubling are recalled, with
    low confidence). Another network than `simple_cnn`, that of Lee et al.

    Source: Shallue et al. 2019, as re-implemented by Ren and Goldfarb 2021.
    """
    require_image("shallue2019_simple_cnn", input_shape)
    inputs = keras.Input(tuple(input_shape), name="image")
    x = inputs
    for index, width in enumerate(filters, start=1):
        x = conv(width, 5, f"conv{index}", activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, name=f"pool{index}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = dense(units, "dense1", activation="relu")(x)
    logits = dense(classes, "dense2")(x)
    return keras.Model(inputs, logits, name="shallue2019_simple_cnn")


# Convolutions of model A of Simonyan and Zisserman 2015; None is a max-pool of 2.
_VGG11 = (64, None, 128, None, 256, 256, None, 512, 512, None, 512, 512, None)


def vgg11(
    input_shape: Sequence[int],
    classes: int,
    units: int = 4096,
    dropout: float = 0.5,
) -> keras.Model:
    """Returns VGG-11: eight convolutions, three dense layers, no normalization.

    132,863,336 parameters on 224 x 224 x 3 and 1,000 classes; sides are at least 32.
    `units`: of both hidden dense layers; `dropout`: share of their outputs that
    training leaves out. Source: Simonyan and Zisserman 2015, model A; whether Shallue
    et al. used dropout is not known, the default is that of the original.
    """
    require_image("vgg11", input_shape)
    if min(input_shape[:2]) < 32:
        raise UserError(
            f"model 'vgg11' halves its images five times: {list(input_shape)} is too "
            "small, give sides of at least 32."
        )
    inputs = keras.Input(tuple(input_shape), name="image")
    x, convolutions, pools = inputs, 0, 0
    for width in _VGG11:
        if width is None:
            pools += 1
            x = layers.MaxPooling2D(2, name=f"pool{pools}")(x)
            continue
        convolutions += 1
        name = f"conv{convolutions}"
        x = conv(width, 3, name, activation="relu", padding="same")(x)
    x = layers.Flatten(name="flatten")(x)
    for index in (1, 2):
        x = dense(units, f"dense{index}", activation="relu")(x)
        if dropout:
            x = layers.Dropout(dropout, name=f"dropout{index}")(x)
    return keras.Model(inputs, dense(classes, "dense3")(x), name="vgg11")


def resnet50(
    input_shape: Sequence[int],
    classes: int,
    ghost_batch_size: int | None = 32,
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
) -> keras.Model:
    """Returns the pre-activation ResNet-50 with ghost batch normalization.

    25,549,352 trainable parameters on 224 x 224 x 3 and 1,000 classes. Bottlenecks in
    four groups; within one BN-ReLU-1x1, BN-ReLU-3x3 (which carries the stride),
    BN-ReLU-1x1 of four times the channels; the first block of a group projects its
    pre-activated input to make the shortcut. Convolutions have no bias; epsilon is
    1e-5, averages keep 0.997 of themselves at a step.

    Args:
        input_shape: [height, width, channels].
        classes: number of classes.
        ghost_batch_size: examples that share their statistics; None: the whole batch.
        blocks: bottlenecks in each group, whose channels double from group to group.
        width: channels of the first group's bottlenecks.

    Source: He et al. 2016 (pre-activation); details of the official TensorFlow models,
    version 2; ghosts of 32 as in Shallue et al. 2019. The head starts almost flat, so
    that the first loss is ln(classes), as in a record of their archive.
    """
    require_image("resnet50", input_shape)
    norm = _Normalization(ghost_batch_size)
    inputs = keras.Input(tuple(input_shape), name="image")
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
    flat = keras.initializers.RandomNormal(stddev=0.003)
    logits = layers.Dense(classes, kernel_initializer=flat, name="dense")(x)
    return keras.Model(inputs, logits, name="resnet50")


class _Normalization:
    """Batch normalization and ReLU of one network."""

    def __init__(self, ghost_batch_size: int | None):
        self._size = ghost_batch_size

    def __call__(self, x: Any, name: str) -> Any:
        norm = GhostBatchNormalization(
            self._size, momentum=0.997, epsilon=1e-5, name=f"{name}_norm"
        )
        return layers.ReLU(name=f"{name}_relu")(norm(x))


def _bottleneck(
    x: Any, width: int, stride: int, projects: bool, name: str, norm: _Normalization
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
        # The same on both sides, whatever the size: SAME would pad only one of them.
        y = layers.ZeroPadding2D(1, name=f"{name}_pad")(y)
    padding = "valid" if stride > 1 else "same"
    y = conv(
        width, 3, f"{name}_conv2", strides=stride, padding=padding, use_bias=False
    )(y)
    y = conv(4 * width, 1, f"{name}_conv3", use_bias=False)(norm(y, f"{name}_3"))
    return layers.Add(name=f"{name}_add")([shortcut, y])


def vit(  # noqa: PLR0913 - each is a binding of its own
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

    Patches of `patch` x `patch` pixels become tokens; pre-normalized blocks of
    attention and a perceptron of 4 `width` with GELU; the mean over tokens is
    classified, by a head that starts small.

    Args:
        input_shape: [height, width, channels], sides that `patch` divides.
        classes: number of classes.
        patch: side of a patch, in pixels.
        width: length of a token's vector, which `heads` divides.
        depth: blocks.
        heads: of attention.
        positions: `sinusoidal` (fixed waves over the patches in reading order) or
            `learned`.
        dropout: share of each block's outputs that training leaves out.

    Source: Dosovitskiy et al. 2021; Beyer et al. 2022 (mean instead of a class token,
    fixed positions). Deviations: waves run over one index, not over two; the
    head starts from a normal of 0.02, not from zero, where nothing below it would move
    at the first step.
    """
    require_image("vit", input_shape)
    rows, columns = input_shape[0] // patch, input_shape[1] // patch
    if input_shape[0] % patch or input_shape[1] % patch or width % heads:
        raise UserError(
            f"model 'vit' cuts images into patches of {patch}, and {width} into "
            f"{heads} heads: {list(input_shape)} does not fit, choose divisors."
        )
    if positions not in ("sinusoidal", "learned"):
        raise UserError(
            f"positions {positions!r} is unknown: give 'sinusoidal' or 'learned'."
        )
    inputs = keras.Input(tuple(input_shape), name="image")
    x = conv(width, patch, "patches", strides=patch)(inputs)
    x = layers.Reshape((rows * columns, width), name="tokens")(x)
    if positions == "learned":
        x = PositionEmbedding(name="position")(x)
    else:
        x = SinusoidalPositions(scale=False, name="position")(x)
    for index in range(1, depth + 1):
        x = attention_block(
            x, width, heads, f"block{index}", causal=False, dropout=dropout
        )
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    logits = layers.Dense(classes, kernel_initializer=small_normal(), name="dense")(x)
    return keras.Model(inputs, logits, name="vit")


def attention_block(  # noqa: PLR0913 - each is independent of the others
    x: Any,
    width: int,
    heads: int,
    name: str,
    *,
    causal: bool,
    dropout: float,
    use_bias: bool = True,
    residual_scale: float = 1.0,
) -> Any:
    """Returns a pre-normalized block of attention and a perceptron with GELU.

    `residual_scale` multiplies the standard deviation 0.02 of the two kernels whose
    outputs are added to the residual stream (Radford et al. 2019: 1 / sqrt of the
    number of additions).
    """

    def narrow() -> keras.initializers.Initializer:
        return keras.initializers.RandomNormal(stddev=0.02 * residual_scale)

    def linear(units: int, part: str, **arguments: Any) -> keras.layers.Layer:
        arguments.setdefault("kernel_initializer", small_normal())
        return layers.Dense(
            units, use_bias=use_bias, name=f"{name}_{part}", **arguments
        )

    def dropped(y: Any, part: str) -> Any:
        return layers.Dropout(dropout, name=f"{name}_{part}")(y) if dropout else y

    def normal(y: Any, part: str) -> Any:
        # Without biases as a whole, as in nanoGPT: the scale alone.
        return layers.LayerNormalization(
            epsilon=1e-5, center=use_bias, name=f"{name}_{part}"
        )(y)

    y = linear(3 * width, "attention_in")(normal(x, "norm1"))
    y = SelfAttention(heads, causal, name=f"{name}_attention")(y)
    y = linear(width, "attention_out", kernel_initializer=narrow())(y)
    x = layers.Add(name=f"{name}_add1")([x, dropped(y, "dropout1")])
    y = linear(4 * width, "dense1", activation="gelu")(normal(x, "norm2"))
    y = linear(width, "dense2", kernel_initializer=narrow())(y)
    return layers.Add(name=f"{name}_add2")([x, dropped(y, "dropout2")])
