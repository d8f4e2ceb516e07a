"""Raw files for tests: the real ones where they are, tiny ones in the same formats."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from dps_tf.core import UserError
from dps_tf.data.raw import PUBLISHED, find_folder, missing_files

DEFAULT = Path(__file__).parents[3] / "shared" / "data"


def new_folder(test: unittest.TestCase) -> Path:
    """Returns an empty folder, with a space in its name, that ends with the test."""
    folder = tempfile.TemporaryDirectory(prefix="a folder ")
    test.addCleanup(folder.cleanup)
    return Path(folder.name)


def raw_dir() -> Path:
    """Returns the folder of real raw data, or skips the test with the reason."""
    folder = Path(os.environ.get("DPS_TF_RAW_DATA", DEFAULT))
    if not folder.is_dir():
        raise unittest.SkipTest(f"no raw data in {folder} (set DPS_TF_RAW_DATA)")
    return folder


def real(name: str, scratch: Path) -> Path:
    """Returns a folder that holds the published raw files of `name`, or skips.

    CIFAR-10 may lie there in a compact form, then it is unpacked into `scratch`.
    """
    folder = raw_dir()
    unpack = folder / name / "unpack_cifar10.py"
    if name == "cifar10" and unpack.is_file():
        command = [sys.executable, str(unpack), str(scratch)]
        subprocess.run(command, check=True, capture_output=True)
        return scratch
    if not (folder / name).is_dir():
        raise unittest.SkipTest(f"no raw files of {name} in {folder}")
    return folder


def train_images(name: str, raw_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 training images [n, height, width, channels] and labels [n].

    In the order of the raw files, whose sums are not checked.
    """
    published = PUBLISHED[name]
    folder = find_folder(published, raw_dir)
    if folder is None:
        raise UserError(missing_files(published, raw_dir))
    if published.archive is not None:
        return read_cifar([folder / f"data_batch_{i}.bin" for i in range(1, 6)])
    images = read_idx(folder / "train-images-idx3-ubyte.gz")
    return images[..., np.newaxis], read_idx(folder / "train-labels-idx1-ubyte.gz")


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
    """Returns uint8 images [n, 32, 32, 3] and labels [n] of CIFAR-10 batches.

    Format: records of a label byte and the red, green and blue plane, row by row.
    """
    content = b"".join(path.read_bytes() for path in paths)
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32**2)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].copy()


def idx_bytes(array: np.ndarray) -> bytes:
    """Returns `array` as a gzipped IDX file."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.tobytes(), mtime=0)


def cifar_bytes(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns images [n, 32, 32, 3] and labels [n] as a CIFAR-10 batch."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def random_images(count: int, shape: tuple[int, ...], seed: int = 0):
    """Returns uint8 images [count, *shape] and labels [count]."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    return images, generator.integers(0, 10, count, np.uint8)
