"""What does a network see of a pixel?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_COUNTED_IMAGES = 1_000  # at a time: counting takes eight bytes for each


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

        `pixels`: uint8 [n, height, width, channels], all training images, those of the
        validation set included. Source: Lee et al. 2021, published code.
        """
        return cls.of_counts(pixel_counts(pixels, maximum))

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Whitening:
        """Returns the whitening of images of which each pixel value was counted.

        `counts`: int64 [channels, values], see `pixel_counts`.
        """
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
