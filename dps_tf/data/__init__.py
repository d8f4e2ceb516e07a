"""Data sets by name, split into training, validation and test examples.

A loader is a function of `(data_dir, **arguments)` that returns a `Source`, all
examples in file order. All sets are split and hashed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.core import Registry, UserError, arguments_of, check_known, check_whole
from dps_tf.data import photographs, prepared, sentences
from dps_tf.data.arrays import (
    DecodedRows,
    MappedRows,
    open_arrays,
    stored_once,
    write_arrays,
)
from dps_tf.data.dataset import (
    SEEDED_SPLITS,
    SPLITS,
    Dataset,
    Examples,
    Source,
    content_hash,
    divided,
    identity,
    in_evaluation,
)
from dps_tf.data.transforms import (
    Chain,
    CropTokens,
    Draws,
    FirstTokens,
    Flip,
    MaskTokens,
    PadAndCrop,
    Transform,
    Whitening,
    image_augmentation,
)

__all__ = [
    "DATASETS",
    "SPLITS",
    "Chain",
    "CropTokens",
    "Dataset",
    "DecodedRows",
    "Draws",
    "Examples",
    "FirstTokens",
    "Flip",
    "MappedRows",
    "MaskTokens",
    "PadAndCrop",
    "Source",
    "Transform",
    "content_hash",
    "load",
    "open_arrays",
    "register",
    "stored_once",
    "write_arrays",
]


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
    its center plus `noise` times a standard normal draw: the larger the noise, the more
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


Loader = Callable[..., Source]

DATASETS: Registry[Loader] = Registry("data set", 1)
"""Loaders of data sets by name. A loader's first argument is the data folder; a study
gives the others by `workload.dataset_arguments`."""


def register(name: str, loader: Loader) -> None:
    """Makes `load(name, data_dir, **arguments)` call `loader(data_dir, **arguments)`.

    The loader returns a `Source`, all examples in a fixed order. For which names are
    allowed, see `Registry.register`.

    Examples:
        >>> import dps_tf
        >>> def noise(data_dir, examples=100):
        ...     inputs = np.random.default_rng(1).normal(size=(examples, 8))
        ...     labels = np.arange(examples) % 2
        ...     return Source(inputs.astype(np.float32), labels, 2, examples // 4)
        >>> dps_tf.register_dataset("noise", noise)
    """
    DATASETS.register(name, loader, arguments_of(loader, 1))


for _name, _loader in (
    ("digits", digits),
    ("synthetic", synthetic),
    ("synthetic_tokens", synthetic_tokens),
    ("mnist", prepared.images("mnist")),
    ("fashion_mnist", prepared.images("fashion_mnist")),
    ("cifar10", prepared.images("cifar10")),
    ("tiny_shakespeare", prepared.tiny_shakespeare),
    ("imagenet2012", photographs.imagenet2012),
    ("open_images_v4", photographs.open_images_v4),
    ("lm1b", sentences.sentences("lm1b")),
    ("c4", sentences.sentences("c4")),
    ("text_folder", sentences.text_folder),
):
    register(_name, _loader)


def load(  # noqa: PLR0913 - the ways of dividing a set
    name: str,
    data_dir: str | Path | None = None,
    split: str = "seeded",
    split_seed: int = 0,
    validation_examples: int | None = None,
    test: str = "none",
    test_examples: int | None = None,
    training_examples: int | None = None,
    **arguments: Any,
) -> Dataset:
    """Returns the data set `name`, split into training, validation and test examples.

    The function never downloads.

    Args:
        name: of a registered data set.
        data_dir: folder of prepared sets.
        split: how validation examples are chosen: `seeded` draws them by `split_seed`;
            `first` and `last` take the beginning or the end of the file; `lee2021` is
            the published split, a tenth, with `split_seed` 0; `given` is the source's
            own validation set.
        split_seed: seed of the draw, and of the order of the training examples.
        validation_examples: their number; None: the set's own number. The splits
            `lee2021` and `given` have a fixed number.
        test: `given` for the source's own test set; `carved` for `test_examples` that
            are chosen as the validation examples are and left out of training; `none`.
        test_examples: size of a carved test set; None: as many as for validation.
        training_examples: size of a random subset to train on; None: all.
        arguments: arguments of the loader, for example `length` of a sequence.

    Raises:
        UserError: the name is not registered; the set is not in `data_dir` (the message
            has the command that prepares it); or the source has no such split.

    >>> blobs = load("synthetic", examples=64, validation_examples=16)
    >>> len(blobs.train), len(blobs.validation), blobs.input_shape
    (48, 16, (8,))
    """
    arguments = DATASETS.resolve(name, arguments)
    check_known("split", split, SPLITS)
    source = DATASETS[name](None if data_dir is None else Path(data_dir), **arguments)
    if not isinstance(source, Source):
        raise UserError(
            f"data set {name!r} is a {type(source).__name__}; its function must return "
            "a dps_tf.data.Source (data.stored_once makes one of a tf.data.Dataset)."
        )
    sizes = validation_examples, test_examples
    parts = divided(name, source, split, split_seed, sizes, test, training_examples)
    ways = (split, test)
    given = [part for part, way in zip(parts[1:], ways, strict=False) if way == "given"]
    described = f"{split}({split_seed})" if split in SEEDED_SPLITS else split
    divided_as = described if test == "none" else f"{described}+{test}"
    train, validation, *tests = (in_evaluation(p, source.transform) for p in parts)
    return Dataset(
        name,
        train,
        validation,
        source.classes,
        identity(source, divided_as, parts, given),
        described,
        source.transform,
        None if source.transform is None else parts[0],
        source.token_bytes,
        *tests,
    )
