"""Sets of photographs, read by row number from their published records.

TensorFlow Datasets downloads and builds a set. Before, `prepare_photographs` checks
that the files to be fetched by hand are complete and that the disk has room. Afterwards
it writes an index beside the set, and continues after an interruption. The index holds
the label and the SHA-256 of each image, so that opening a set reads no image. Each
image is decoded once for it, so that an image that cannot be decoded stops no trial
later.

Deviation from Shallue et al. 2019: crops are taken from the central square of an image,
decoded at side * 320 / 224 pixels. Larger sizes, which are drawn up to side * 512 /
224, are enlarged from that.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from dps_tf.core import UserError, check_positive
from dps_tf.data.arrays import (
    Arrays,
    DecodedRows,
    has_arrays,
    open_arrays,
    verify_arrays,
    write_arrays,
)
from dps_tf.data.dataset import Source, seeded_order
from dps_tf.data.prepared import ARRAYS, Report, built_folder, command, prepared_folder
from dps_tf.data.transforms import SquareCrops, decoded, decoded_square

LabelledImages = tuple[Any, np.ndarray]
"""Images, decoded when they are read, and their labels."""
UNUSED = -1
"""Padding of the labels of an image that has fewer labels than the index stores."""
_BATCH = 1_000  # images; at most so many are read again after an interruption
_POSITIVE = 10  # TFDS multiplies the confidence of 0 or 1 by ten
_PEOPLE = (0, 1)  # TFDS's numbers of `verification` and `crowdsource-verification`


@dataclass(frozen=True)
class PhotographSet:
    """A set of photographs that TensorFlow Datasets builds.

    Attributes:
        name: in TensorFlow Datasets.
        classes: number of labels.
        splits: its splits, in the order training, validation, test.
        config: version of the set by image size, or None.
        manual: files to be fetched by hand, with their sizes in bytes.
        where: where to get these files.
        built_bytes: bytes of the download and of the built set, or a lower bound.
        labels: largest number of labels of an image; 1 if each image has one.
    """

    name: str
    classes: int
    splits: tuple[str, ...] = ("train", "validation")
    config: str | None = None
    manual: tuple[tuple[str, int], ...] = ()
    where: str = ""
    built_bytes: int = 0
    labels: int = 1

    def folder(self, data_dir: Path) -> Path | None:
        """Returns the folder where TensorFlow Datasets has built the set, or None."""
        place = self.name if self.config is None else f"{self.name}/{self.config}"
        return prepared_folder(place, data_dir)


# Sizes: the catalogue of TensorFlow Datasets and its lists of downloads. They do not
# include files that are unpacked temporarily.
SETS = {
    "imagenet2012": PhotographSet(
        "imagenet2012",
        1000,
        manual=(
            ("ILSVRC2012_img_train.tar", 147_897_477_120),
            ("ILSVRC2012_img_val.tar", 6_744_924_160),
        ),
        where="https://www.image-net.org/download-images, after registration",
        built_bytes=167_300_000_000,
    ),
    "open_images_v4": PhotographSet(
        "open_images_v4",
        7186,
        ("train", "validation", "test"),
        "300k",
        built_bytes=694_700_000_000,
        labels=128,
    ),
}


class _Rows:
    """Some images of a set as bytes, each with its description for messages."""

    def __init__(self, records: Any, rows: np.ndarray, what: str):
        self._records, self._rows, self._what = records, rows, what

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[bytes, str]:
        number = int(self._rows[row])
        return self._records[number]["image"], f"image {number} of {self._what}"


@dataclass(frozen=True)
class Split:
    """A split of a set: its records by number and their index. `what`: for messages."""

    records: Any
    index: Arrays
    what: str

    def __post_init__(self) -> None:
        if len(self.records) != len(self.index.labels):
            raise UserError(
                f"{self.what} has {len(self.records)} images and its index "
                f"{len(self.index.labels)}: prepare it again."
            )

    def images(self, rows: np.ndarray, side: int) -> np.ndarray:
        """Returns central squares, uint8 [rows, side, side, 3], decoded when read."""
        if not len(rows):
            raise UserError(f"{self.what} has no image left: take a larger part of it.")
        squares = DecodedRows(
            _Rows(self.records, rows, self.what),
            lambda record: decoded_square(record[0], side, record[1]),
        )
        return cast(np.ndarray, squares)

    def several_labels(self, rows: np.ndarray, classes: int) -> np.ndarray:
        """Returns 0 or 1 for each class, uint8 [rows, classes], made when read."""

        def decode(numbers: np.ndarray) -> np.ndarray:
            has_class = np.zeros(classes, np.uint8)
            has_class[numbers[numbers != UNUSED]] = 1
            return has_class

        numbers = self.index.labels[rows]
        return cast(np.ndarray, DecodedRows(numbers, decode))


def opened(name: str, data_dir: Path | None, split: str) -> Split:
    """Returns a split of the set `name`; UserError if the set is not prepared."""
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    folder = None if data_dir is None else SETS[name].folder(data_dir)
    index = None if folder is None else folder / ARRAYS / split
    if folder is None or index is None or not has_arrays(index):
        raise UserError(
            f"data set {name!r} is not prepared in {data_dir}: run "
            f"{command(name, data_dir)}"
        )
    return Split(tfds.records(folder, split), open_arrays(index), f"{name}/{split}")


def imagenet2012(
    data_dir: Path | None,
    classes: int = 1000,
    images_share: float = 1.0,
    side: int = 224,
    held_out: int = 50_045,
) -> Source:
    """Returns ImageNet, divided as in Shallue et al. 2019.

    The source's own validation set has 50,000 images; its test set is `held_out` images
    of the training set. The paper does not say which images it held out; a secondary
    source says the first in file order. Here a fixed seed draws them, because
    TensorFlow Datasets stores examples in the order of a hash.

    Args:
        data_dir: folder where the set was prepared.
        classes: number of classes, 2 to 1,000; a fixed seed chooses them, and they are
            renumbered. Validation and test sets are restricted to them.
        images_share: share of the training images of each class, in (0, 1]; the same
            seed chooses them.
        side: side in pixels of the network's input, see `transforms.SquareCrops`.
        held_out: size of the test set before it is restricted to classes.
    """
    name = "imagenet2012"
    train, validation = (opened(name, data_dir, s) for s in SETS[name].splits)
    labels = np.asarray(train.index.labels)
    order = seeded_order(len(labels), 0)
    kept = order[held_out:]
    if images_share != 1:
        kept = _share_of_each_class(kept, labels, images_share)
    number = _numbers(1000, classes)
    sets: list[LabelledImages | None] = []
    for split, rows in (
        (train, _of_classes(kept, labels, number)),
        (validation, _of_classes(None, np.asarray(validation.index.labels), number)),
        (train, _of_classes(order[:held_out], labels, number)),
    ):
        own = number[np.asarray(split.index.labels)[rows]]
        sets.append((split.images(rows, _stored(side)), own) if len(rows) else None)
    if sets[0] is None:
        raise UserError(f"{train.what} has no training images left.")
    contents = "/".join(split.index.content for split in (train, train, validation))
    identity = f"{contents}/{classes}/{images_share}/{held_out}/{side}"
    return _cropped(sets[0], sets[1], sets[2], classes, side, identity)


def open_images_v4(data_dir: Path | None, side: int = 224) -> Source:
    """Returns Open Images, labels 0 or 1 for each of the 7,186 trainable classes.

    The set has the images with a positive label that a person has verified. A class
    that is not verified as positive counts as 0 (as Shallue et al. 2019 are reported to
    have done). Deviations: the training images are the images with boxes, because
    TensorFlow Datasets has these, in its version `300k`, with about 300,000 pixels.
    """
    name, classes = "open_images_v4", SETS["open_images_v4"].classes
    splits = [opened(name, data_dir, split) for split in SETS[name].splits]
    sets = []
    for split in splits:
        rows = np.flatnonzero(np.asarray(split.index.labels[:, 0]) != UNUSED)
        sets.append(
            (split.images(rows, _stored(side)), split.several_labels(rows, classes))
        )
    train, validation, test = sets
    contents = "/".join(split.index.content for split in splits)
    return _cropped(train, validation, test, classes, side, f"{contents}/{side}")


def _stored(side: int) -> int:
    """Returns the side of the stored squares; up to 32 pixels, it is the crops' own."""
    return side if side <= 32 else round(side * 320 / 224)


def _cropped(  # noqa: PLR0913 - each is independent of the others
    train: LabelledImages,
    validation: LabelledImages | None,
    test: LabelledImages | None,
    classes: int,
    side: int,
    identity: str,
) -> Source:
    """Returns a source of square crops; the hash of `identity` is its `content`."""
    check_positive("side", side)
    return Source(
        *train,
        classes,
        max(1, len(train[1]) // 10),
        transform=SquareCrops(side, round(side * 256 / 224), round(side * 512 / 224)),
        given_validation=validation,
        given_test=test,
        content=hashlib.sha256(identity.encode()).hexdigest(),
        content_of_given=True,
    )


def _numbers(classes: int, kept: int) -> np.ndarray:
    """Returns the new number of each class, UNUSED for classes that are not kept."""
    if not 1 < kept <= classes:
        raise UserError(
            f"classes is {kept!r}; it must be a number from 2 to {classes}."
        )
    numbers = np.full(classes, UNUSED, np.int32)
    numbers[np.sort(seeded_order(classes, 0)[:kept])] = np.arange(kept)
    return numbers


def _of_classes(
    rows: np.ndarray | None, labels: np.ndarray, number: np.ndarray
) -> np.ndarray:
    rows = np.arange(len(labels)) if rows is None else np.sort(rows)
    return rows[number[labels[rows]] != UNUSED]


def _share_of_each_class(
    rows: np.ndarray, labels: np.ndarray, share: float
) -> np.ndarray:
    """Returns the first rows of each class: a share of them, at least one."""
    if not 0 < share < 1:
        raise UserError(f"images_share is {share!r}; it must be above 0, at most 1.")
    kept = []
    for label in np.unique(labels[rows]):
        of_class = rows[labels[rows] == label]
        kept.append(of_class[: max(1, round(share * len(of_class)))])
    return np.concatenate(kept)


def prepare_photographs(
    name: str, data_dir: Path, raw_dir: Path | None, report: Report
) -> Path:
    """Builds and indexes the set `name`, one of SETS; returns its folder.

    `raw_dir`: folder with the files that have to be fetched by hand.
    """
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    described = SETS[name]
    if described.folder(data_dir) is None:
        _check_manual(described, raw_dir)
    size = described.built_bytes
    folder = built_folder(name, described.config, size, data_dir, raw_dir, report)
    for split in described.splits:
        index = folder / ARRAYS / split
        if has_arrays(index):
            verify_arrays(index)
            continue
        records = tfds.records(folder, split)
        facts = {"set": name, "split": split, "images": len(records)}
        labels = functools.partial(_labels, described.labels)
        what = f"{name}/{split}"
        indexed = functools.partial(_indexed, records, labels, what, report)
        write_arrays(index, indexed, facts)
    report(f"{name} is prepared in {folder}")
    return folder


def _check_manual(described: PhotographSet, raw_dir: Path | None) -> None:
    """Raises UserError if a file to be fetched by hand is missing or incomplete."""
    for file, size in described.manual:
        path = None if raw_dir is None else raw_dir / file
        if path is None or not path.is_file():
            raise UserError(
                f"{file} has to be downloaded by hand from {described.where}: put it "
                f"into a folder ({size:,} bytes) and give that as --raw_dir."
            )
        if path.stat().st_size != size:
            raise UserError(
                f"{path} is truncated or another file: it has {path.stat().st_size:,} "
                f"bytes and not {size:,}; download it again."
            )


def _indexed(
    records: Any, labels: Callable[[Any], Any], what: str, report: Report, first: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields SHA-256 sums, uint8 [n, 32], and labels of images; decodes each image.

    `labels`: returns the label or labels of a record; `first`: number of the first
    record to be read; `what`: names the split in messages.
    """

    def entry(row: int) -> tuple[np.ndarray, Any]:
        record = records[row]
        decoded(record["image"], f"image {row} of {what}")
        digest = hashlib.sha256(record["image"]).digest()
        return np.frombuffer(digest, np.uint8), labels(record)

    # Decoding, which is most of the work, lets other threads run.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(first, len(records), _BATCH):
            rows = range(start, min(start + _BATCH, len(records)))
            sums, targets = zip(*pool.map(entry, rows), strict=True)
            report(f"{what}: {rows.stop:,} of {len(records):,} images indexed")
            yield np.stack(sums), np.asarray(targets, np.int16)


def _labels(most: int, record: Any) -> Any:
    """Returns a record's label, or `most` labels: the verified ones, then UNUSED."""
    if most == 1:
        return record["label"]
    objects = record["objects_trainable"]
    verified = np.isin(objects["source"], _PEOPLE)
    positive = np.asarray(objects["confidence"]) >= _POSITIVE
    numbers = np.unique(np.asarray(objects["label"])[verified & positive])
    if len(numbers) > most:
        raise UserError(
            f"an image has {len(numbers)} verified labels, and the index has room for "
            f"{most}: this version of dps_tf does not support this version of the set."
        )
    padded = np.full(most, UNUSED)
    padded[: len(numbers)] = numbers
    return padded
