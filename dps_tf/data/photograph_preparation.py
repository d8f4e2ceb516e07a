"""Builds and indexes sets of photographs; what was done before a stop stays done.

TensorFlow Datasets downloads and builds; here it is checked beforehand that what has to
be fetched by hand is there and whole, and that the disk has room. The index of a split
holds the SHA-256 of each image and its labels.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dps_tf.core import UserError
from dps_tf.data.arrays import has_arrays, verify_arrays, write_arrays
from dps_tf.data.photographs import SETS, UNUSED, Files, PhotographSet
from dps_tf.data.prepared import ARRAYS, Report, built_folder
from dps_tf.data.transforms import decoded_square

IMAGES = (".jpeg", ".jpg", ".png", ".bmp", ".gif")
_BATCH = 1_000  # images; after a stop, at most so many are read again
_POSITIVE = 10  # TFDS multiplies the confidence of 0 or 1 by ten
_PEOPLE = (0, 1)  # TFDS's numbers of `verification` and `crowdsource-verification`


def prepare_photographs(
    name: str, data_dir: Path, raw_dir: Path | None, report: Report
) -> Path:
    """Returns the folder of one of SETS, built and indexed.

    `raw_dir`: holds what has to be fetched by hand.
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
        indexed = functools.partial(_indexed, records, described, split, report)
        write_arrays(index, indexed, facts)
    report(f"{name} is prepared in {folder}")
    return folder


def _check_manual(described: PhotographSet, raw_dir: Path | None) -> None:
    """Raises UserError unless all that is fetched by hand is there, and whole."""
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
    records: Any, described: PhotographSet, split: str, report: Report, first: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(first, len(records), _BATCH):
        batch = [
            records[row] for row in range(start, min(start + _BATCH, len(records)))
        ]
        sums = [_digest(record["image"]) for record in batch]
        labels = [_labels(record, described.labels) for record in batch]
        done = start + len(batch)
        report(f"{described.name}/{split}: {done:,} of {len(records):,} images indexed")
        yield np.stack(sums), np.asarray(labels, np.int16)


def _digest(content: bytes) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(content).digest(), np.uint8)


def _labels(record: Any, most: int) -> Any:
    if most == 1:
        return record["label"]
    objects = record["objects_trainable"]
    verified = np.isin(objects["source"], _PEOPLE)
    positive = np.asarray(objects["confidence"]) >= _POSITIVE
    numbers = np.unique(np.asarray(objects["label"])[verified & positive])
    if len(numbers) > most:
        raise UserError(
            f"an image has {len(numbers)} verified labels, and the index has room for "
            f"{most}: this is no set that this version of dps_tf knows."
        )
    found = np.full(most, UNUSED)
    found[: len(numbers)] = numbers
    return found


def prepare_image_folder(data_dir: Path, raw_dir: Path | None, report: Report) -> Path:
    """Returns the folder with the index of a user's images, a subfolder for each class.

    The images stay in `raw_dir`; each is decoded once, to know that it can be.
    """
    if raw_dir is None:
        raise UserError(
            "the data set 'image_folder' is a folder of yours: name it with --raw_dir, "
            "one subfolder of images for each class."
        )
    root = raw_dir.resolve()
    classes, files = _images_below(root)
    records = Files(root, [name for name, _ in files])
    labels = np.asarray([label for _, label in files], np.int16)

    def indexed(first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(first, len(files), _BATCH):
            sums = []
            for row in range(start, min(start + _BATCH, len(files))):
                record = records[row]
                decoded_square(record["image"], 32, record["name"])
                sums.append(_digest(record["image"]))
            done = start + len(sums)
            report(f"{root.name}: {done:,} of {len(files):,} images indexed")
            yield np.stack(sums), labels[start:done]

    target = data_dir / "image_folder" / root.name
    facts = {
        "root": str(root),
        "classes": classes,
        "files": [name for name, _ in files],
    }
    write_arrays(target, indexed, facts)
    report(f"{root.name} is prepared in {target}")
    return target


def _images_below(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Returns the classes of a folder, and its files with the number of their class."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    files = [
        (path.relative_to(root).as_posix(), label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).iterdir())
        if path.suffix.lower() in IMAGES
    ]
    if len(classes) < 2 or not files:
        raise UserError(
            f"{root} has {len(classes)} subfolders with {len(files)} images: it needs "
            f"one for each class, at least two, with files {', '.join(IMAGES)}."
        )
    return classes, files
