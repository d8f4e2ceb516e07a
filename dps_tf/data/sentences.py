"""Sentences as sub-words: LM1B, C4, and folders of text of the user's own.

`prepare` makes the vocabulary by SentencePiece and writes the sentences as arrays, one
row each, so that starting reads none of them; what a stop has left is kept. A network
reads the beginning of a sentence and predicts each sub-word of it and its end.
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
from dps_tf.data.arrays import (
    has_arrays,
    open_arrays,
    verify_arrays,
    write_arrays,
)
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
"""TFDS's split, the first text of it and the end; None is the end of the split."""


def place(data_dir: Path, name: str, vocabulary: int, length: int) -> Path:
    """Returns the folder of the sentences of a set in sub-words."""
    return data_dir / name / f"sentences-{vocabulary}-{length}"


def sentences(name: str) -> Callable[..., Source]:
    """Returns the loader of a set of sentences that TensorFlow Datasets builds."""

    def load_sentences(
        data_dir: Path | None,
        vocabulary: int = 32_000,
        length: int = 64,
        training_length: int | None = None,
    ) -> Source:
        """Returns sentences as pieces of a vocabulary, int32 [n, length].

        Training reads the first `training_length` of them; None: all.
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
    """Returns the lines of a user's text files, each a sentence.

    `folder`: the NAME that `prepare --dataset=text_folder --raw_dir=.../NAME` read;
    `training_length`: training reads the first so many sub-words, None for all. A tenth
    is for validation unless a workload asks for another number.
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
    found = {s: open_arrays(folder / s) for s in SPLITS if has_arrays(folder / s)}
    contents = "/".join(f"{s}:{arrays.content}" for s, arrays in found.items())
    # Inputs and labels: the label of each sub-word is the next one.
    pairs = {s: (a.inputs[:, :-1], a.inputs[:, 1:]) for s, a in found.items()}
    return Source(
        *pairs["train"],
        vocabulary,
        max(1, len(found["train"].inputs) // 10),
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
    """Returns inputs of a network: the first sub-word where there is padding."""
    return np.maximum(tokens, 0).astype(np.int32)


@dataclass(frozen=True)
class SentenceSet:
    """A set of texts that TensorFlow Datasets builds.

    Attributes:
        name: in TensorFlow Datasets.
        config: which of its versions, or None.
        parts: what each split is made of.
        built_bytes: of its download and itself when built, 0 where it is not known.
        remark: what has to be known before it can be built.
    """

    name: str
    config: str | None
    parts: dict[str, Part]
    built_bytes: int
    remark: str = ""


# Shallue et al. 2019 are said to have taken held-out shard 0 of 50 for validation and
# shard 1 as test set; TFDS has all shards in the order of a hash: as many, from there.
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
    """Returns the folder of the sentences of a published set, in sub-words."""
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    described = SETS[name]
    built = name if described.config is None else f"{name}/{described.config}"
    there = prepared_folder(built, data_dir)
    if described.remark and there is None:
        raise UserError(
            f"{described.remark}: put it into {data_dir / built} and run this again."
        )
    target = place(data_dir, name, vocabulary, length)
    rows = _bytes_of_rows(target, described.parts, there)
    if there is not None and rows:
        check_space(name, data_dir, rows, report)
    size = described.built_bytes + rows
    source = built_folder(name, described.config, size, data_dir, None, report)

    def texts(split: str, begin: int, end: int | None, first: int) -> Iterator[str]:
        found = tfds.read_texts_from(source, split, begin + first)
        count = None if end is None else end - begin - first
        for row, text in enumerate(itertools.islice(found, count)):
            yield _decoded(text, f"text {begin + first + row} of {name}/{split}")

    parts: dict[str, Texts] = {
        s: functools.partial(texts, *part) for s, part in described.parts.items()
    }
    return _prepared(target, parts, report)


def _bytes_of_rows(target: Path, parts: dict[str, Part], built: Path | None) -> int:
    """Returns how much is still to be written of a set's sub-words, if that is known.

    `built`: the set of TensorFlow Datasets, which knows how many texts there are.
    """
    from dps_tf.data import tfds

    vocabulary, length = map(int, target.name.split("-")[1:])
    row = (length + 1) * stored_type(vocabulary).itemsize + np.dtype(np.int32).itemsize
    wanted = 0
    for split, (of, begin, end) in parts.items():
        if not has_arrays(target / split):
            ends = [end, None if built is None else tfds.examples(built, of)]
            rows = min((n for n in ends if n is not None), default=begin) - begin
            wanted += max(0, rows * row - stored_bytes(target / split))
    return wanted


def prepare_text_folder(
    data_dir: Path, raw_dir: Path | None, vocabulary: int, length: int, report: Report
) -> Path:
    """Returns the folder of the lines of a user's text files, in sub-words."""
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
    """Removes vocabulary and rows that were made of other files than these."""
    # As bytes: a name may be no UTF-8.
    named = (f"{sha256(path)}  {path.name}" for path in files)
    sums = b"\n".join(map(os.fsencode, named))
    mark = target / "text.sha256"
    if mark.is_file() and mark.read_bytes() != sums:
        report(f"{target} is made anew: the text is another one than before")
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
    """Writes the splits of a set in sub-words; `target` names vocabulary and length."""
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
