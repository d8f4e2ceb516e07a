"""Data sets by name, split into training, validation and test examples.

A loader is a function of `(data_dir, **arguments)` that returns a `Source`, all
examples in file order. All sets are split and hashed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.core import (
    DIVISION,
    Registry,
    UserError,
    Workload,
    arguments_of,
    check_known,
    remembered,
)
from dps_tf.data import embedded, photographs, prepared, sentences
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
    ("digits", embedded.digits),
    ("synthetic", embedded.synthetic),
    ("synthetic_tokens", embedded.synthetic_tokens),
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
            `first` and `last` take the beginning or the end of the file. `lee2021` is
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


def check(workload: Workload) -> None:
    """Raises UserError unless a workload's data set, arguments and split exist."""
    DATASETS.resolve(workload.dataset, workload.dataset_arguments)
    check_known("split", workload.split, SPLITS)


def load_for(workload: Workload, data_dir: str | None) -> Dataset:
    """Returns the data set of a workload; the last two stay in memory.

    Raises UserError, with the command that prepares the data, if they are missing.
    """
    options = {name: getattr(workload, name) for name in DIVISION}
    options |= workload.dataset_arguments
    return _loaded(workload.dataset, data_dir and str(data_dir), options)


@remembered(2)
def _loaded(name: str, data_dir: str | None, options: Mapping[str, Any]) -> Dataset:
    return load(name, data_dir, **_with_tuples(options))


def _with_tuples(value: Any) -> Any:
    """Returns a value of JSON with its lists as tuples, as a gin file has them."""
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return value
