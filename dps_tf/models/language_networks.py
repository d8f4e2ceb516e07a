"""Language models: the networks of Shallue et al. 2019, and small ones.

The networks are functional tf_keras models from int32 tokens [batch, length] to float32
logits [batch, length, vocabulary]. Logits at position t read the tokens 0..t only, so
padding at the end of a sequence changes no other position; losses leave padding out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models.layers import (
    PositionEmbedding,
    SelfAttention,
    dense,
    fan_in_normal,
    small_dense,
    small_normal,
)
from dps_tf.models.sequence_layers import (
    ProjectedLSTMCell,
    SinusoidalPositions,
    TiedEmbedding,
)

layers = keras.layers


def _token_input(
    name: str,
    input_shape: Sequence[int | None],
    width: int,
    heads: int = 1,
    any_length: bool = False,
) -> Any:
    if tuple(input_shape) == (None,) and not any_length:
        raise UserError(
            f"model {name!r} has a vector for each position and takes sequences of one "
            "length: leave training_length out of workload.dataset_arguments, or "
            "choose 'transformer' or 'lstm'."
        )
    if len(input_shape) != 1 or width % heads:
        raise UserError(
            f"model {name!r} takes token sequences [length] and a width that its heads "
            f"divide, not inputs of shape {list(input_shape)}, width {width} and "
            f"{heads} heads."
        )
    return keras.Input(tuple(input_shape), dtype="int32", name="tokens")


def tiny_transformer(
    input_shape: Sequence[int],
    classes: int,
    width: int = 64,
    heads: int = 4,
    blocks: int = 2,
) -> keras.Model:
    """Returns a causal language model: int32 [batch, length] -> logits.

    Pre-normalized blocks have attention and a perceptron of 4 `width` units.
    `input_shape`: [length]; `classes`: number of tokens in the vocabulary.
    """
    inputs = _token_input("tiny_transformer", input_shape, width, heads)
    embed = layers.Embedding(
        classes, width, embeddings_initializer=small_normal(), name="embedding"
    )
    x = PositionEmbedding(name="position")(embed(inputs))
    for index in range(1, blocks + 1):
        name, kernel = f"block{index}", fan_in_normal
        x = attention_block(x, width, heads, name, kernel=kernel, epsilon=1e-3)
    x = layers.LayerNormalization(name="norm")(x)
    return keras.Model(inputs, small_dense(classes)(x), name="tiny_transformer")


def attention_block(  # noqa: PLR0913 - the arguments are independent
    x: Any,
    width: int,
    heads: int,
    name: str,
    *,
    causal: bool = True,
    dropout: float = 0.0,
    use_bias: bool = True,
    kernel: Callable[[], keras.initializers.Initializer] = small_normal,
    added_kernel: Callable[[], keras.initializers.Initializer] | None = None,
    epsilon: float = 1e-5,
) -> Any:
    """Returns `x` after a pre-normalized block of attention and a GELU perceptron.

    `kernel` returns the initializer of a kernel, and `added_kernel` the initializer of
    the two kernels that feed the residual additions, by default the same.
    """

    def linear(
        units: int, part: str, initializer: Any = kernel, **arguments: Any
    ) -> keras.layers.Layer:
        arguments = {**arguments, "kernel_initializer": initializer()}
        return layers.Dense(
            units, use_bias=use_bias, name=f"{name}_{part}", **arguments
        )

    def dropped(y: Any, part: str) -> Any:
        return layers.Dropout(dropout, name=f"{name}_{part}")(y) if dropout else y

    def normal(y: Any, part: str) -> Any:
        # Without biases, normalization has a scale only, as in nanoGPT.
        return layers.LayerNormalization(
            epsilon=epsilon, center=use_bias, name=f"{name}_{part}"
        )(y)

    added = added_kernel or kernel

    y = linear(3 * width, "attention_in")(normal(x, "norm1"))
    y = SelfAttention(heads, causal, name=f"{name}_attention")(y)
    y = linear(width, "attention_out", added)(y)
    x = layers.Add(name=f"{name}_add1")([x, dropped(y, "dropout1")])
    y = linear(4 * width, "dense1", activation="gelu")(normal(x, "norm2"))
    y = linear(width, "dense2", added)(y)
    return layers.Add(name=f"{name}_add2")([x, dropped(y, "dropout2")])


def transformer(  # noqa: PLR0913 - each argument is a binding
    input_shape: Sequence[int | None],
    classes: int,
    width: int = 512,
    hidden: int = 2048,
    heads: int = 8,
    depth: int = 6,
    norm_first: bool = True,
    tied: bool = False,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns the decoder-only Transformer of Shallue et al., by default of base size.

    It has fixed sinusoidal positions, embeddings times the square root of the width,
    attention without biases, perceptrons with ReLU and biases, and a separate output
    matrix without bias. These are 51,671,040 parameters with 32,000 tokens.

    Args:
        input_shape: [length], or [None] for sequences of any length.
        classes: number of tokens in the vocabulary.
        width: length of a token's vector; even, and a multiple of `heads`.
        hidden: units of the perceptrons.
        heads: number of attention heads.
        depth: number of blocks.
        norm_first: whether normalization is before each part and at the end, or after
            each part.
        tied: whether embedding and output share one matrix.
        dropout: share of each part's outputs that training drops.

    Source: Vaswani et al. 2017. The place of normalization, the positions and the sizes
    other than base are assumed, because Shallue et al. only name them.
    """
    inputs = _token_input("transformer", input_shape, width, heads, any_length=True)
    embedding = _embedding(classes, width, tied)
    x = SinusoidalPositions(name="position")(embedding(inputs))

    def normal(y: Any, name: str) -> Any:
        return layers.LayerNormalization(epsilon=1e-6, name=name)(y)

    def attention(y: Any, name: str) -> Any:
        y = dense(3 * width, f"{name}_attention_in", use_bias=False)(y)
        y = SelfAttention(heads, name=f"{name}_attention")(y)
        return dense(width, f"{name}_attention_out", use_bias=False)(y)

    def perceptron(y: Any, name: str) -> Any:
        y = dense(hidden, f"{name}_dense1", activation="relu")(y)
        return dense(width, f"{name}_dense2")(y)

    for index in range(1, depth + 1):
        for part, function in enumerate((attention, perceptron), start=1):
            name, place = f"block{index}", f"block{index}_norm{part}"
            y = function(normal(x, place) if norm_first else x, name)
            if dropout:
                y = layers.Dropout(dropout, name=f"{name}_dropout{part}")(y)
            x = layers.Add(name=f"{name}_add{part}")([x, y])
            x = x if norm_first else normal(x, place)
    x = normal(x, "norm") if norm_first else x
    last = embedding if tied else small_dense(classes, use_bias=False)
    readout = {"readout": True} if tied else {}
    return keras.Model(inputs, last(x, **readout), name="transformer")


def _embedding(classes: int, width: int, tied: bool) -> keras.layers.Layer:
    if tied:
        return TiedEmbedding(classes, width, name="embedding")
    # Variance 1 / width, which becomes 1 by the factor sqrt(width).
    normal = keras.initializers.RandomNormal(stddev=width**-0.5)
    return layers.Embedding(
        classes, width, embeddings_initializer=normal, name="embedding"
    )


def lstm(
    input_shape: Sequence[int | None],
    classes: int,
    width: int = 1024,
    units: int = 2048,
    projection: int = 512,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns the LSTM of Shallue et al.: one layer with recurrent projection.

    It has 62,791,680 parameters with 32,000 tokens; the output matrix has no bias. The
    state is zero at the start of each sequence.

    Args:
        input_shape: [length], or [None] for sequences of any length.
        classes: number of tokens in the vocabulary.
        width: length of a token's vector.
        units: number of memory cells.
        projection: size of the layer's output, which the next position reads.
        dropout: share of embeddings and outputs that training drops.

    Source: Shallue et al. 2019 after Jozefowicz et al. 2016 (LSTM-2048-512).
    """
    inputs = _token_input("lstm", input_shape, width, any_length=True)
    x = layers.Embedding(
        classes, width, embeddings_initializer=fan_in_normal(), name="embedding"
    )(inputs)
    if dropout:
        x = layers.Dropout(dropout, name="dropout1")(x)
    cell = ProjectedLSTMCell(units, projection, name="cell")
    x = layers.RNN(cell, return_sequences=True, name="lstm")(x)
    if dropout:
        x = layers.Dropout(dropout, name="dropout2")(x)
    logits = small_dense(classes, use_bias=False)(x)
    return keras.Model(inputs, logits, name="lstm")


def gpt(  # noqa: PLR0913 - each argument is a binding
    input_shape: Sequence[int],
    classes: int,
    width: int = 128,
    heads: int = 4,
    depth: int = 4,
    use_bias: bool = False,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns a GPT with tied embeddings; the defaults are nanoGPT's size for a CPU.

    It has learned positions, pre-normalized blocks, GELU, and 804,096 parameters with
    65 tokens and a length of 64.

    Args:
        input_shape: [length].
        classes: number of tokens in the vocabulary.
        width: length of a token's vector; a multiple of `heads`.
        heads: number of attention heads.
        depth: number of blocks.
        use_bias: whether linear layers and normalizations have biases.
        dropout: share of the embeddings and of each part's outputs that training drops.

    Source: Radford et al. 2019; sizes of karpathy/nanoGPT. Deviations: GELU is exact,
    and attention weights have no dropout.
    """
    inputs = _token_input("gpt", input_shape, width, heads)
    embedding = TiedEmbedding(classes, width, name="embedding")
    x = PositionEmbedding(name="position")(embedding(inputs))
    if dropout:
        x = layers.Dropout(dropout, name="dropout")(x)
    # Radford et al. 2019: 1 / sqrt(number of residual additions).
    scale = (2 * depth) ** -0.5
    added = functools.partial(keras.initializers.RandomNormal, stddev=0.02 * scale)
    block = functools.partial(
        attention_block, dropout=dropout, use_bias=use_bias, added_kernel=added
    )
    for index in range(1, depth + 1):
        x = block(x, width, heads, f"block{index}")
    x = layers.LayerNormalization(epsilon=1e-5, center=use_bias, name="norm")(x)
    return keras.Model(inputs, embedding(x, readout=True), name="gpt")
