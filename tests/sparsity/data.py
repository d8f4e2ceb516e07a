"""Small data for the tests of scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TrainingExamples:
    inputs: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class TrainingOnly:
    """A data set without validation examples: whoever reads them fails."""

    train: TrainingExamples
    classes: int
    content_hash: str = "tiny"


def gaussian(shape: tuple[int, ...], examples: int, classes: int, seed: int = 0) -> Any:
    """Returns standard normal inputs with labels that take turns."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(examples, *shape)).astype(np.float32)
    labels = (np.arange(examples) % classes).astype(np.int32)
    return TrainingOnly(TrainingExamples(inputs, labels), classes, f"gaussian {seed}")


def ones_like(arrays: Iterable[Any]) -> list[np.ndarray]:
    """Returns masks that keep everything."""
    return [np.ones(np.shape(array), np.float32) for array in arrays]
