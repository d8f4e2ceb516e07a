"""The random numbers of a training step, and the layers that draw them.

Each number is a function of the trial's seed, the step, the example's place in the
global batch and the layer. So a trial is the same on one device and on several, in
slices of any length, and when it continues after a kill. The generator is counter
based, so a replica draws for its own examples only and keeps no state (Philox 4x32:
Salmon et al. 2011, 'Parallel random numbers: as easy as 1, 2, 3').
"""

from __future__ import annotations

import contextlib
import math
import threading
import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models.structure import nodes_of

_PHILOX = 1  # value of tf.random.Algorithm.PHILOX in the operations
_BLOCK = 4  # words of 32 bits per count of the generator
_STATEFUL = (
    "StatefulUniform",
    "StatefulStandard",
    "StatefulTruncated",
    "StatefulRandom",
    "Rng",
    "NonDeterministicInts",
)
"""Prefixes of operations that draw from a state; older ones have an attribute seed."""
_ACTIVE = threading.local()

Shape: TypeAlias = Any
"""A sequence of whole numbers and scalar tensors, or a tensor."""


class StepDraws:
    """The draws of one replica in one step of one trial; made inside the step's graph.

    A draw has a name, and a number among the draws of this name in the step. Its
    leading dimension counts examples. If that is no multiple of the replica's examples,
    all examples of all replicas share the draw.

    Args:
        seed: int64 [], seed of the trial.
        step: int64 [], number of updates made before this one.
        first: position of the replica's first example in the global batch.
        examples: number of examples of the replica.
    """

    def __init__(self, seed: tf.Tensor, step: tf.Tensor, first: Any, examples: Any):
        self._key = tf.cast(tf.reshape(seed, [1]), tf.uint64)
        self._step = tf.cast(step, tf.int64)
        self._first = tf.cast(first, tf.int64)
        self._examples = examples
        self._drawn: dict[str, int] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Lets layers that are called in this thread draw from this object."""
        _ACTIVE.draws = self
        try:
            yield
        finally:
            del _ACTIVE.draws

    def bits(
        self, name: str, shape: Shape, width: int = 32, shared: bool = False
    ) -> tf.Tensor:
        """Returns uniform signed integers of `width` bits (8, 16 or 32) of a shape.

        Fewer bits cost less. `shared`: whether all examples share the draw.
        """
        shape, first, examples = self._layout(shape, shared)
        count = math.prod(shape) if isinstance(shape, list) else tf.reduce_prod(shape)
        per_example = count // examples
        per_block = _BLOCK * 32 // width
        blocks = (per_example + per_block - 1) // per_block
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[examples * blocks * _BLOCK],
            key=self._key,
            counter=self._counter(name, first * tf.cast(blocks, tf.int64)),
            alg=_PHILOX,
            dtype=tf.int32,
        )
        narrow = {8: tf.int8, 16: tf.int16, 32: tf.int32}[width]
        rows = tf.reshape(tf.bitcast(words, narrow), [examples, blocks * per_block])
        return tf.reshape(rows[:, :per_example], shape)

    def _layout(self, shape: Shape, shared: bool) -> tuple[Any, Any, Any]:
        """Returns (shape, first example, examples) of a draw; ints if static."""
        sides = [_static(side) for side in _sides(shape)]
        leading, examples = sides[0] if sides else 1, self._examples
        if isinstance(leading, int) and isinstance(examples, int):
            shared = shared or leading % examples != 0
        whole: Any = sides
        if not all(isinstance(side, int) for side in sides):
            whole = tf.stack([tf.cast(side, tf.int32) for side in sides])
        if shared or not sides:
            return whole, tf.constant(0, tf.int64), 1
        return whole, self._first, examples

    def _counter(self, name: str, block: tf.Tensor) -> tf.Tensor:
        """Returns uint64 [2]: the block, then draw and step as the high word."""
        number = self._drawn.get(name, 0)
        self._drawn[name] = number + 1
        # 31 bits keep the int64 sum from being negative; the step has the other 32.
        purpose = zlib.crc32(f"{name}/{number}".encode()) >> 1
        high = tf.constant(purpose << 32, tf.int64) + self._step
        return tf.cast(tf.stack([block, high]), tf.uint64)

    def uniform(
        self,
        name: str,
        shape: Shape,
        low: Any = 0.0,
        high: Any = 1.0,
        shared: bool = False,
    ) -> tf.Tensor:
        """Returns uniform float32 in [low, high), scaled from multiples of 2^-24."""
        words = tf.bitcast(self.bits(name, shape, shared=shared), tf.uint32)
        unit = tf.cast(
            tf.bitwise.right_shift(words, tf.constant(8, tf.uint32)), "float"
        )
        return low + (high - low) * (unit * 2.0**-24)

    def integers(
        self, name: str, shape: Shape, low: Any, high: Any, shared: bool = False
    ) -> tf.Tensor:
        """Returns uniform int32 in [low, high); high - low is at most 2^31 - 1."""
        positive = self.bits(name, shape, shared=shared) & 0x7FFFFFFF
        return low + positive % (high - low)

    def normal(
        self, name: str, shape: Shape, bound: float = math.inf, shared: bool = False
    ) -> tf.Tensor:
        """Returns standard normal float32, truncated at +-`bound`.

        Values are the inverse of the distribution function at the middles of 2^23 equal
        intervals, so that no value lies beyond 5.3 deviations.
        """
        words = tf.bitcast(self.bits(name, shape, shared=shared), tf.uint32)
        cell = tf.cast(
            tf.bitwise.right_shift(words, tf.constant(9, tf.uint32)), "float"
        )
        symmetric = (cell + 0.5) * 2.0**-22 - 1.0
        return math.sqrt(2.0) * tf.math.erfinv(
            symmetric * math.erf(bound / math.sqrt(2.0))
        )

    def drop(
        self, name: str, inputs: tf.Tensor, rate: float, shape: Any, shared: bool
    ) -> tf.Tensor:
        """Returns inputs with a random share set to zero and the others scaled up.

        `rate`: the share, rounded to a multiple of 2^-16; `shape`: shape of the draw,
        None for the inputs' own; `shared`: see `bits`. The mean stays the same.
        """
        if shape is None:
            static = inputs.shape
            shape = static.as_list() if static.is_fully_defined() else tf.shape(inputs)
        dropped = round(rate * 2**16)
        if dropped in (0, 2**16):
            return inputs * (1 - dropped / 2**16)
        kept = self.bits(name, shape, 16, shared) >= dropped - 2**15
        scale = 2**16 / (2**16 - dropped)
        return tf.where(kept, inputs * scale, tf.zeros_like(inputs))


def _sides(shape: Shape) -> list[Any]:
    return tf.unstack(shape) if isinstance(shape, tf.Tensor) else list(shape)


def _static(side: Any) -> Any:
    """Returns a side of a shape as an int, or unchanged if it is not static."""
    static = tf.get_static_value(side)
    return side if static is None else int(static)


class _LayerDraws:
    """Replaces Keras's generator in the random layer `number`; draws from the step."""

    def __init__(self, layer: keras.layers.Layer, number: int):
        self._rng_type = layer._random_generator._rng_type  # part of its config
        self._layer = layer.name
        # A layer's name would depend on the number of layers in the process.
        self._name = f"layer {number}"
        noise = getattr(layer, "noise_shape", None) or (None,)
        # RandomCrop crops a batch at one place; noise of shape 1 is one mask for all.
        self._shared = isinstance(layer, keras.layers.RandomCrop) or noise[0] == 1

    def _maybe_init(self) -> None:
        """Does nothing; Keras calls this when the layer is built."""

    @property
    def _draws(self) -> StepDraws:
        draws = getattr(_ACTIVE, "draws", None)
        if draws is None:
            raise UserError(
                f"layer {self._layer!r} draws random numbers outside of a training "
                "step: evaluation must be a function of the weights, so call it with "
                "training=False there."
            )
        return draws

    def random_uniform(
        self,
        shape: Shape,
        minval: Any = 0.0,
        maxval: Any = None,
        dtype: Any = None,
        nonce: Any = None,
    ) -> tf.Tensor:
        dtype = tf.as_dtype(dtype or keras.backend.floatx())
        arguments = (self._name, shape, minval, 1.0 if maxval is None else maxval)
        if dtype.is_integer:
            return tf.cast(self._draws.integers(*arguments, self._shared), dtype)
        return tf.cast(self._draws.uniform(*arguments, self._shared), dtype)

    def random_normal(
        self,
        shape: Shape,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = None,
        nonce: Any = None,
        bound: float = math.inf,
    ) -> tf.Tensor:
        drawn = self._draws.normal(self._name, shape, bound, self._shared)
        return tf.cast(mean + stddev * drawn, dtype or keras.backend.floatx())

    def truncated_normal(self, shape: Shape, **keywords: Any) -> tf.Tensor:
        return self.random_normal(shape, **keywords, bound=2.0)

    def dropout(
        self, inputs: tf.Tensor, rate: float, noise_shape: Any = None
    ) -> tf.Tensor:
        return self._draws.drop(self._name, inputs, rate, noise_shape, self._shared)

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        """Returns a seed for the whole batch, int32 [2]."""
        return self._draws.bits(self._name, [2], shared=True)

    def flipped(self, images: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns images [n, ...], each mirrored along `axis` with probability 1/2."""
        shape = [tf.shape(images)[0], *[1] * (images.shape.rank - 1)]
        mirrored = self._draws.bits(self._name, shape, 8) >= 0
        return tf.where(mirrored, tf.reverse(images, [axis]), images)


def draws_at_random(model: keras.Model) -> bool:
    """Returns whether a model has a layer that may draw random numbers in training."""
    return bool(_random_layers(model))


def _random_layers(model: keras.Model) -> list[keras.layers.Layer]:
    kind = keras.__internal__.layers.BaseRandomLayer
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def seed_layers(model: keras.Model) -> None:
    """Lets every random layer of a model draw from the step; see `StepDraws`.

    A user's random layers must derive from Keras's `BaseRandomLayer`.
    """
    for number, layer in enumerate(_random_layers(model)):
        draws = _LayerDraws(layer, number)
        layer._random_generator = draws
        if isinstance(layer, keras.layers.RandomFlip):
            # Keras flips by one seed for a replica's whole share of the batch.
            layer.call = _flip(layer, draws)


def _flip(layer: keras.layers.Layer, draws: _LayerDraws) -> Any:
    def call(inputs: tf.Tensor, training: Any = True) -> tf.Tensor:
        images = tf.cast(inputs, layer.compute_dtype)
        if not training:
            return images
        for axis, wanted in ((2, layer.horizontal), (1, layer.vertical)):
            if wanted:
                images = draws.flipped(images, axis)
        return images

    return call


def check_graph(graph: tf.Graph, model: keras.Model) -> set[str]:
    """Returns types of a step's operations; UserError if one draws without seed."""
    nodes = nodes_of(graph)
    for node in nodes:
        if node.op.startswith(_STATEFUL) or ("seed" in node.attr and _drops(node)):
            raise UserError(
                f"{_place(node.name, model)} draws random numbers that no seed of the "
                f"trial decides (operation {node.op!r} at {node.name!r}), so no trial "
                "could be repeated: use a stock random layer, or a layer that derives "
                "from keras.__internal__.layers.BaseRandomLayer and draws from its "
                "_random_generator."
            )
    return {node.op for node in nodes}


def _drops(node: Any) -> bool:
    """Returns whether an operation with a seed uses that seed."""
    # Keras's LSTM and GRU implement dropout themselves, with none of cuDNN's.
    return "dropout" not in node.attr or node.attr["dropout"].f > 0


def _place(path: str, model: keras.Model) -> str:
    """Returns a description of an operation's layer, for a message."""
    scopes = path.split("/")
    layers = {layer.name: type(layer).__name__ for layer in model._flatten_layers()}
    names = [name for name in scopes if name in layers and name != model.name]
    if not names:
        return f"the training step of model {model.name!r}"
    return f"layer {names[-1]!r} ({layers[names[-1]]}) of model {model.name!r}"
