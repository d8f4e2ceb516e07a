"""Raw files as their authors publish them: where they are, whether, and what they hold.

Invariant: whoever reads images from here gets them in file order.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np

from dps_tf.core.errors import UserError
from dps_tf.data.published import PUBLISHED, PublishedSet

_CIFAR_SIDE = 32
_CIFAR_RECORD = 1 + 3 * _CIFAR_SIDE**2  # a label byte, then three planes of pixels


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, as hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def find_folder(published: PublishedSet, raw_dir: Path) -> Path | None:
    """Returns the folder in or below `raw_dir` that holds all raw files, or None."""
    inner = "." if published.archive is None else published.archive.folder
    for candidate in (
        raw_dir / published.name / inner,
        raw_dir / published.name,
        raw_dir / inner,
        raw_dir,
    ):
        if all((candidate / name).is_file() for name in published.file_names):
            return candidate
    return None


def find_archive(published: PublishedSet, raw_dir: Path) -> Path | None:
    """Returns the path of the set's archive in or below `raw_dir`, or None."""
    if published.archive is None:
        return None
    for candidate in (raw_dir / published.name, raw_dir):
        path = candidate / published.archive.file.name
        if path.is_file():
            return path
    return None


def check_file(path: Path, expected: str) -> None:
    """Raises UserError unless the SHA-256 of `path` is `expected`."""
    found = sha256(path)
    if found != expected:
        raise UserError(
            f"{path} is not the published file: its SHA-256 is {found}, not {expected}"
        )


def check_folder(published: PublishedSet, folder: Path) -> None:
    """Raises UserError unless each raw file in `folder` is the published one."""
    for name, expected in published.checksums.items():
        check_file(folder / name, expected)


def train_images(name: str, raw_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training images of `name` and their labels, in file order.

    uint8 [n, height, width, channels] and uint8 [n]. `raw_dir`: as for `prepare`.
    Raises UserError where the files are missing; does not check their sums.
    """
    published = PUBLISHED[name]
    folder = find_folder(published, raw_dir)
    if folder is None:
        raise UserError(missing_files(published, raw_dir))
    if published.archive is not None:
        return read_cifar([folder / f"data_batch_{i}.bin" for i in range(1, 6)])
    images = read_idx(folder / "train-images-idx3-ubyte.gz")
    return images[..., np.newaxis], read_idx(folder / "train-labels-idx1-ubyte.gz")


def missing_files(published: PublishedSet, raw_dir: Path) -> str:
    """Returns the sentence that says which files `raw_dir` lacks."""
    names = ", ".join(published.file_names)
    if published.archive is not None:
        archive = published.archive
        names = f"{archive.file.name}, or {archive.folder}/ with {names}"
    return (
        f"{raw_dir} does not hold the raw files of {published.name!r}: expected there, "
        f"or in its folder {published.name}/: {names}"
    )


def read_idx(path: Path) -> np.ndarray:
    """Returns the uint8 array in a gzipped IDX file, in the shape it states.

    Format: two zero bytes, type (8 = uint8), number of dimensions, their sizes as
    big-endian int32, then the values.
    """
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\x00\x00\x08":
        raise UserError(
            f"{path} is not an IDX file of bytes: it starts {content[:4]!r}"
        )
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">i4")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 images [n, 32, 32, 3] and uint8 labels [n] of CIFAR-10 batches.

    Format: records of a label byte and the red, green and blue plane, row by row.
    """
    content = b"".join(path.read_bytes() for path in paths)
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    planes = records[:, 1:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].copy()


def content_sum(images: np.ndarray, labels: np.ndarray) -> str:
    """Returns the SHA-256 of pixels and labels, as in `PublishedSet.content`."""
    digest = hashlib.sha256(np.ascontiguousarray(images, np.uint8).data)
    digest.update(np.ascontiguousarray(labels, np.uint8).data)
    return digest.hexdigest()
