"""Data sets by name, split into training and validation examples.

A loader takes `(data_dir, **arguments)` and returns a `Source`: all examples in file
order. Splitting and hashing are the same for every set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.registry import Registry, arguments_of
from dps_tf.data import embedded, photographs, prepared, sentences
from dps_tf.data.arrays import DecodedRows, open_arrays, write_arrays
from dps_tf.data.dataset import (
    Dataset,
    Examples,
    Source,
    identity,
    in_evaluation,
)
from dps_tf.data.splits import SPLITS, divided

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "DecodedRows",
    "Examples",
    "Source",
    "load",
    "open_arrays",
    "register",
    "write_arrays",
]

Loader = Callable[..., Source]

DATASETS: Registry[Loader] = Registry("data set")
"""What `load` knows; a loader reads its arguments behind the first."""


def register(name: str, loader: Loader) -> None:
    """Makes `load(name, data_dir, **arguments)` call `loader(data_dir, **arguments)`.

    The loader returns a `Source`, all examples in a fixed order. Side effect: changes
    the registry of this process. Registering the same loader again changes nothing;
    another loader under a taken name is refused.
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
    ("imagenet_resized", photographs.imagenet_resized),
    ("imagenette", photographs.photographs("imagenette", 128)),
    ("open_images_v4", photographs.open_images_v4),
    ("image_folder", photographs.image_folder),
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

    Never downloads: a set that is not in `data_dir` raises UserError with the command
    that prepares it, as do unknown names and what the source does not have.

    Args:
        name: of a registered data set.
        data_dir: folder of prepared sets.
        split: `seeded` takes `validation_examples` (None: the set's own number) by
            `split_seed`; `lee2021` is the published split, a tenth, without a choice;
            `given` is the validation set that the source has.
        split_seed: of a seeded split.
        validation_examples: of a seeded split.
        test: `given` for the test set that the source has, `carved` for
            `test_examples` (None: as many as for validation) of the same split that are
            then missing in training, or `none`.
        test_examples: of a carved test set.
        training_examples: keeps a random subset of so many for training; None: all.
        arguments: those of the loader, for example `length` of a sequence.
    """
    arguments = DATASETS.resolve(name, arguments)
    if split not in SPLITS:
        raise UserError(f"no split is named {split!r}: {near_matches(split, SPLITS)}")
    source = DATASETS[name](None if data_dir is None else Path(data_dir), **arguments)
    sizes = validation_examples, test_examples
    parts = divided(name, source, split, split_seed, sizes, test, training_examples)
    given = [
        part
        for part, how in zip(parts[1:], (split, test), strict=False)
        if how == "given"
    ]
    described = f"seeded({split_seed})" if split == "seeded" else split
    divided_as = described if test == "none" else f"{described}+{test}"
    read = [in_evaluation(part, source.transform) for part in parts]
    return Dataset(
        name,
        read[0],
        read[1],
        source.classes,
        identity(source, divided_as, parts, given),
        described,
        source.transform,
        None if source.transform is None else parts[0],
        source.token_bytes,
        read[2] if len(read) > 2 else None,
    )
