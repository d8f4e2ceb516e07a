"""What a program trains: builders of the network and optimizer, and the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dps_tf._keras import keras
from dps_tf.data.dataset import Dataset
from dps_tf.optim import TensorOptimizer

LOSS_METAPARAMETERS = ("label_smoothing",)
"""Metaparameters that the loss reads; all others belong to the optimizer."""


@dataclass(frozen=True)
class Task:
    """A workload with its names looked up.

    Attributes:
        network: returns a new model; called under the strategy's scope.
        optimizer: returns a new optimizer; called under the strategy's scope.
        dataset: training and validation examples, preprocessed, in memory.
        loss_metaparameters: those of LOSS_METAPARAMETERS that its points hold.
    """

    network: Callable[[], keras.Model]
    optimizer: Callable[[], TensorOptimizer]
    dataset: Dataset
    loss_metaparameters: tuple[str, ...] = ()


def split_point(
    point: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns (what the loss reads, what the optimizer reads) of a point."""
    loss = {k: v for k, v in point.items() if k in LOSS_METAPARAMETERS}
    return loss, {k: v for k, v in point.items() if k not in loss}
