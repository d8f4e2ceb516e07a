"""Sentences as sub-words: LM1B, C4, and folders of text of the user's own.

`prepare` makes the vocabulary by SentencePiece and writes the sentences as arrays, one
row each, so that starting reads none of them; what a stop has left is kept. A network
reads the beginning of a sentence and predicts each sub-word of it and its end.

The vocabulary is made from the first million sentences for training, with three
sub-words of its own: 0 for what it cannot spell, 1 before a sentence, 2 behind it. Text
must be UTF-8. Sub-words behind `length` are cut off; padding fills up shorter ones.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dps_tf.core import UserError
from dps_tf.data.arrays import (
    has_arrays,
    open_arrays,
    verify_arrays,
    write_arrays,
)
from dps_tf.data.dataset import Source
from dps_tf.data.prepared import Report, built_folder, command, prepared_folder
from dps_tf.data.raw import sha256

PADDING = -1
"""Stands behind the end of a sentence, in labels too: losses leave it out."""
SPLITS = ("train", "validation", "test")
_FOR_VOCABULARY = 1_000_000  # sentences
_BATCH = 10_000  # sentences; after a stop, at most so many are cut up again
_UNKNOWN, _BEGIN, _END = 0, 1, 2
_MODEL = "vocabulary.model"

Texts = Callable[[int], Iterator[str]]
"""Gives the sentences of a split from a number on."""


def place(data_dir: Path, name: str, vocabulary: int, length: int) -> Path:
    """Returns the folder of the sentences of a set in sub-words."""
    return data_dir / name / f"sentences-{vocabulary}-{length}"


def sentences(name: str) -> Callable[..., Source]:
    """Returns the loader of a set of sentences that TensorFlow Datasets builds."""

    def load_sentences(
        data_dir: Path | None, vocabulary: int = 32_000, length: int = 64
    ) -> Source:
        """Returns sentences as pieces of a vocabulary, int32 [n, length]."""
        return _source(data_dir, name, vocabulary, length)

    return load_sentences


def text_folder(
    data_dir: Path | None, folder: str, vocabulary: int = 8_000, length: int = 64
) -> Source:
    """Returns the lines of a user's text files, each a sentence.

    `folder`: the NAME that `prepare --dataset=text_folder --raw_dir=.../NAME` read.
    A tenth is for validation unless a workload asks for another number.
    """
    return _source(data_dir, f"text_folder/{folder}", vocabulary, length)


def _source(data_dir: Path | None, name: str, vocabulary: int, length: int) -> Source:
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
        given_validation=pairs.get("validation"),
        given_test=pairs.get("test"),
        content=hashlib.sha256(contents.encode()).hexdigest(),
        content_of_given=True,
    )


def _without_padding(tokens: np.ndarray) -> np.ndarray:
    """Returns inputs of a network: the first sub-word where there is padding."""
    return np.maximum(tokens, 0).astype(np.int32)


@dataclass(frozen=True)
class SentenceSet:
    """A set of texts that TensorFlow Datasets builds.

    Attributes:
        name: in TensorFlow Datasets.
        config: which of its versions, or None.
        parts: for each split, TFDS's split with first and last text.
        built_bytes: size on disk when built, 0 where it is not known.
        remark: what has to be known before it can be built.
    """

    name: str
    config: str | None
    parts: dict[str, tuple[str, int, int]]
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
        {"train": ("train", 0, 30_301_028), "validation": ("validation", 0, 6_075)},
        0,
        "TensorFlow Datasets builds c4/en with Apache Beam on a cluster; a built copy "
        "(format array_record or tfrecord) can be fetched from the bucket that its "
        "page names",
    ),
}


def prepare_sentences(
    name: str, data_dir: Path, vocabulary: int, length: int, report: Report
) -> Path:
    """Returns the folder of the sentences of a published set, in sub-words."""
    from dps_tf.data import tfds  # imports TensorFlow Datasets, seconds

    described = SETS[name]
    built = name if described.config is None else f"{name}/{described.config}"
    if described.remark and prepared_folder(built, data_dir) is None:
        raise UserError(
            f"{described.remark}: put it into {data_dir / built} and run this again."
        )
    size = described.built_bytes
    source = built_folder(name, described.config, size, data_dir, None, report)

    def texts(split: str, begin: int, end: int, first: int) -> Iterator[str]:
        found = tfds.read_texts_from(source, split, begin + first)
        for row, text in enumerate(itertools.islice(found, end - begin - first)):
            yield _decoded(text, f"text {begin + first + row} of {name}/{split}")

    parts: dict[str, Texts] = {
        s: functools.partial(texts, *part) for s, part in described.parts.items()
    }
    return _prepared(place(data_dir, name, vocabulary, length), parts, report)


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
    sums = "\n".join(f"{sha256(path)}  {path.name}" for path in files)
    mark = target / "text.sha256"
    if mark.is_file() and mark.read_text() != sums:
        report(f"{target} is made anew: the text is another one than before")
        shutil.rmtree(target)
    if not (target / _MODEL).is_file():
        target.mkdir(parents=True, exist_ok=True)
        mark.write_text(sums)


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
    kept = (target / _MODEL).is_file() or any(has_arrays(target / s) for s in parts)
    try:
        return _written(target, parts, int(vocabulary), int(length), report)
    except UserError:
        if not kept:
            shutil.rmtree(target, ignore_errors=True)
        raise


def _written(
    target: Path, parts: dict[str, Texts], vocabulary: int, length: int, report: Report
) -> Path:
    model = _vocabulary(target, vocabulary, parts["train"], report)
    for split, texts in parts.items():
        folder = target / split
        if has_arrays(folder):
            verify_arrays(folder)
            continue
        facts = {"vocabulary": hashlib.sha256(model).hexdigest(), "split": split}
        rows = functools.partial(_rows, model, texts, length, split, report)
        write_arrays(folder, rows, facts)
    report(f"{target.parent.name} is prepared in {target}")
    return target


def _rows(  # noqa: PLR0913 - what is written, and how
    model: bytes, texts: Texts, length: int, split: str, report: Report, first: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields sub-words [n, length + 1] of sentences, and how many of them count."""
    processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
    kind = np.int16 if processor.vocab_size() <= np.iinfo(np.int16).max else np.int32
    remaining, done = texts(first), first
    while batch := list(itertools.islice(remaining, _BATCH)):
        rows = np.full((len(batch), length + 1), PADDING, kind)
        counts = np.empty(len(batch), np.int32)
        for row, tokens in enumerate(processor.encode(batch)):
            whole = [_BEGIN, *tokens, _END][: length + 1]
            rows[row, : len(whole)] = whole
            counts[row] = len(whole) - 1
        done += len(batch)
        report(f"{split}: {done:,} sentences in sub-words")
        yield rows, counts


def _vocabulary(folder: Path, size: int, texts: Texts, report: Report) -> bytes:
    """Returns the vocabulary of a folder, which is made from texts if it is missing."""
    path = folder / _MODEL
    if path.is_file():
        return _checked_vocabulary(path, size)
    report(f"making a vocabulary of {size:,} sub-words")
    made = _made_vocabulary(size, texts)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{_MODEL}"
    partial.write_bytes(made)
    partial.replace(path)
    return made


def _made_vocabulary(size: int, texts: Texts) -> bytes:
    written = io.BytesIO()
    unusable: list[UserError] = []

    def usable() -> Iterator[str]:
        # What an iterator raises reaches SentencePiece, which garbles it.
        try:
            yield from itertools.islice(texts(0), _FOR_VOCABULARY)
        except UserError as error:
            unusable.append(error)

    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=usable(),
            model_writer=written,
            vocab_size=size,
            model_type="unigram",
            unk_id=_UNKNOWN,
            bos_id=_BEGIN,
            eos_id=_END,
            pad_id=-1,
            character_coverage=1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        if not unusable:
            reason = str(error).splitlines()[-1][-200:]
            raise UserError(
                f"no vocabulary of {size:,} sub-words can be made from this text "
                f"({reason}): choose another --vocabulary."
            ) from error
    if unusable:
        raise unusable[0]
    return written.getvalue()


def _checked_vocabulary(path: Path, size: int) -> bytes:
    model = path.read_bytes()
    try:
        found = _sentencepiece().SentencePieceProcessor(model_proto=model).vocab_size()
    except RuntimeError as error:
        raise UserError(
            f"{path} is no vocabulary of SentencePiece: remove it and prepare the set "
            "again."
        ) from error
    if found != size:
        raise UserError(
            f"{path} has {found:,} sub-words and not {size:,}: remove it, or ask for "
            f"--vocabulary={found}."
        )
    return model


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError(
            "sentences are cut into sub-words by the package sentencepiece, which is "
            "not installed: pip install 'dps_tf[text]'."
        ) from error
    return sentencepiece
