"""Objectives by name: what is a workload trained for, and judged by?

A factory takes keyword arguments, `workload.objective_arguments`, and returns an
`Objective`. Objectives of a user, and metrics to be computed beside those of an
objective, are registered from a module of the user's.
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
"""The objectives that can be named. The arguments of a factory are those of
`workload.objective_arguments`."""
METRICS: Registry[Callable[[], Metric]] = Registry("metric")
"""The metrics that can be named beside those of an objective, by
`workload.objective_arguments = {'metrics': (NAME,)}`."""


def register(name: str, factory: Factory) -> None:
    """Makes `build(name, arguments)` call the factory; as `Registry.register`."""
    OBJECTIVES.register(name, factory, arguments_of(factory, 0))


def register_metric(name: str, factory: Callable[[], Metric]) -> None:
    """Lets `workload.objective_arguments` name a metric: `{'metrics': (NAME,)}`."""
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
    """Returns a new objective; UserError for an unknown name, argument or metric.

    Args:
        name: of a registered objective.
        arguments: keywords of its factory, and `metrics`: names of registered metrics
            that follow those of the objective.
        token_bytes: of the data set, for an objective that takes such an argument.
    """
    given = dict(arguments or {})
    more = given.pop("metrics", ())
    known = OBJECTIVES.reads(name)
    if token_bytes is not None and known is not None and "token_bytes" in known:
        given.setdefault("token_bytes", token_bytes)
    objective = OBJECTIVES[name](**OBJECTIVES.resolve(name, given))
    if not more:
        return objective
    metrics = (*objective.metrics, *(METRICS[each]() for each in more))
    return replace(objective, metrics=metrics)
