"""Text as sub-words: vocabularies made by SentencePiece, and rows of arrays.

A vocabulary is made from the first million texts, or the first of them that have two
hundred million characters together. Three sub-words are special: 0 for what cannot be
spelled, 1 before a text, 2 after it. A row holds the beginning of a text; padding fills
rows of shorter texts.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dps_tf.core import UserError
from dps_tf.data.prepared import Report

PADDING = -1
"""Fills a row after the end of a sentence, in labels too: losses leave it out."""
MODEL = "vocabulary.model"
_FOR_VOCABULARY = 1_000_000  # sentences
_MOST_CHARACTERS = 200_000_000  # in all; SentencePiece takes some 20 bytes for each
_BATCH = 10_000  # sentences; an interruption repeats the work for at most so many
_CHARACTERS = 8  # read at first for each sub-word that is kept, about twice as needed
_UNKNOWN, _BEGIN, _END = 0, 1, 2

Texts = Callable[[int], Iterator[str]]
"""A function of n that returns the sentences of a split without the first n."""


def sub_words(  # noqa: PLR0913 - what is written, and how
    model: bytes, texts: Texts, length: int, split: str, report: Report, first: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows of sub-words [n, length + 1] and the number of labels in each [n].

    `model`: the vocabulary; `first`: number of the first sentence to be written.
    """
    processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
    kind = stored_type(processor.vocab_size())
    sentences, done = texts(first), first
    while batch := list(itertools.islice(sentences, _BATCH)):
        rows = np.full((len(batch), length + 1), PADDING, kind)
        counts = np.empty(len(batch), np.int32)
        for row, tokens in enumerate(_beginnings(processor, batch, length)):
            whole = [_BEGIN, *tokens, _END][: length + 1]
            rows[row, : len(whole)] = whole
            counts[row] = len(whole) - 1
        done += len(batch)
        report(f"{split}: {done:,} sentences in sub-words")
        yield rows, counts


def stored_type(vocabulary: int) -> np.dtype:
    """Returns int16 if it holds every sub-word and the padding, otherwise int32."""
    return np.dtype(np.int16 if vocabulary <= np.iinfo(np.int16).max else np.int32)


def _beginnings(processor: Any, texts: list[str], length: int) -> list[list[int]]:
    """Returns at least the first `length` sub-words of each text, if it has so many.

    A space occurs only at the beginning of a sub-word, so the sub-words before a space
    do not depend on the text after it. The end of a long document need not be encoded.
    """
    ends = [text.find(" ", length * _CHARACTERS) for text in texts]
    parts = [t if end < 0 else t[:end] for t, end in zip(texts, ends, strict=True)]
    encoded = processor.encode(parts)
    for row, tokens in enumerate(encoded):
        if len(tokens) < length and ends[row] >= 0:
            encoded[row] = processor.encode(texts[row])
    return encoded


def vocabulary_of(folder: Path, size: int, texts: Texts, report: Report) -> bytes:
    """Returns the vocabulary in `folder`; makes it from texts if it is missing."""
    path = folder / MODEL
    if path.is_file():
        return _checked(path, size)
    report(f"making a vocabulary of {size:,} sub-words")
    made = _made(size, texts)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{MODEL}"
    partial.write_bytes(made)
    partial.replace(path)
    return made


def _made(size: int, texts: Texts) -> bytes:
    written = io.BytesIO()
    unusable: list[UserError] = []

    def usable() -> Iterator[str]:
        # SentencePiece would garble an exception of its iterator, so it is kept here.
        read = 0
        try:
            for text in itertools.islice(texts(0), _FOR_VOCABULARY):
                yield text
                read += len(text)
                if read >= _MOST_CHARACTERS:
                    return
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


def _checked(path: Path, size: int) -> bytes:
    model = path.read_bytes()
    try:
        stored = _sentencepiece().SentencePieceProcessor(model_proto=model).vocab_size()
    except RuntimeError as error:
        raise UserError(
            f"{path} is no vocabulary of SentencePiece: remove it and prepare the set "
            "again."
        ) from error
    if stored != size:
        raise UserError(
            f"{path} has {stored:,} sub-words and not {size:,}: remove it, or ask for "
            f"--vocabulary={stored}."
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
