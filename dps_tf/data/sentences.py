"""Sentences as sub-words: LM1B, C4, and folders of text of the user's own.

`prepare` makes the vocabulary by SentencePiece and writes the sentences as arrays, one
row each, so that starting reads none of them. A network reads the beginning of a
sentence and predicts each sub-word of it and its end.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dps_tf.core.errors import UserError
from dps_tf.data.arrays import Arrays, has_arrays, open_arrays
from dps_tf.data.dataset import Source
from dps_tf.data.prepared import command

PADDING = -1
"""Stands behind the end of a sentence, in labels too: losses leave it out."""
SPLITS = ("train", "validation", "test")


def place(data_dir: Path, name: str, vocabulary: int, length: int) -> Path:
    """Returns the folder of the sentences of a set in sub-words."""
    return data_dir / name / f"sentences-{vocabulary}-{length}"


def sentences(name: str) -> Callable[..., Source]:
    """Returns the loader of a set of sentences that TensorFlow Datasets builds."""

    def load_sentences(
        data_dir: Path | None, vocabulary: int = 32_000, length: int = 64
    ) -> Source:
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
    train = found["train"]
    contents = "/".join(f"{s}:{arrays.content}" for s, arrays in found.items())
    inputs, labels = _shifted(train)
    return Source(
        inputs,
        labels,
        vocabulary,
        max(1, len(inputs) // 10),
        _without_padding,
        given_validation=_given(found.get("validation")),
        given_test=_given(found.get("test")),
        content=hashlib.sha256(contents.encode()).hexdigest(),
        content_of_given=True,
    )


def _shifted(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    return arrays.inputs[:, :-1], arrays.inputs[:, 1:]


def _given(
    arrays: Arrays | None,
) -> Callable[[], tuple[np.ndarray, np.ndarray]] | None:
    return None if arrays is None else functools.partial(_shifted, arrays)


def _without_padding(tokens: np.ndarray) -> np.ndarray:
    """Returns inputs of a network, which knows no padding: its first sub-word instead.

    Nothing that counts comes behind it.
    """
    return np.maximum(tokens, 0).astype(np.int32)
