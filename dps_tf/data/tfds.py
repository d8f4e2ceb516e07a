"""All calls of TensorFlow Datasets (TFDS), its private functions included.

Reading never downloads. TFDS stores the examples of a split in the order of a hash of
their index. `read_images` restores the file order, and its callers check the SHA-256 of
the content in that order.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from etils import epath
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core.download import checksums, resource

from dps_tf.core import UserError

# Names of classes, which TFDS reads from a file of CIFAR-10's archive.
_CIFAR_LABELS = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"

_READ_BATCH = 1_000  # examples per call of tf.data; affects only the speed


def read_images(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of a split in file order.

    Images are uint8 [n, height, width, channels], labels uint8 [n]. `folder`: has the
    `dataset_info.json` of a prepared set.
    """
    # With a cycle length of 1, shards are read one after the other, in stored order.
    config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    with _quiet():
        builder = tfds.builder_from_directory(folder)
        dataset = builder.as_dataset(split, shuffle_files=False, read_config=config)
        batches = list(dataset.batch(_READ_BATCH).as_numpy_iterator())
    images = np.concatenate([batch["image"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches]).astype(np.uint8)
    stored = stored_order(split, len(labels))
    in_file_order = np.empty_like(images)
    in_file_order[stored] = images
    labels[stored] = labels.copy()
    return in_file_order, labels


def records(folder: Path, split: str) -> Sequence[dict[str, Any]]:
    """Returns the examples of a split in stored order, images as encoded bytes.

    Raises UserError if the set is stored in a format without random access.
    """
    with _quiet():
        builder = tfds.builder_from_directory(folder)
        features = builder.info.features
        skip = {"image": tfds.decode.SkipDecoding()} if "image" in features else None
        try:
            return builder.as_data_source(split, decoders=skip)
        except NotImplementedError as error:
            raise UserError(
                f"{folder} is stored in a format whose examples have no number: write "
                "it again with `tfds convert_format --dataset_dir=... "
                "--out_file_format=array_record`, or remove it and prepare it again."
            ) from error


def read_texts(folder: Path, split: str, first: int) -> Iterator[bytes]:
    """Yields the feature `text` of a split in stored order, from example `first` on."""
    config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    with _quiet():
        builder = tfds.builder_from_directory(folder)
        by_number = file_adapters.FileFormat.with_random_access()
        if builder.info.file_format in by_number:
            source, dataset = builder.as_data_source(split), None
        else:
            dataset = builder.as_dataset(split, shuffle_files=False, read_config=config)
    if dataset is None:
        yield from (source[row]["text"] for row in range(first, len(source)))
        return
    for batch in dataset.skip(first).batch(_READ_BATCH).as_numpy_iterator():
        yield from batch["text"]


def examples(folder: Path, split: str) -> int:
    """Returns how many examples a split of a prepared set has."""
    with _quiet():
        return int(tfds.builder_from_directory(folder).info.splits[split].num_examples)


def build(name: str, data_dir: Path, manual_dir: Path | None) -> None:
    """Downloads and builds a set in `data_dir` by TFDS, in a format with random access.

    Files that an interrupted call downloaded are not downloaded again. `manual_dir`:
    folder of the files that have to be fetched by hand.
    """
    with _quiet():
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
        settings = tfds.download.DownloadConfig(
            manual_dir=manual_dir, try_download_gcs=False
        )
        builder.download_and_prepare(
            download_dir=data_dir / "downloads", download_config=settings
        )


def stored_order(split: str, examples: int) -> np.ndarray:
    """Returns the file index of each stored example, int64 [examples].

    TFDS sorts examples by the MD5 of the split's name followed by the example's key,
    which is its file index in the sets read here.
    """
    keys = [
        hashlib.md5(f"{split}{index}".encode(), usedforsecurity=False).digest()
        for index in range(examples)
    ]
    return np.asarray(sorted(range(examples), key=keys.__getitem__), np.int64)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses TFDS's messages about its folders and its deprecation warnings."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)


def prepare(name: str, raw: Path, target: Path, scratch: Path) -> None:
    """Builds the set `name` in `target` by TFDS, from raw files in the folder `raw`.

    The caller must have checked the raw files: CIFAR-10's are not checked here.
    `scratch`: a folder used for this set only, because TFDS extracts files of two sets
    to the same names. Side effect: switches off TFDS's progress bars.
    """
    tfds.disable_progress_bar()
    with _quiet():
        builder = tfds.builder(name, data_dir=target)
        arguments: dict[str, Any] = {"try_download_gcs": False}
        if name == "cifar10":
            _place_as_extracted(builder, raw, scratch)
        else:
            arguments |= {"manual_dir": raw, "extract_dir": scratch / "extracted"}
        config = tfds.download.DownloadConfig(**arguments)
        builder.download_and_prepare(download_dir=scratch, download_config=config)


def _place_as_extracted(builder: Any, raw: Path, scratch: Path) -> None:
    """Copies CIFAR-10's batches to where TFDS looks for its extracted archive."""
    url = builder._cifar_info.url
    info = checksums.get_all_url_infos()[url]
    file_name = resource.get_dl_fname(url, info.checksum)
    stub = scratch / "cifar10" / file_name
    stub.parent.mkdir(parents=True, exist_ok=True)
    stub.touch()
    resource.write_info_file(
        url=url,
        path=epath.Path(stub),
        dataset_name="cifar10",
        original_fname=info.filename,
        url_info=info,
    )
    folder = scratch / "extracted" / f"TAR_GZ.{file_name}" / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    for batch in (*builder._cifar_info.train_files, *builder._cifar_info.test_files):
        shutil.copyfile(raw / batch, folder / batch)
    (folder / "batches.meta.txt").write_text(_CIFAR_LABELS.replace(",", "\n") + "\n")
