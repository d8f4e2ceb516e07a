"""Transforms of examples before a network reads them: whitening, crops, masks.

A transform runs inside the compiled step, on a whole batch at a time, so it costs
little and does not depend on where the data are stored. Its random numbers are a
function of the trial's seed, the step and the example's place in the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from dps_tf.core import UserError, check_known

_COUNTED_IMAGES = 1_000  # at a time: counting takes eight bytes for each pixel
Pair = tuple[tf.Tensor, tf.Tensor]


class Draws(Protocol):
    """Random numbers for a batch, one row for each example.

    Each draw has a name; draws with different names are independent of each other.
    """

    def uniform(self, name: str, shape: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
        """Returns float32 in [low, high); the first dimension counts examples."""

    def integers(self, name: str, shape: Any, low: Any, high: Any) -> Any:
        """Returns int32 in [low, high); the first dimension counts examples."""


class Transform(Protocol):
    """A function that turns stored examples into what a network reads."""

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None, /
    ) -> Pair:
        """Returns (inputs, labels) of a batch, [n, ...] each, from the stored ones.

        `draws`: random numbers of a training step; None in evaluation. Results have the
        same shape in both, unless the transform has a true attribute `shortens`: then
        sequences are shorter in training.
        """


class _OfTraining:
    """A transform that evaluation goes without."""

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """Returns the transformed inputs and labels."""
        return (
            (inputs, labels) if draws is None else self._changed(inputs, labels, draws)
        )

    def _changed(self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws) -> Pair:
        raise NotImplementedError


@dataclass(frozen=True)
class PadAndCrop(_OfTraining):
    """Moves images [n, height, width, channels] by up to `padding` pixels.

    Images are padded with `padding` zeros on each side and cropped to their own size at
    a place that is drawn for each; in evaluation they are unchanged. Source: He et al.
    2016, 'Deep residual learning for image recognition', section 4.2.
    """

    padding: int = 4

    def _changed(self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws) -> Pair:
        _, height, width, channels = inputs.shape
        count, spare = tf.shape(inputs)[0], 2 * self.padding
        begin = draws.integers("crop", [count, 2], 0, spare + 1)
        # Columns and channels are one dimension: slices of one pixel are far slower.
        moved = tf.pad(
            tf.reshape(inputs, [count, height, width * channels]),
            [[0, 0], [self.padding] * 2, [self.padding * channels] * 2],
        )
        rows = begin[:, :1] + tf.range(height)
        moved = tf.gather(moved, rows, axis=1, batch_dims=1)
        # Columns are shifted in steps, each of half the shift that may remain, or of 0.
        left = begin[:, 1]
        while spare:
            half = (spare + 1) // 2
            shifts, skipped = left >= half, half * channels
            moved = _choose(shifts, moved[:, :, skipped:], moved[:, :, :-skipped])
            left -= half * tf.cast(shifts, tf.int32)
            spare -= half
        moved = tf.reshape(moved, tf.shape(inputs))
        return tf.ensure_shape(moved, inputs.shape), labels


@dataclass(frozen=True)
class Flip(_OfTraining):
    """Mirrors images [n, height, width, channels] left to right with probability 1/2.

    In evaluation images are unchanged.
    """

    def _changed(self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws) -> Pair:
        _, _, width, channels = inputs.shape
        drawn = draws.uniform("flip", [tf.shape(inputs)[0], 1, 1, 1]) < 0.5
        # TensorFlow reverses rows faster in three dimensions than in four.
        rows = tf.reshape(inputs, [-1, width, channels])
        mirrored = tf.reshape(tf.reverse(rows, [1]), tf.shape(inputs))
        chosen = _choose(tf.reshape(drawn, [-1]), mirrored, inputs)
        return tf.ensure_shape(chosen, inputs.shape), labels


def _choose(condition: tf.Tensor, if_true: tf.Tensor, if_false: tf.Tensor) -> tf.Tensor:
    """Returns `if_true` for examples with a true `condition` [n], else `if_false`."""
    # This copies whole examples; `tf.where` would evaluate the condition per pixel.
    return tf.compat.v1.where(condition, if_true, if_false)


@dataclass(frozen=True)
class CropTokens:
    """Takes `length` consecutive tokens of longer sequences, [n, stored length].

    Their beginning is drawn for each sequence; in evaluation they are the first ones.
    Labels with a position for each token are cropped to the same positions.
    """

    length: int

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """Returns the transformed inputs and labels."""
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
class FirstTokens(_OfTraining):
    """Keeps the first `length` tokens of sequences, [n, stored length], in training.

    Labels with a position for each token are cut to the same positions. In evaluation
    all tokens are kept: the network must accept sequences of both lengths.
    """

    length: int
    shortens = True

    def _changed(self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws) -> Pair:
        part = slice(self.length)
        return inputs[:, part], labels[:, part] if labels.shape.rank > 1 else labels


@dataclass(frozen=True)
class MaskTokens(_OfTraining):
    """Replaces input tokens, [n, length], by `token` with probability `rate`.

    Positions are drawn independently; in evaluation tokens are unchanged. `keep`: a
    token that is never replaced, such as padding.
    """

    rate: float
    token: int
    keep: int | None = None

    def _changed(self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws) -> Pair:
        masked = draws.uniform("mask", tf.shape(inputs)) < self.rate
        if self.keep is not None:
            masked &= inputs != self.keep
        return tf.where(masked, tf.cast(self.token, inputs.dtype), inputs), labels


@dataclass(frozen=True)
class Chain:
    """A transform that applies `parts` one after the other."""

    parts: tuple[Transform, ...]

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """Returns the transformed inputs and labels."""
        for part in self.parts:
            inputs, labels = part(inputs, labels, draws)
        return inputs, labels

    @property
    def shortens(self) -> bool:
        """Whether one of the parts shortens sequences in training."""
        return any(getattr(part, "shortens", False) for part in self.parts)


IMAGE_TRANSFORMS: dict[str, Transform] = {"pad_and_crop": PadAndCrop(), "flip": Flip()}
"""Transforms that the argument `augmentation` of data sets of images may name."""


def image_augmentation(names: Sequence[str]) -> Transform | None:
    """Returns the chain of the named IMAGE_TRANSFORMS in order; None for no names."""
    for name in names:
        check_known("augmentation", name, IMAGE_TRANSFORMS)
    return Chain(tuple(IMAGE_TRANSFORMS[name] for name in names)) if names else None


@dataclass(frozen=True)
class Whitening:
    """Scaling of pixels to mean 0 and standard deviation 1 per channel, float32.

    `table`: float32 [values, channels], the result for each pixel value. With a table,
    all machines give the same bits, and no image is held as float64.
    """

    table: np.ndarray

    @classmethod
    def of(cls, pixels: np.ndarray, maximum: int = 255) -> Whitening:
        """Returns the whitening by mean and deviation of each channel of `pixels`.

        `pixels`: uint8 [n, height, width, channels], 0..`maximum`, training and
        validation images together. Source: Lee et al. 2021, published code.
        """
        return cls.of_counts(pixel_counts(pixels, maximum))

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Whitening:
        """Returns the whitening of images from `pixel_counts` of them."""
        maximum = counts.shape[1] - 1
        columns = []
        values = np.arange(maximum + 1) / maximum
        # Each operation is in float32, as in the published code: another last bit of a
        # pixel changes the maximum of a pool, and thus the gradient of a whole filter.
        table = np.arange(maximum + 1, dtype=np.float32) / np.float32(maximum)
        for channel_counts in counts:
            weights = channel_counts / channel_counts.sum()
            mean = weights @ values
            deviation = np.sqrt(weights @ (values - mean) ** 2)
            columns.append((table - np.float32(mean)) / np.float32(deviation))
        return cls(np.stack(columns, axis=-1))

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Returns whitened `pixels` [n, height, width, channels], float32."""
        return self.table[pixels, np.arange(self.table.shape[-1])]


def to_unit(pixels: np.ndarray) -> np.ndarray:
    """Returns `pixels` divided by 255, float32 of the same shape."""
    return pixels.astype(np.float32) / np.float32(255)


def standardized(pixels: np.ndarray) -> np.ndarray:
    """Returns images [n, ...], each with mean 0 and standard deviation 1, float32.

    An image is divided by 1 / sqrt(its number of values) if its deviation is smaller,
    as in `tf.image.per_image_standardization`.
    """
    axes = tuple(range(1, pixels.ndim))
    values = pixels.astype(np.float64)
    centered = values - values.mean(axes, keepdims=True)
    least = 1.0 / np.sqrt(np.prod(pixels.shape[1:]))
    deviation = np.maximum(values.std(axes, keepdims=True), least)
    return (centered / deviation).astype(np.float32)


SCALINGS = {"unit": to_unit, "standardized": standardized}
"""Scalings of pixels other than whitening, by name."""


def pixel_counts(pixels: np.ndarray, maximum: int = 255) -> np.ndarray:
    """Returns how often each value 0..maximum occurs, int64 [channels, maximum + 1].

    `pixels`: uint8 [n, height, width, channels]; they are read a part at a time.
    """
    counts = np.zeros((pixels.shape[-1], maximum + 1), np.int64)
    for start in range(0, len(pixels), _COUNTED_IMAGES):
        part = pixels[start : start + _COUNTED_IMAGES]
        for channel, channel_counts in enumerate(counts):
            channel_counts += np.bincount(
                part[..., channel].ravel(), minlength=maximum + 1
            )
    return counts


_MEAN = (123.68, 116.78, 103.94)  # of red, green and blue over ImageNet


def decoded(content: bytes, what: str) -> tf.Tensor:
    """Returns a decoded image, uint8 [height, width, 3].

    Raises UserError, with `what` as the image's name, if `content` is not a JPEG, PNG,
    GIF or BMP image.
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
    """Returns an image's central square, resized with antialiasing.

    The result is uint8 [side, side, 3]. `content`, `what`: see `decoded`.
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
    """Crops [n, side, side, 3] from square images [n, stored, stored, 3], resized.

    In training, an image is resized to a side drawn uniformly from the integers
    [shortest, longest], cropped at a random place and mirrored with probability 1/2. In
    evaluation it is resized to `shortest` and cropped at the center. Resizing and
    cropping are one bilinear interpolation. The mean colour of ImageNet is subtracted;
    there is no division by a deviation.

    Source: Simonyan and Zisserman 2015, section 3.1, as Shallue et al. 2019 reportedly
    did. Deviation: crops are taken from the central square of a photograph.
    """

    side: int = 224
    shortest: int = 256
    longest: int = 512

    keeps_labels = True

    def __call__(
        self, inputs: tf.Tensor, labels: tf.Tensor, draws: Draws | None
    ) -> Pair:
        """Returns the transformed inputs and labels."""
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
        # One more pixel on each side: interpolation beyond the image gives black.
        framed = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "SYMMETRIC")
        boxes = (tf.concat([begin, end], axis=1) + 1.0) / (stored + 1.0)
        crops = tf.image.crop_and_resize(
            framed, boxes, tf.range(count), (self.side, self.side)
        )
        if draws is not None:
            mirrored = draws.uniform("flip", [count, 1, 1, 1]) < 0.5
            crops = tf.where(mirrored, tf.reverse(crops, [2]), crops)
        return tf.ensure_shape(crops, [None, self.side, self.side, 3]) - _MEAN, labels
