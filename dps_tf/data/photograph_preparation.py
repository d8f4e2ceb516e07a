"""Preparation of sets of photographs, which continues after an interruption.

TensorFlow Datasets downloads and builds a set. Before it starts, this module checks
that the files to be fetched by hand are complete and that the disk has room. Afterwards
it writes an index of each split: SHA-256 and labels of each image. Each image is
decoded once for it, so that an image that cannot be decoded stops no trial later.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dps_tf.core import UserError
from dps_tf.data.arrays import has_arrays, verify_arrays, write_arrays
from dps_tf.data.photographs import SETS, UNUSED, PhotographSet
from dps_tf.data.prepared import ARRAYS, Report, built_folder
from dps_tf.data.transforms import decoded

_BATCH = 1_000  # images; at most so many are read again after an interruption
_POSITIVE = 10  # TFDS multiplies the confidence of 0 or 1 by ten
_PEOPLE = (0, 1)  # TFDS's numbers of `verification` and `crowdsource-verification`


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
