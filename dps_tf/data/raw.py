"""Raw files of data sets as their authors publish them: how to find and check them.

No file that differs from its SHA-256 in PUBLISHED is used for a study.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dps_tf.core import UserError


@dataclass(frozen=True)
class RawFile:
    """A file as its authors publish it. `sha256`: of its content, hexadecimal."""

    name: str
    sha256: str
    url: str


@dataclass(frozen=True)
class Archive:
    """A tar archive that holds the raw files of a data set.

    `folder`: folder of the files in the archive; `members`: SHA-256 of each, by name.
    """

    file: RawFile
    folder: str
    members: dict[str, str]


@dataclass(frozen=True)
class PublishedSet:
    """A data set that TensorFlow Datasets builds from published files.

    `content`: SHA-256 of the training set in file order: all pixels [n, height, width,
    channels], then all labels, one byte each; for a text, SHA-256 of the whole text.
    `test_content`: the same for the test images. Both sums depend on the order of the
    examples too.
    """

    name: str
    content: str
    validation_examples: int
    test_content: str = ""
    files: tuple[RawFile, ...] = ()
    archive: Archive | None = None

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of each file that a folder of raw files must hold, by name."""
        if self.archive is not None:
            return self.archive.members
        return {file.name: file.sha256 for file in self.files}

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of the files that a folder of raw files must hold."""
        return tuple(self.checksums)


def _idx_files(base_url: str, checksums: tuple[str, ...]) -> tuple[RawFile, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(
        RawFile(name, checksum, base_url + name)
        for name, checksum in zip(names, checksums, strict=True)
    )


# Source of URLs and SHA-256 of files: the tables of TensorFlow Datasets 4.9. Source of
# validation sizes: published code of Lee et al. 2021, a tenth of the training images.
_MNIST = PublishedSet(
    "mnist",
    content="edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
    test_content="c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
    validation_examples=6_000,
    files=_idx_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)
_FASHION_MNIST = PublishedSet(
    "fashion_mnist",
    content="16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
    test_content="9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
    validation_examples=6_000,
    files=_idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
)
_CIFAR10 = PublishedSet(
    "cifar10",
    content="f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b",
    test_content="8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa",
    validation_examples=5_000,
    archive=Archive(
        RawFile(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        ),
        "cifar-10-batches-bin",
        # SHA-256 of the batches inside the archive.
        {
            "data_batch_1.bin": (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
            ),
            "data_batch_2.bin": (
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
            ),
            "data_batch_3.bin": (
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
            ),
            "data_batch_4.bin": (
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
            ),
            "data_batch_5.bin": (
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
            ),
            "test_batch.bin": (
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
            ),
        },
    ),
)
_TINY_SHAKESPEARE = PublishedSet(
    "tiny_shakespeare",
    # The training set is the whole file.
    content="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    validation_examples=0,  # depends on the length of a sequence
    files=(
        RawFile(
            "input.txt",
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
            "tinyshakespeare/input.txt",
        ),
    ),
)

PUBLISHED = {
    item.name: item for item in (_MNIST, _FASHION_MNIST, _CIFAR10, _TINY_SHAKESPEARE)
}


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def check_regular(paths: Iterable[Path]) -> None:
    """Raises UserError for a path that is no regular file, such as an endless pipe."""
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{path} is no regular file (but a folder, a pipe, a device or a "
                "broken link): take it out of the folder."
            )


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
    actual = sha256(path)
    if actual != expected:
        raise UserError(
            f"{path} is not the published file: its SHA-256 is {actual}, not {expected}"
        )


def check_folder(published: PublishedSet, folder: Path) -> None:
    """Raises UserError unless each raw file in `folder` is the published one."""
    for name, expected in published.checksums.items():
        check_file(folder / name, expected)


def missing_files(published: PublishedSet, raw_dir: Path) -> str:
    """Returns an error message that names the files that `raw_dir` should hold."""
    names = ", ".join(published.file_names)
    if published.archive is not None:
        archive = published.archive
        names = f"{archive.file.name}, or {archive.folder}/ with {names}"
    return (
        f"{raw_dir} does not hold the raw files of {published.name!r}: expected there, "
        f"or in its folder {published.name}/: {names}"
    )


def content_sum(images: np.ndarray, labels: np.ndarray) -> str:
    """Returns the SHA-256 of pixels, then labels, as in `PublishedSet.content`."""
    digest = hashlib.sha256(np.ascontiguousarray(images, np.uint8).data)
    digest.update(np.ascontiguousarray(labels, np.uint8).data)
    return digest.hexdigest()
