"""Loaders of sets of images and text that `python -m dps_tf.prepare` has prepared.

Loaders never download: the error for a missing set has the command that prepares it.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from dps_tf.core import UserError, check_known
from dps_tf.data.arrays import Arrays, has_arrays, open_arrays, write_arrays
from dps_tf.data.dataset import Source, identity, split_indices, split_key
from dps_tf.data.raw import PUBLISHED, content_sum
from dps_tf.data.transforms import SCALINGS, Whitening, image_augmentation, pixel_counts

_T = TypeVar("_T")
Report = Callable[[str], None]
"""A function that is called with a sentence for each stage of a preparation."""

WHITENED = "whitened"
IMAGE_CLASSES = 10  # of each published set of images
ARRAYS = "dps_tf"
"""Name of the folder inside a prepared set that holds its arrays or indexes."""


def prepared_folder(name: str, data_dir: Path) -> Path | None:
    """Returns the folder of the newest prepared version of `name`, or None."""
    versions = sorted((data_dir / name).glob("*.*.*/dataset_info.json"))
    return versions[-1].parent if versions else None


def built_folder(  # noqa: PLR0913 - what is built, from where and to where
    name: str,
    config: str | None,
    built_bytes: int,
    data_dir: Path,
    raw_dir: Path | None,
    report: Report,
) -> Path:
    """Returns the folder of a set; TensorFlow Datasets builds it if it is missing.

    `config`: version of the set, or None; `built_bytes`: how much will be written at
    least, 0 if unknown; `raw_dir`: folder of files that have to be fetched by hand.
    Raises UserError if the disk has too little room or the set cannot be built.
    """
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    place = name if config is None else f"{name}/{config}"
    folder = prepared_folder(place, data_dir)
    if folder is None:
        kept = stored_bytes(data_dir / "downloads" / name)
        check_space(name, data_dir, max(0, built_bytes - kept), report)
        report(f"building {name} in {data_dir}; downloads are kept for another try")
        try:
            tfds.build(place, data_dir, raw_dir)
        except Exception as error:  # TFDS and its downloads raise many kinds
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(
                f"TensorFlow Datasets cannot build {name} ({reason[:200]}): if it "
                "cannot be downloaded, get it elsewhere, build it there with "
                "file_format='array_record', and copy its folder into "
                f"{data_dir / name}."
            ) from error
        folder = prepared_folder(place, data_dir)
    if folder is None:
        raise UserError(f"TensorFlow Datasets left no {name!r} in {data_dir}.")
    return folder


def stored_bytes(folder: Path) -> int:
    """Returns the bytes of all files below a folder; 0 if there is no such folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_space(name: str, folder: Path, wanted: int, report: Report) -> None:
    """Reports that `wanted` bytes will be written; UserError if the disk has less.

    `wanted`: 0 if unknown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if not wanted:
        report(f"{name}: the size is not known beforehand; {free:,} bytes are free")
        return
    report(f"{name}: at least {wanted:,} bytes will be written, {free:,} are free")
    if free < wanted:
        raise UserError(
            f"{name} needs at least {wanted:,} bytes and {folder} has {free:,} free: "
            "choose another --data_dir or make room."
        )


def command(name: str, data_dir: Path | None) -> str:
    """Returns the command line that prepares `name`."""
    place = "P" if data_dir is None else shlex.quote(str(data_dir))
    return f"python -m dps_tf.prepare --dataset={name} --data_dir={place}"


def images(name: str) -> Callable[..., Source]:
    """Returns the loader of a published set of images.

    The loader has two arguments. `augmentation`: names of
    `transforms.IMAGE_TRANSFORMS`, which are applied in that order to the images of each
    training step. `pixels`: how bytes are scaled, `whitened` (Lee et al. 2021) or one
    of `transforms.SCALINGS`.
    """

    def load_images(
        data_dir: Path | None, augmentation: Sequence[str] = (), pixels: str = WHITENED
    ) -> Source:
        """Returns the published images; `given_test` is the published test set."""
        folder = _require(name, data_dir)
        transform = image_augmentation(augmentation)
        if has_arrays(folder / ARRAYS):
            arrays = open_arrays(folder / ARRAYS)
            _check_content(
                name, folder, arrays.facts["published"], PUBLISHED[name].content
            )
        else:
            arrays = _read_arrays(name, folder)
        source = _image_source(name, arrays)
        if pixels != WHITENED:
            check_known("pixels", pixels, [WHITENED, *SCALINGS])
            # The sums in the manifest are of whitened images.
            source = replace(source, preprocess=SCALINGS[pixels], split_hashes={})
        return replace(
            source,
            transform=transform,
            given_test=lambda: read_checked_images(name, folder, "test"),
        )

    return load_images


def _image_source(name: str, arrays: Arrays) -> Source:
    facts = arrays.facts
    return Source(
        arrays.inputs,
        arrays.labels,
        IMAGE_CLASSES,
        PUBLISHED[name].validation_examples,
        Whitening.of_counts(np.asarray(facts["pixel_counts"], np.int64)),
        split_hashes=facts.get("split_hashes", {}),
    )


def _read_arrays(name: str, folder: Path) -> Arrays:
    """Returns the images of a set without mapped arrays; reads all of them."""
    pixels, labels = read_checked_images(name, folder)
    facts = {"pixel_counts": pixel_counts(pixels).tolist()}
    return Arrays(pixels, labels, "", facts)


def add_arrays(name: str, folder: Path) -> None:
    """Writes the images of a prepared set into its folder, as arrays to be mapped.

    The manifest has what could otherwise only be computed by reading all images: how
    often each pixel value occurs, and the content hashes of the default splits.
    """
    read = _read_arrays(name, folder)
    source = _image_source(name, read)
    count = len(read.labels)
    hashes = {}
    for split, held in (
        ("seeded(0)", source.validation_examples),
        ("lee2021", count // 10),
    ):
        if 0 < held < count:
            indices = split_indices(split.partition("(")[0], count, held, 0)
            parts = [source.examples(rows) for rows in indices[:2]]
            hashes[split_key(split, parts)] = identity(source, split, parts)
    facts = {**read.facts, "split_hashes": hashes, "published": PUBLISHED[name].content}
    write_arrays(folder / ARRAYS, [(read.inputs, read.labels)], facts)


def tiny_shakespeare(data_dir: Path | None, length: int = 64) -> Source:
    """Returns sequences of characters as tokens, int32 [n, length].

    Label t of a sequence is the character after input t. Sequences are consecutive and
    do not overlap; they are the first 95 % of the text (TFDS's training and validation
    parts; its test part is the test set). A token is the number of a character among
    all characters of the text, in order of code points. A tenth is for validation.
    """
    name = "tiny_shakespeare"
    train, validation, test = read_checked_texts(name, _require(name, data_dir))
    vocabulary = sorted(set(train + validation + test))
    token_of = {character: token for token, character in enumerate(vocabulary)}

    def sequences(text: str) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.asarray([token_of[c] for c in text], np.int32)
        count = (len(tokens) - 1) // length if length > 0 else 0
        if count < 2:
            raise UserError(
                f"length is {length}: it must be at least 1 and leave two sequences in "
                f"{len(tokens)} characters"
            )
        inputs = tokens[: count * length].reshape(count, length)
        return inputs, tokens[1 : count * length + 1].reshape(count, length)

    inputs, labels = sequences(train + validation)
    return Source(
        inputs,
        labels,
        len(vocabulary),
        max(1, len(labels) // 10),
        given_test=lambda: sequences(test),
        token_bytes=[len(character.encode()) for character in vocabulary],
    )


def read_checked_images(
    name: str, folder: Path, split: str = "train"
) -> tuple[np.ndarray, np.ndarray]:
    """Returns pixels and labels in file order; UserError unless they are published.

    `split`: `train` or `test`.
    """
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    pixels, labels = _read(name, folder, lambda: tfds.read_images(folder, split))
    published = PUBLISHED[name]
    expected = published.content if split == "train" else published.test_content
    _check_content(name, folder, content_sum(pixels, labels), expected)
    return pixels, labels


def read_checked_texts(name: str, folder: Path) -> list[str]:
    """Returns the text's parts in file order; UserError unless they are published."""
    from dps_tf.data import tfds

    def read() -> list[str]:
        splits = ("train", "validation", "test")
        return [b"".join(tfds.read_texts(folder, s, 0)).decode() for s in splits]

    parts = _read(name, folder, read)
    digest = hashlib.sha256("".join(parts).encode()).hexdigest()
    _check_content(name, folder, digest, PUBLISHED[name].content)
    return parts


def _require(name: str, data_dir: Path | None) -> Path:
    if data_dir is None:
        raise UserError(
            f"data set {name!r} needs --data_dir, the folder where it was prepared "
            f"with: {command(name, None)}"
        )
    folder = prepared_folder(name, data_dir)
    if folder is None:
        raise UserError(
            f"data set {name!r} is not prepared in {data_dir}: run "
            f"{command(name, data_dir)}"
        )
    return folder


def _read(name: str, folder: Path, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except Exception as error:  # TFDS and TensorFlow raise a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"prepared data set {name!r} cannot be read ({reason}): remove {folder} "
            "and prepare it again"
        ) from error


def _check_content(name: str, folder: Path, content: str, expected: str) -> None:
    if content != expected:
        raise UserError(
            f"{folder} does not hold the published {name!r} (SHA-256 of its content in "
            f"file order is {content}): remove it and prepare the set again"
        )
