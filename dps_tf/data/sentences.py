"""Sentences as sub-words: LM1B, C4, and the user's own folders of text.

`prepare` makes the vocabulary with SentencePiece and writes each sentence as a row of
an array, so that opening a set reads none; after an interruption it continues. A
network reads the beginning of a sentence and predicts the next sub-word at each place.
Deviation: an example of C4 is the beginning of a document, not a sentence.

Text must be UTF-8. Sentences are cut to `length` sub-words, in training to
`training_length`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dps_tf.core import UserError
from dps_tf.data.arrays import has_arrays, open_arrays, verify_arrays, write_arrays
from dps_tf.data.dataset import Source
from dps_tf.data.prepared import (
    Report,
    built_folder,
    check_space,
    command,
    prepared_folder,
    stored_bytes,
)
from dps_tf.data.raw import check_regular, sha256
from dps_tf.data.sub_words import MODEL, Texts, stored_type, sub_words, vocabulary_of
from dps_tf.data.transforms import FirstTokens

SPLITS = ("train", "validation", "test")

Part = tuple[str, int, int | None]
"""A TFDS split, and the numbers of the first text and after the last; None: all."""


def place(data_dir: Path, name: str, vocabulary: int, length: int) -> Path:
    """Returns the folder where the sentences of a set are stored as sub-words."""
    return data_dir / name / f"sentences-{vocabulary}-{length}"


def sentences(name: str) -> Callable[..., Source]:
    """Returns the loader of a set of sentences that TensorFlow Datasets builds."""

    def load_sentences(
        data_dir: Path | None,
        vocabulary: int = 32_000,
        length: int = 64,
        training_length: int | None = None,
    ) -> Source:
        """Returns sentences as sub-words, int32 [n, length].

        `vocabulary`: number of different sub-words; `training_length`: training reads
        the first so many of each sentence, None for all.
        """
        return _source(data_dir, name, vocabulary, length, training_length)

    return load_sentences


def text_folder(
    data_dir: Path | None,
    folder: str,
    vocabulary: int = 8_000,
    length: int = 64,
    training_length: int | None = None,
) -> Source:
    """Returns the lines of a user's text files as sentences, int32 [n, length].

    `folder`: NAME of `prepare --dataset=text_folder --raw_dir=.../NAME`; `vocabulary`,
    `length`: as prepared; `training_length`: training reads the first so many sub-words
    of each line, None for all. A tenth is for validation unless a workload sets it.
    """
    name = f"text_folder/{folder}"
    return _source(data_dir, name, vocabulary, length, training_length)


def _source(
    data_dir: Path | None,
    name: str,
    vocabulary: int,
    length: int,
    training_length: int | None,
) -> Source:
    shorter = _shorter(training_length, length)
    folder = None if data_dir is None else place(data_dir, name, vocabulary, length)
    if data_dir is None or folder is None or not has_arrays(folder / "train"):
        parent = None if folder is None else folder.parent
        others = sorted(p.name for p in parent.glob("sentences-*")) if parent else []
        there = f"; there are {', '.join(others)}" if others else ""
        dataset = name.partition("/")[0]
        raise UserError(
            f"data set {name!r} with {vocabulary:,} sub-words and sentences of "
            f"{length} is not prepared in {data_dir}{there}: run "
            f"{command(dataset, data_dir)} --vocabulary={vocabulary} --length={length}"
        )
    splits = {s: open_arrays(folder / s) for s in SPLITS if has_arrays(folder / s)}
    contents = "/".join(f"{s}:{arrays.content}" for s, arrays in splits.items())
    # Inputs and labels: the label of each sub-word is the next one.
    pairs = {s: (a.inputs[:, :-1], a.inputs[:, 1:]) for s, a in splits.items()}
    return Source(
        *pairs["train"],
        vocabulary,
        max(1, len(splits["train"].inputs) // 10),
        _without_padding,
        shorter,
        given_validation=pairs.get("validation"),
        given_test=pairs.get("test"),
        content=hashlib.sha256(contents.encode()).hexdigest(),
        content_of_given=True,
    )


def _shorter(training_length: int | None, length: int) -> FirstTokens | None:
    if training_length is None or training_length == length:
        return None
    if not 0 < training_length < length:
        raise UserError(
            f"training_length is {training_length}: it must be from 1 to the {length} "
            "sub-words that length keeps of a sentence."
        )
    return FirstTokens(training_length)


def _without_padding(tokens: np.ndarray) -> np.ndarray:
    """Returns inputs of a network, int32: sub-words, with 0 in place of padding."""
    return np.maximum(tokens, 0).astype(np.int32)


@dataclass(frozen=True)
class SentenceSet:
    """A set of texts that TensorFlow Datasets builds.

    Attributes:
        name: in TensorFlow Datasets.
        config: version of the set, or None.
        parts: what each split is made of.
        built_bytes: bytes of the download and of the built set, 0 if unknown.
        remark: why TensorFlow Datasets cannot build the set here, and where to get it.
    """

    name: str
    config: str | None
    parts: dict[str, Part]
    built_bytes: int
    remark: str = ""


# Shallue et al. 2019 reportedly used held-out shard 0 of 50 for validation and shard 1
# for testing. TFDS orders examples by a hash: here, the first as many of them are used.
SETS = {
    "lm1b": SentenceSet(
        "lm1b",
        None,
        {
            "train": ("train", 0, 30_301_028),
            "validation": ("test", 0, 6_075),
            "test": ("test", 6_075, 6_075 + 6_206),
        },
        6_520_000_000,
    ),
    "c4": SentenceSet(
        "c4",
        "en",
        {"train": ("train", 0, None), "validation": ("validation", 0, 6_075)},
        0,
        "TensorFlow Datasets builds c4/en with Apache Beam on a cluster; a built copy "
        "(807 GiB; format array_record or tfrecord) can be fetched from the bucket "
        "that its page names",
    ),
}


def prepare_sentences(
    name: str, data_dir: Path, vocabulary: int, length: int, report: Report
) -> Path:
    """Writes a published set as sub-words; returns their folder."""
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    described = SETS[name]
    built = name if described.config is None else f"{name}/{described.config}"
    built_set = prepared_folder(built, data_dir)
    if described.remark and built_set is None:
        raise UserError(
            f"{described.remark}: put it into {data_dir / built} and run this again."
        )
    target = place(data_dir, name, vocabulary, length)
    rows = _bytes_of_rows(target, described.parts, built_set)
    if built_set is not None and rows:
        check_space(name, data_dir, rows, report)
    size = described.built_bytes + rows
    source = built_folder(name, described.config, size, data_dir, None, report)

    def texts(split: str, begin: int, end: int | None, first: int) -> Iterator[str]:
        stored = tfds.read_texts(source, split, begin + first)
        count = None if end is None else end - begin - first
        for row, text in enumerate(itertools.islice(stored, count)):
            yield _decoded(text, f"text {begin + first + row} of {name}/{split}")

    parts: dict[str, Texts] = {
        s: functools.partial(texts, *part) for s, part in described.parts.items()
    }
    return _prepared(target, parts, report)


def _bytes_of_rows(target: Path, parts: dict[str, Part], built: Path | None) -> int:
    """Returns the number of bytes of sub-words that are still to be written.

    `built`: folder of the set of TensorFlow Datasets, to count its texts. None: splits
    without a given end count as 0 bytes.
    """
    from dps_tf.data import tfds

    vocabulary, length = map(int, target.name.split("-")[1:])
    row = (length + 1) * stored_type(vocabulary).itemsize + np.dtype(np.int32).itemsize
    missing = 0
    for split, (of, begin, end) in parts.items():
        if not has_arrays(target / split):
            ends = [end, None if built is None else tfds.examples(built, of)]
            rows = min((n for n in ends if n is not None), default=begin) - begin
            missing += max(0, rows * row - stored_bytes(target / split))
    return missing


def prepare_text_folder(
    data_dir: Path, raw_dir: Path | None, vocabulary: int, length: int, report: Report
) -> Path:
    """Writes the lines of a user's text files as sub-words; returns their folder."""
    if raw_dir is None:
        raise UserError(
            "the data set 'text_folder' is a folder of yours: name it with --raw_dir, "
            "with files *.txt in UTF-8, a sentence on each line."
        )
    root = raw_dir.resolve()
    files = sorted(root.rglob("*.txt"))
    check_regular(files)
    if not files:
        raise UserError(f"{root} has no file *.txt: put your text there, in UTF-8.")

    def lines() -> Iterator[str]:
        for path in files:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    text = _decoded(line, f"line {number} of {path}").strip()
                    if text:
                        yield text

    def texts(first: int) -> Iterator[str]:
        return itertools.islice(lines(), first, None)

    target = place(data_dir, f"text_folder/{root.name}", vocabulary, length)
    _start_anew_for_another_text(target, files, report)
    return _prepared(target, {"train": texts}, report)


def _start_anew_for_another_text(
    target: Path, files: list[Path], report: Report
) -> None:
    """Removes vocabulary and rows in `target` if they were made from other files."""
    # As bytes, because a file name need not be UTF-8.
    named = (f"{sha256(path)}  {path.name}" for path in files)
    sums = b"\n".join(map(os.fsencode, named))
    mark = target / "text.sha256"
    if mark.is_file() and mark.read_bytes() != sums:
        report(f"{target} is made again: the text has changed")
        shutil.rmtree(target)
    if not (target / MODEL).is_file():
        target.mkdir(parents=True, exist_ok=True)
        mark.write_bytes(sums)


def _decoded(text: bytes, what: str) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} is not UTF-8 (byte {error.start} is {text[error.start]:#04x}): "
            "convert the text, for example with iconv, and prepare it again."
        ) from error


def _prepared(target: Path, parts: dict[str, Texts], report: Report) -> Path:
    """Writes a set as sub-words to `target`, named after vocabulary and length."""
    _, vocabulary, length = target.name.split("-")
    kept = (target / MODEL).is_file() or any(has_arrays(target / s) for s in parts)
    try:
        return _written(target, parts, int(vocabulary), int(length), report)
    except UserError:
        if not kept:
            shutil.rmtree(target, ignore_errors=True)
        raise


def _written(
    target: Path, parts: dict[str, Texts], vocabulary: int, length: int, report: Report
) -> Path:
    model = vocabulary_of(target, vocabulary, parts["train"], report)
    for split, texts in parts.items():
        folder = target / split
        if has_arrays(folder):
            verify_arrays(folder)
            continue
        facts = {"vocabulary": hashlib.sha256(model).hexdigest(), "split": split}
        rows = functools.partial(sub_words, model, texts, length, split, report)
        write_arrays(folder, rows, facts)
    report(f"{target.parent.name} is prepared in {target}")
    return target
