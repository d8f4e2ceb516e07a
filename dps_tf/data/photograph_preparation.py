"""Builds and indexes sets of photographs; what was done before a stop stays done.

TensorFlow Datasets downloads and builds; here it is checked beforehand that what has to
be fetched by hand is there and whole, and that the disk has room. The index of a split
holds the SHA-256 of each image and its labels; each image is decoded once on the way,
so that no trial ends at one that cannot be.
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
        labels = functools.partial(_labels, described.labels)
        what = f"{name}/{split}"
        indexed = functools.partial(_indexed, records, labels, what, report)
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
    records: Any,
    labels: Callable[[Any], Any],
    what: str,
    report: Report,
    first: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields SHA-256 sums and labels of images that can be decoded.

    `labels`: returns those of a record.
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
            sums, found = zip(*pool.map(entry, rows), strict=True)
            report(f"{what}: {rows.stop:,} of {len(records):,} images indexed")
            yield np.stack(sums), np.asarray(found, np.int16)


def _labels(most: int, record: Any) -> Any:
    """Returns the label of a record, or its verified labels and UNUSED up to `most`."""
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
