"""Objectives by name: the loss and the metrics of a workload.

A factory takes keyword arguments, `workload.objective_arguments`, and returns an
`Objective`. A user's module registers further objectives, and metrics to compute in
addition to those of an objective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.core import Registry, arguments_of
from dps_tf.objectives.batch_sums import BatchSums, Progress, dense_gradients
from dps_tf.objectives.losses import (
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    squared_error,
    token_cross_entropy,
)
from dps_tf.objectives.metric import Metric, count, fractions, mean_loss
from dps_tf.objectives.objective import Objective, merge, penalty

__all__ = [
    "METRICS",
    "OBJECTIVES",
    "Metric",
    "Objective",
    "build",
    "count",
    "fractions",
    "mean_loss",
    "merge",
    "penalty",
    "register",
    "register_metric",
]

Factory = Callable[..., Objective]

OBJECTIVES: Registry[Factory] = Registry("objective")
"""The registered objectives. The arguments of a factory are those of
`workload.objective_arguments`."""
METRICS: Registry[Callable[[], Metric]] = Registry("metric")
"""The registered metrics, to be added to those of an objective by
`workload.objective_arguments = {'metrics': (NAME,)}`."""


def register(name: str, factory: Factory) -> None:
    """Makes `build(name, arguments)` call the factory; see `Registry.register`."""
    OBJECTIVES.register(name, factory, arguments_of(factory, 0))


def register_metric(name: str, factory: Callable[[], Metric]) -> None:
    """Registers a metric for `workload.objective_arguments = {'metrics': (NAME,)}`."""
    METRICS.register(name, factory, {})


for _factory in (
    softmax_cross_entropy,
    token_cross_entropy,
    sigmoid_cross_entropy,
    squared_error,
):
    register(_factory.__name__, _factory)


def build(
    name: str = "softmax_cross_entropy",
    arguments: Mapping[str, Any] | None = None,
    token_bytes: Sequence[int] | None = None,
) -> Objective:
    """Returns a new objective.

    Args:
        name: name of a registered objective.
        arguments: keyword arguments of the objective's factory, and `metrics`: names of
            registered metrics to add after those of the objective.
        token_bytes: bytes of each token of the data set, passed to an objective that
            has an argument `token_bytes`.

    Raises:
        UserError: the name, an argument or a metric is unknown.
    """
    given = dict(arguments or {})
    more = given.pop("metrics", ())
    reads = OBJECTIVES.reads(name)
    if token_bytes is not None and reads is not None and "token_bytes" in reads:
        given.setdefault("token_bytes", token_bytes)
    objective = OBJECTIVES[name](**OBJECTIVES.resolve(name, given))
    if not more:
        return objective
    metrics = (*objective.metrics, *(METRICS[metric]() for metric in more))
    return replace(objective, metrics=metrics)
