"""Preparation of published sets in a data folder.

A small set is built in `.preparing-NAME` inside the data folder and renamed when it is
complete and checked. A killed preparation leaves only that folder, which the next
preparation removes. Large sets are built in place and continue after an interruption.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from dps_tf.core import UserError, near_matches
from dps_tf.data import photographs, raw, sentences
from dps_tf.data.arrays import has_arrays, verify_arrays
from dps_tf.data.download import fetch
from dps_tf.data.prepared import (
    ARRAYS,
    Report,
    add_arrays,
    prepared_folder,
    read_checked_images,
    read_checked_texts,
)
from dps_tf.data.raw import PUBLISHED, PublishedSet

_MARKER = ".dps_tf"  # as in dps_tf.store, which this package does not import


def prepare(
    name: str,
    data_dir: Path,
    raw_dir: Path | None,
    report: Report = print,
    sub_words: tuple[int, int] = (32_000, 64),
) -> Path:
    """Prepares and checks the set `name` in `data_dir`; returns its folder.

    Raw files are checked by their published SHA-256, and the prepared set is read back
    and checked too. A set that is already prepared is only checked. Large sets, and the
    user's own text folders, continue after an interruption. Raises UserError if there
    is no set of that name or it cannot be prepared.

    Args:
        name: of a published set, or `text_folder`.
        data_dir: folder of prepared sets.
        raw_dir: folder of raw files; None: they are downloaded.
        report: called with a sentence for each stage.
        sub_words: size of the vocabulary and length of sentences, of sets of text.
    """
    try:
        if name in PUBLISHED:
            return _prepared_published(PUBLISHED[name], data_dir, raw_dir, report)
        return _prepared_large(name, data_dir, raw_dir, sub_words, report)
    except OSError as error:
        raise UserError(f"cannot prepare {name} in {data_dir}: {error}") from error


def _prepared_published(
    published: PublishedSet, data_dir: Path, raw_dir: Path | None, report: Report
) -> Path:
    name = published.name
    folder = prepared_folder(name, data_dir)
    if folder is not None:
        _check(published, folder)
        report(f"{name} is already prepared in {folder}")
        return folder
    with _workspace(name, data_dir) as workspace:
        source = _raw_folder(published, raw_dir, workspace, report)
        report(f"preparing {name} in {data_dir}")
        folder = _build(published, source, workspace, data_dir)
    report(f"{name} is prepared in {folder}")
    return folder


def _prepared_large(
    name: str,
    data_dir: Path,
    raw_dir: Path | None,
    sub_words: tuple[int, int],
    report: Report,
) -> Path:
    names = [*PUBLISHED, *photographs.SETS, *sentences.SETS, "text_folder"]
    if name not in names:
        raise UserError(
            f"no data set named {name!r} can be prepared (embedded ones need not be): "
            f"{near_matches(name, names)}"
        )
    with _lock(name, data_dir):
        try:
            if name in photographs.SETS:
                return photographs.prepare_photographs(name, data_dir, raw_dir, report)
            if name in sentences.SETS:
                return sentences.prepare_sentences(name, data_dir, *sub_words, report)
            return sentences.prepare_text_folder(data_dir, raw_dir, *sub_words, report)
        except UserError:
            for folder in (name, "downloads"):
                _remove_empty(data_dir / folder)
            raise


def _remove_empty(folder: Path) -> None:
    """Removes empty folders in `folder`, and itself if it is then empty."""
    for inner, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            Path(inner).rmdir()


@contextlib.contextmanager
def _lock(name: str, data_dir: Path) -> Iterator[None]:
    """Holds a lock, so that one process at a time prepares a set in `data_dir`."""
    data_dir.mkdir(parents=True, exist_ok=True)
    lock_path = data_dir / f".preparing-{name}.lock"
    # A symbolic link of that name must not create or change its target.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(lock_path, flags, 0o666), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may have removed this file, and another made a new one.
            if not os.path.samestat(os.fstat(lock.fileno()), lock_path.lstat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            raise UserError(
                f"another process is preparing {name} in {data_dir}: wait for it"
            ) from error
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)


@contextlib.contextmanager
def _workspace(name: str, data_dir: Path) -> Iterator[Path]:
    """Yields an empty folder that only this process uses; removes it at the end."""
    workspace = data_dir / f".preparing-{name}"
    with _lock(name, data_dir):
        # A killed preparation left it: with the lock held, no process uses it.
        _remove_marked(workspace)
        workspace.mkdir()
        (workspace / _MARKER).touch()
        try:
            yield workspace
        finally:
            shutil.rmtree(workspace, ignore_errors=True)


def _remove_marked(workspace: Path) -> None:
    """Removes a killed preparation's folder; UserError for a folder without marker."""
    if workspace.is_symlink() or (
        workspace.exists()
        and not (workspace / _MARKER).is_file()
        and any(workspace.iterdir())
    ):
        raise UserError(
            f"{workspace} is not of this package, which marks its folders by "
            f"{_MARKER}: remove it by hand if nobody needs it"
        )
    if workspace.exists():
        shutil.rmtree(workspace)


def _raw_folder(
    published: PublishedSet, raw_dir: Path | None, workspace: Path, report: Report
) -> Path:
    """Returns a folder that holds the set's raw files, each of them checked."""
    if raw_dir is None:
        return _downloaded(published, workspace, report)
    folder = raw.find_folder(published, raw_dir)
    if folder is not None:
        report(f"checking the raw files in {folder}")
        raw.check_folder(published, folder)
        return folder
    archive = raw.find_archive(published, raw_dir)
    if archive is None:
        raise UserError(raw.missing_files(published, raw_dir))
    report(f"checking {archive}")
    return _extracted(published, archive, workspace)


def _downloaded(published: PublishedSet, workspace: Path, report: Report) -> Path:
    folder = workspace / "downloaded"
    folder.mkdir()
    if published.archive is not None:
        report(f"downloading {published.archive.file.url}")
        path = fetch(published.archive.file, folder)
        return _extracted(published, path, workspace)
    for file in published.files:
        report(f"downloading {file.url}")
        raw.check_file(fetch(file, folder), file.sha256)
    return folder


def _extracted(published: PublishedSet, path: Path, workspace: Path) -> Path:
    archive = published.archive
    assert archive is not None, published.name
    raw.check_file(path, archive.file.sha256)
    folder = workspace / archive.folder
    folder.mkdir()
    with tarfile.open(path) as tar:
        for name in archive.members:
            # Members are extracted by name: nothing else in the archive is written.
            member = tar.extractfile(f"{archive.folder}/{name}")
            assert member is not None, name
            with member, (folder / name).open("wb") as target:
                shutil.copyfileobj(member, target)
    raw.check_folder(published, folder)
    return folder


def _build(
    published: PublishedSet, source: Path, workspace: Path, data_dir: Path
) -> Path:
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    target = workspace / "tfds"
    scratch = workspace / "scratch"
    for folder in (target, scratch):
        folder.mkdir()
    tfds.prepare(published.name, source, target, scratch)
    built = prepared_folder(published.name, target)
    if built is None:
        raise UserError(
            f"TensorFlow Datasets reported success but left no {published.name!r} in "
            f"{target}"
        )
    _check(published, built)
    final = data_dir / published.name / built.name
    final.parent.mkdir(exist_ok=True)
    if final.exists() and any(final.iterdir()):
        raise UserError(
            f"{final} is there and holds no complete set, as where a preparation by "
            "TensorFlow Datasets was cut short: remove it by hand if nobody needs it"
        )
    return built.rename(final)


def _check(published: PublishedSet, folder: Path) -> None:
    """Raises UserError unless the content of a prepared set is the published one."""
    name = published.name
    if name == "tiny_shakespeare":
        read_checked_texts(name, folder)
    elif has_arrays(folder / ARRAYS):
        read_checked_images(name, folder)
        verify_arrays(folder / ARRAYS)
    else:
        add_arrays(name, folder)
