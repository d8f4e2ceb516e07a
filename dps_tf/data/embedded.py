"""Data sets that need no files: digits that scikit-learn has, and made-up sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dps_tf.core import check_whole
from dps_tf.data.dataset import Source
from dps_tf.data.transforms import Whitening, image_augmentation


def digits(data_dir: Path | None, augmentation: Sequence[str] = ()) -> Source:
    """Returns 1,797 real handwritten digits, [8, 8, 1], whitened; 297 for validation.

    Source: scikit-learn's `load_digits` (test part of the UCI set of optically
    recognized digits), pixel values 0..16. `augmentation`: names of transforms, see
    `prepared.images`.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = bunch.images.astype(np.uint8)[..., np.newaxis]
    whitening = Whitening.of(pixels, maximum=16)
    transform = image_augmentation(augmentation)
    return Source(pixels, bunch.target, 10, 297, whitening, transform)


def synthetic(
    data_dir: Path | None,
    examples: int = 512,
    classes: int = 4,
    shape: Sequence[int] = (8,),
    noise: float = 1.0,
    seed: int = 0,
) -> Source:
    """Returns Gaussian blobs, float32 [examples, *shape]; a quarter for validation.

    Each class has a center, drawn from a standard normal distribution; an example is
    its center plus `noise` times a standard normal draw. The larger the noise, the more
    the classes overlap. `seed`: of centers and examples.
    """
    check_whole("examples", examples)
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(classes, *shape))
    labels = np.arange(examples) % classes
    inputs = centers[labels] + noise * generator.normal(size=(examples, *shape))
    return Source(inputs.astype(np.float32), labels, classes, examples // 4)


def synthetic_tokens(
    data_dir: Path | None,
    examples: int = 256,
    length: int = 16,
    vocabulary: int = 8,
    seed: int = 0,
) -> Source:
    """Returns sequences of a made-up language, int32 [examples, length].

    The language is a Markov chain. Each token has one favourite successor, which
    follows with probability 3/4; otherwise the next token is drawn uniformly from the
    vocabulary. The least cross-entropy is well below log(vocabulary). The label of a
    position is the next token; a quarter of the examples is for validation. `seed`: of
    chain and examples.
    """
    check_whole("examples", examples)
    generator = np.random.default_rng(seed)
    favourite = generator.permutation(vocabulary)
    tokens = np.empty((examples, length + 1), np.int32)
    tokens[:, 0] = generator.integers(0, vocabulary, examples)
    for position in range(length):
        expected = favourite[tokens[:, position]]
        uniform = generator.integers(0, vocabulary, examples)
        is_expected = generator.random(examples) < 0.75
        tokens[:, position + 1] = np.where(is_expected, expected, uniform)
    return Source(tokens[:, :-1], tokens[:, 1:], vocabulary, examples // 4)
