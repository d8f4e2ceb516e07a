"""Tiny sets in the published formats, which pass for the published ones in a test."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from dps_tf.data import raw
from tests.data import raw_files

TRAIN, TEST = 40, 7
IDX_SETS = ("mnist", "fashion_mnist")
TEXT = "".join(f"line {i}: to be, or not to be?\n" for i in range(40))


def contents(name: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Returns the raw files of a tiny set, by name, and the sums of its content."""
    if name == "tiny_shakespeare":
        content = hashlib.sha256(TEXT.encode()).hexdigest()
        return {"input.txt": TEXT.encode()}, {"content": content}
    shape = (32, 32, 3) if name == "cifar10" else (28, 28, 1)
    seed = sum(name.encode())  # so that MNIST and Fashion-MNIST differ
    images, labels = raw_files.random_images(TRAIN, shape, seed)
    test_images, test_labels = raw_files.random_images(TEST, shape, seed + 1)
    content = {
        "content": raw.content_sum(images, labels),
        "test_content": raw.content_sum(test_images, test_labels),
    }
    if name == "cifar10":
        parts = np.array_split(np.arange(TRAIN), 5)
        files = {
            f"data_batch_{i}.bin": raw_files.cifar_bytes(images[part], labels[part])
            for i, part in enumerate(parts, start=1)
        }
        files["test_batch.bin"] = raw_files.cifar_bytes(test_images, test_labels)
        return files, content
    arrays = (images[..., 0], labels, test_images[..., 0], test_labels)
    names = raw.PUBLISHED[name].file_names
    return dict(zip(names, map(raw_files.idx_bytes, arrays), strict=True)), content


def write(name: str, folder: Path) -> None:
    """Writes the raw files of a tiny set into `folder`, made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents(name)[0].items():
        (folder / file).write_bytes(content)


def write_archive(folder: Path) -> Path:
    """Writes the tiny CIFAR-10 as an archive and returns its path."""
    inside = folder / "cifar-10-batches-bin"
    write("cifar10", inside)
    (inside / "readme.html").write_text("besides")
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(inside, inside.name)
    for file in inside.iterdir():
        file.unlink()
    inside.rmdir()
    return path


@contextlib.contextmanager
def in_place_of_published(
    name: str, archive: Path | None = None, url: str | None = None
) -> Iterator[None]:
    """Makes the tiny set the published one, for this package and for TFDS.

    `archive`: the file that then passes as the published one, to be had from `url`.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums
    from tensorflow_datasets.image_classification import mnist

    files, content = contents(name)
    sums = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    old = raw.PUBLISHED[name]
    infos = {
        file.url: checksums.UrlInfo(len(files[file.name]), sums[file.name], file.name)
        for file in old.files
    }
    new_files = tuple(dataclasses.replace(f, sha256=sums[f.name]) for f in old.files)
    changes: dict[str, object] = {**content, "files": new_files}
    if old.archive is not None:
        file = old.archive.file
        if archive is not None:
            file = dataclasses.replace(
                file, sha256=raw.sha256(archive), url=url or file.url
            )
        changes["archive"] = dataclasses.replace(old.archive, file=file, members=sums)
    if name in IDX_SETS:
        changes["validation_examples"] = 4
    tiny = dataclasses.replace(old, **changes)
    builder = tfds.builder_cls(name)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.dict(raw.PUBLISHED, {name: tiny}))
        # TFDS updates its own memory of all sums with those of the builder.
        enter(mock.patch.dict(checksums.get_all_url_infos()))
        enter(mock.patch.object(mnist, "_TRAIN_EXAMPLES", TRAIN))
        enter(mock.patch.object(mnist, "_TEST_EXAMPLES", TEST))
        if infos:
            enter(mock.patch.object(builder, "url_infos", infos))
        yield
