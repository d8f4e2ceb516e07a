"""Transforms change examples on their way into a network: whitening, crops, noise.

A transform runs inside the compiled step, on a whole batch at a time, so it costs
little and is the same wherever the data lie. What it draws is a function of the trial's
seed, the step and the example's place in the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from dps_tf.core import UserError, check_known

_COUNTED_IMAGES = 1_000  # at a time: counting takes eight bytes for each
Pair = tuple[tf.Tensor, tf.Tensor]


class Draws(Protocol):
    """Random numbers for the examples of a batch, one row each.

    Each draw has a name: draws of different names do not depend on each other.
    """

    def uniform(self, name: str, shape: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
        """Returns float32 in [low, high) of a shape that begins with the examples."""

    def integers(self, name: str, shape: Any, low: Any, high: Any) -> Any:
        """Returns int32 in [low, high) of a shape that begins with the examples."""


class Transform(Protocol):
    """Turns examples as they are stored into what a network reads."""

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None, /
    ) -> Pair:
        """Returns (inputs, labels) of a batch, [n, ...] each, from those stored.

        `draws`: in a training step, its random numbers; None in evaluation, which has
        none: what is returned then has the shape of that in training, unless the
        transform says that it `shortens` sequences in training.
        """


@dataclass(frozen=True)
class PadAndCrop:
    """Moves images [n, height, width, channels] by up to `padding` pixels.

    Images are padded with `padding` zeros on each side and cropped to their own size at
    a place that is drawn for each; in evaluation they stay. Source: He et al. 2016,
    'Deep residual learning for image recognition', section 4.2.
    """

    padding: int = 4

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        if draws is None:
            return inputs, labels
        _, height, width, channels = inputs.shape
        count, spare = tf.shape(inputs)[0], 2 * self.padding
        begin = draws.integers("crop", [count, 2], 0, spare + 1)
        # A row is one dimension: slices of one pixel cost several times as much.
        moved = tf.pad(
            tf.reshape(inputs, [count, height, width * channels]),
            [[0, 0], [self.padding] * 2, [self.padding * channels] * 2],
        )
        rows = begin[:, :1] + tf.range(height)
        moved = tf.gather(moved, rows, axis=1, batch_dims=1)
        # Columns by halving: moved by a half of what may be left to move, or not.
        left = begin[:, 1]
        while spare:
            half = (spare + 1) // 2
            far, skipped = left >= half, half * channels
            moved = _choose(far, moved[:, :, skipped:], moved[:, :, :-skipped])
            left -= half * tf.cast(far, tf.int32)
            spare -= half
        moved = tf.reshape(moved, tf.shape(inputs))
        return tf.ensure_shape(moved, inputs.shape), labels


@dataclass(frozen=True)
class Flip:
    """Mirrors images [n, height, width, channels] left to right, each with odds 1/2.

    In evaluation they stay.
    """

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        if draws is None:
            return inputs, labels
        _, _, width, channels = inputs.shape
        drawn = draws.uniform("flip", [tf.shape(inputs)[0], 1, 1, 1]) < 0.5
        # TensorFlow reverses the rows of three dimensions faster than those of four.
        rows = tf.reshape(inputs, [-1, width, channels])
        mirrored = tf.reshape(tf.reverse(rows, [1]), tf.shape(inputs))
        chosen = _choose(tf.reshape(drawn, [-1]), mirrored, inputs)
        return tf.ensure_shape(chosen, inputs.shape), labels


def _choose(condition: tf.Tensor, there: tf.Tensor, elsewhere: tf.Tensor) -> tf.Tensor:
    """Returns `there` for examples with a true condition, [n], else `elsewhere`."""
    # Copies whole examples; `tf.where` would ask the condition for each pixel.
    return tf.compat.v1.where(condition, there, elsewhere)


@dataclass(frozen=True)
class CropTokens:
    """Takes `length` consecutive positions of longer sequences, [n, stored length].

    Where they begin is drawn for each sequence; in evaluation they are the first.
    Labels with a position for each token are cropped alike.
    """

    length: int

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        spare = inputs.shape[1] - self.length
        if self.length < 1 or spare < 0:
            raise UserError(
                f"sequences cannot be cropped to length {self.length}: it must be "
                f"between 1 and the {inputs.shape[1]} tokens that are stored."
            )
        per_token = labels.shape.rank > 1
        if draws is None:
            part = slice(self.length)
            return inputs[:, part], labels[:, part] if per_token else labels
        begin = draws.integers("crop", [tf.shape(inputs)[0], 1], 0, spare + 1)
        places = begin + tf.range(self.length)
        inputs = tf.gather(inputs, places, axis=1, batch_dims=1)
        if per_token:
            labels = tf.gather(labels, places, axis=1, batch_dims=1)
        return inputs, labels


@dataclass(frozen=True)
class FirstTokens:
    """Leaves the first `length` tokens of sequences, [n, stored length], in training.

    Labels with a position for each token are cut alike. In evaluation all tokens stay,
    so that a network has to take sequences of both lengths.
    """

    length: int
    shortens = True

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        if draws is None:
            return inputs, labels
        part = slice(self.length)
        return inputs[:, part], labels[:, part] if labels.shape.rank > 1 else labels


@dataclass(frozen=True)
class MaskTokens:
    """Replaces a share `rate` of the input tokens, [n, length], by `token`.

    Each position is drawn by itself; in evaluation all tokens stay. `keep`: a token
    that is never replaced, such as padding.
    """

    rate: float
    token: int
    keep: int | None = None

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        if draws is None:
            return inputs, labels
        masked = draws.uniform("mask", tf.shape(inputs)) < self.rate
        if self.keep is not None:
            masked &= inputs != self.keep
        return tf.where(masked, tf.cast(self.token, inputs.dtype), inputs), labels


@dataclass(frozen=True)
class Chain:
    """Applies transforms one after the other."""

    parts: tuple[Transform, ...]

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        for part in self.parts:
            inputs, labels = part(inputs, labels, draws)
        return inputs, labels

    @property
    def shortens(self) -> bool:
        """Whether one of its parts does."""
        return any(getattr(part, "shortens", False) for part in self.parts)


IMAGE_TRANSFORMS: dict[str, Transform] = {
    "pad_and_crop": PadAndCrop(),
    "flip": Flip(),
}
"""The transforms that a data set of images takes as `augmentation`, by name."""


def image_augmentation(names: Sequence[str]) -> Transform | None:
    """Returns the named transforms of images, in that order; None for no names."""
    for name in names:
        check_known("augmentation", name, IMAGE_TRANSFORMS)
    return Chain(tuple(IMAGE_TRANSFORMS[name] for name in names)) if names else None


@dataclass(frozen=True)
class Whitening:
    """Maps pixels to float32: divided by the maximum, minus mean, over deviation.

    `table`: float32 [values, channels], what each pixel value becomes. Pixel values are
    few, so a table gives the same bits on every machine and never holds float64 images.
    """

    table: np.ndarray

    @classmethod
    def of(cls, pixels: np.ndarray, maximum: int = 255) -> Whitening:
        """Returns the whitening by mean and deviation of all `pixels`, per channel.

        `pixels`: uint8 [n, height, width, channels], those of the validation set
        included. Source: Lee et al. 2021, published code.
        """
        return cls.of_counts(pixel_counts(pixels, maximum))

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Whitening:
        """Returns the whitening of images whose values `pixel_counts` has counted."""
        maximum = counts.shape[1] - 1
        columns = []
        values = np.arange(maximum + 1) / maximum
        # Each operation in float32 like the published code: pixels of another last bit
        # move the maximum of a pool, and with it the gradient of a whole filter.
        table = np.arange(maximum + 1, dtype=np.float32) / np.float32(maximum)
        for of_channel in counts:
            weights = of_channel / of_channel.sum()
            mean = weights @ values
            deviation = np.sqrt(weights @ (values - mean) ** 2)
            columns.append((table - np.float32(mean)) / np.float32(deviation))
        return cls(np.stack(columns, axis=-1))

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Returns float32 [n, height, width, channels]."""
        return self.table[pixels, np.arange(self.table.shape[-1])]


def to_unit(pixels: np.ndarray) -> np.ndarray:
    """Returns bytes divided by 255, float32 of the same shape."""
    return pixels.astype(np.float32) / np.float32(255)


def standardized(pixels: np.ndarray) -> np.ndarray:
    """Returns images [n, ...], each with mean 0 and deviation 1, float32.

    The deviation counts as 1 / sqrt(values of an image) at least, as in
    `tf.image.per_image_standardization`.
    """
    axes = tuple(range(1, pixels.ndim))
    values = pixels.astype(np.float64)
    centered = values - values.mean(axes, keepdims=True)
    least = 1.0 / np.sqrt(np.prod(pixels.shape[1:]))
    deviation = np.maximum(values.std(axes, keepdims=True), least)
    return (centered / deviation).astype(np.float32)


SCALINGS = {"unit": to_unit, "standardized": standardized}
"""The scalings of bytes of images beside whitening, by name."""


def pixel_counts(pixels: np.ndarray, maximum: int = 255) -> np.ndarray:
    """Returns how often each value 0..maximum occurs, int64 [channels, values].

    `pixels`: uint8 [n, height, width, channels]; read a part at a time.
    """
    counts = np.zeros((pixels.shape[-1], maximum + 1), np.int64)
    for start in range(0, len(pixels), _COUNTED_IMAGES):
        part = pixels[start : start + _COUNTED_IMAGES]
        for channel, into in enumerate(counts):
            into += np.bincount(part[..., channel].ravel(), minlength=maximum + 1)
    return counts


_MEAN = (123.68, 116.78, 103.94)  # of red, green and blue over ImageNet


def decoded(content: bytes, what: str) -> tf.Tensor:
    """Returns an image, uint8 [height, width, 3].

    UserError that names `what` for bytes that are no image (JPEG, PNG, GIF or BMP).
    """
    try:
        with tf.device("CPU:0"):
            return tf.io.decode_image(content, channels=3, expand_animations=False)
    except tf.errors.OpError as error:
        reason = (error.message or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{what} cannot be decoded as an image ({reason[:160]}): replace or remove "
            "it and prepare the set again."
        ) from error


def decoded_square(content: bytes, side: int, what: str) -> np.ndarray:
    """Returns the central square of an image, uint8 [side, side, 3], antialiased.

    `what`: see `decoded`.
    """
    image = decoded(content, what)
    height, width = image.shape[:2]
    cut = min(height, width)
    top, left = (height - cut) // 2, (width - cut) // 2
    with tf.device("CPU:0"):
        square = image[top : top + cut, left : left + cut]
        if cut != side:
            square = tf.image.resize(square, (side, side), antialias=True)
            square = tf.cast(tf.clip_by_value(tf.round(square), 0, 255), tf.uint8)
    return np.asarray(square.numpy(), np.uint8)


@dataclass(frozen=True)
class SquareCrops:
    """Crops of `side` from squares [n, stored, stored, 3], resized and mirrored.

    In training the square is resized to a side that is drawn uniformly from the whole
    numbers [shortest, longest], a crop is taken at a place that is drawn, and mirrored
    with odds 1/2; in evaluation the square is resized to `shortest` and the crop is
    central. Resizing and cropping are one bilinear lookup. The mean colour of ImageNet
    is subtracted, and nothing divided.

    Source: Simonyan and Zisserman 2015, section 3.1, as Shallue et al. 2019 are said to
    have it. Deviation: crops come from the central square of a photograph.
    """

    side: int = 224
    shortest: int = 256
    longest: int = 512

    keeps_labels = True

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """See the class."""
        images = tf.cast(inputs, tf.float32)
        count, stored = tf.shape(images)[0], images.shape[1]
        if draws is None:
            sizes = tf.fill([count, 1], float(self.shortest))
            corners = tf.fill([count, 2], float((self.shortest - self.side) // 2))
        else:
            drawn = draws.integers("size", [count, 1], self.shortest, self.longest + 1)
            sizes = tf.cast(drawn, tf.float32)
            free = sizes - float(self.side) + 1.0
            corners = tf.floor(draws.uniform("crop", [count, 2]) * free)
        # Centers of the first and last pixel of a crop, in pixels of the stored square.
        begin = (corners + 0.5) / sizes * stored - 0.5
        end = (corners + self.side - 0.5) / sizes * stored - 0.5
        # One pixel more on each side: what lies outside of a picture would be black.
        framed = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "SYMMETRIC")
        boxes = (tf.concat([begin, end], axis=1) + 1.0) / (stored + 1.0)
        crops = tf.image.crop_and_resize(
            framed, boxes, tf.range(count), (self.side, self.side)
        )
        if draws is not None:
            mirrored = draws.uniform("flip", [count, 1, 1, 1]) < 0.5
            crops = tf.where(mirrored, tf.reverse(crops, [2]), crops)
        return tf.ensure_shape(crops, [None, self.side, self.side, 3]) - _MEAN, labels
