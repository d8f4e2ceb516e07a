"""What a program trains: builders of the network and optimizer, and the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import tensorflow as tf

from dps_tf import objectives
from dps_tf._keras import keras
from dps_tf.data.dataset import Dataset
from dps_tf.objectives import Objective
from dps_tf.optim import TensorOptimizer


class PruningWrapper(Protocol):
    """A network inside wrappers that move its masks (`sparsity.tfmot`).

    Attributes:
        model: the wrapped network, to be trained.
        weights: its variables in the order of the weights of the plain network.
        state_variables: what else is to be kept for an exact resume.
        reached_at: updates after which it has its sparsity.
    """

    model: keras.Model
    weights: list[tf.Variable]
    state_variables: list[tf.Variable]

    @property
    def reached_at(self) -> int:
        """Updates after which it has its sparsity."""

    def before_step(self, step: tf.Tensor) -> None:
        """Tells the wrappers how many updates have been made; in the graph."""

    def fresh_state(self) -> list[np.ndarray]:
        """Returns what `state_variables` hold before the first step."""

    def check_reached(self, step: int) -> None:
        """Raises UserError unless the network has its sparsity after these updates."""


@dataclass(frozen=True)
class Task:
    """A workload with its names looked up.

    Attributes:
        network: returns a new model; called under the strategy's scope.
        optimizer: returns a new optimizer; called under the strategy's scope.
        dataset: training and validation examples, preprocessed, in memory.
        pruning_wrapper: puts the network inside wrappers that prune it while it trains;
            None trains it as it is.
        objective: loss and metrics.
        loss_metaparameters: those that the objective reads and its points hold.
    """

    network: Callable[[], keras.Model]
    optimizer: Callable[[], TensorOptimizer]
    dataset: Dataset
    loss_metaparameters: tuple[str, ...] = ()
    pruning_wrapper: Callable[[keras.Model], PruningWrapper] | None = None
    objective: Objective = field(default_factory=objectives.build)
