"""Pixels on their way into a network, against what TensorFlow makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dps_tf.data.transforms import SCALINGS, SquareCrops, decoded_square
from dps_tf.models import StepDraws

MEAN = (123.68, 116.78, 103.94)


def cropped(crops: SquareCrops, images: np.ndarray, draws) -> np.ndarray:
    """Returns crops of images [n, stored, stored, 3], with the mean put back."""
    labels = tf.zeros([len(images)], tf.int32)
    return crops(tf.constant(images), labels, draws)[0].numpy() + np.float32(MEAN)


def places(height: int, width: int) -> np.ndarray:
    """Returns an image whose red is the column and whose green is the row."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    return np.stack([columns, rows, rows * 0], -1)


def test_standardized_is_that_of_tensorflow():
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3), np.uint8)
    images[1:3] = 7
    images[2, 0, 0, 0] = 8  # its deviation is smaller than what it counts as
    found = SCALINGS["standardized"](images)
    expected = tf.image.per_image_standardization(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.mean((1, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(found[[0, 3]].std((1, 2, 3)), 1, atol=1e-6)


def test_unit_is_a_share_of_255():
    values = np.arange(256, dtype=np.uint8)
    found = SCALINGS["unit"](values)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (values / 255).astype(np.float32))


def test_evaluation_takes_224_pixels_from_the_middle_of_a_photograph():
    shares = places(300, 500) * (255 / 499, 255 / 299, 0)
    png = tf.io.encode_png(np.rint(shares).astype(np.uint8)).numpy()
    square = decoded_square(png, 320, "a picture")
    (found,) = cropped(SquareCrops(), square[None], None)
    assert found.shape == (224, 224, 3)
    # The shorter side becomes 256, of which 16 are left out at each end.
    middle = (np.arange(224) + 16.5) / 256 * 300 - 0.5
    red, green = (100 + middle) * 255 / 499, middle * 255 / 299
    np.testing.assert_allclose(found[..., 0], np.tile(red, (224, 1)), atol=1)
    np.testing.assert_allclose(found[..., 1].T, np.tile(green, (224, 1)), atol=1)


def test_mean_colour_is_subtracted_and_nothing_divided():
    image = tf.constant(np.full((1, 320, 320, 3), (200, 100, 50), np.uint8))
    expected = np.tile([200 - 123.68, 100 - 116.78, 50 - 103.94], (224, 224, 1))
    for draws in (None, StepDraws(tf.constant(1), tf.constant(2), 0, 1)):
        found, _ = SquareCrops()(image, tf.constant([0]), draws)
        np.testing.assert_allclose(found[0], expected, atol=1e-3)


class Fixed:
    """Draws the same share of what may be drawn, everywhere."""

    def __init__(self, share: float):
        self.share = share

    def integers(self, name, shape, low, high):
        return tf.fill(shape, int(low + self.share * (high - low)))

    def uniform(self, name, shape, low=0.0, high=1.0):
        return tf.fill(shape, self.share)


@pytest.mark.parametrize(
    ("share", "size", "corner"),
    [(None, 32, 2), (0.0, 32, 0), (0.3, 41, 4), (0.6, 51, 14), (0.999, 64, 36)],
)
def test_crop_is_that_of_resizing_and_cutting_out(share, size, corner):
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    draws = None if share is None else Fixed(share)
    (found,) = cropped(SquareCrops(28, 32, 64), image[None], draws)
    resized = tf.image.resize(image, (size, size)).numpy()
    expected = resized[corner : corner + 28, corner : corner + 28]
    if share is not None and share < 0.5:
        expected = expected[:, ::-1]
    np.testing.assert_allclose(found, expected, atol=0.01)


@pytest.mark.parametrize(
    ("crops", "stored", "count"),
    [(SquareCrops(28, 32, 64), 40, 2000), (SquareCrops(), 320, 24)],
)
def test_sizes_places_and_sides_are_drawn_from_all_that_are_allowed(
    crops, stored, count
):
    """They are read off where the pixels of a crop come from."""
    draws = StepDraws(tf.constant(3), tf.constant(0), 0, count)
    images = np.tile(places(stored, stored), (count, 1, 1, 1))
    found = cropped(crops, images, draws)
    one, other = crops.side // 2 - 1, crops.side // 2  # on both sides of the middle
    step = found[:, other, other, 0] - found[:, one, one, 0]
    sizes = stored / np.abs(step)
    middle = (found[:, one, one, :2] + found[:, other, other, :2]) / 2 + 0.5
    corners = middle * sizes[:, None] / stored - crops.side / 2
    for drawn in (sizes, corners):
        np.testing.assert_allclose(drawn, np.rint(drawn), atol=0.02)
    sizes, corners = np.rint(sizes).astype(int), np.rint(corners).astype(int)
    assert crops.shortest <= sizes.min() < sizes.max() <= crops.longest
    assert corners.min() >= 0
    assert (corners.max(1) <= sizes - crops.side).all()
    assert (corners[:, 0] != corners[:, 1]).any()
    assert 0.2 < (step < 0).mean() < 0.8
    if count > 1000:
        assert set(sizes) == set(range(32, 65))
        assert set(corners[sizes == 32].ravel()) == set(range(5))
