"""Photographs of any size as networks of 224 x 224 read them.

They are stored as they were published and decoded to a square when they are read; the
size and place of the crop of a training step are drawn inside the compiled step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from dps_tf.core.errors import UserError
from dps_tf.data.transforms import Draws, Pair

_MEAN = (123.68, 116.78, 103.94)  # of red, green and blue over ImageNet


def decoded_square(content: bytes, side: int, what: str) -> np.ndarray:
    """Returns the central square of an image, uint8 [side, side, 3].

    Its shorter side becomes `side`, with antialiasing. Raises UserError that names
    `what` for bytes that are no image (JPEG, PNG, GIF or BMP).
    """
    try:
        with tf.device("CPU:0"):
            image = tf.io.decode_image(content, channels=3, expand_animations=False)
            height, width = image.shape[:2]
            cut = min(height, width)
            top, left = (height - cut) // 2, (width - cut) // 2
            square = image[top : top + cut, left : left + cut]
            if cut != side:
                square = tf.image.resize(square, (side, side), antialias=True)
                square = tf.cast(tf.clip_by_value(tf.round(square), 0, 255), tf.uint8)
            return np.asarray(square.numpy(), np.uint8)
    except (tf.errors.InvalidArgumentError, tf.errors.OpError) as error:
        reason = (error.message or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{what} cannot be decoded as an image ({reason[:160]}): replace or remove "
            "it and prepare the set again."
        ) from error


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
        """Returns crops, float32 [n, side, side, 3], and the labels."""
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
