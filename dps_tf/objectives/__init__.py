"""Objectives by name: what is a workload trained for, and judged by?

A factory takes keyword arguments, `workload.objective_arguments`, and returns an
`Objective`. A user's own is registered from a module of hers, as is a metric of her own
that is to stand beside those of an objective.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dps_tf.core.errors import UserError, near_matches
from dps_tf.objectives.classification import (
    softmax_cross_entropy,
    token_cross_entropy,
)
from dps_tf.objectives.multi_label import sigmoid_cross_entropy
from dps_tf.objectives.objective import Metric, Objective, merge, penalty
from dps_tf.objectives.regression import squared_error

__all__ = [
    "Metric",
    "Objective",
    "build",
    "merge",
    "names",
    "penalty",
    "register",
    "register_metric",
]

Factory = Callable[..., Objective]

_OBJECTIVES: dict[str, Factory] = {
    "softmax_cross_entropy": softmax_cross_entropy,
    "token_cross_entropy": token_cross_entropy,
    "sigmoid_cross_entropy": sigmoid_cross_entropy,
    "squared_error": squared_error,
}
_METRICS: dict[str, Callable[[], Metric]] = {}


def names() -> tuple[str, ...]:
    """Returns the names that `build` knows."""
    return tuple(_OBJECTIVES)


def register(name: str, factory: Factory) -> None:
    """Makes `build(name, arguments)` call `factory(**arguments)`.

    Side effect: changes the registry of this process. Registering the same factory
    again changes nothing; another one under a taken name is refused.
    """
    if _OBJECTIVES.setdefault(name, factory) is not factory:
        raise UserError(f"an objective named {name!r} is registered already")


def register_metric(name: str, factory: Callable[[], Metric]) -> None:
    """Lets `workload.objective_arguments` name a metric: `{'metrics': (NAME,)}`.

    Side effect: changes the registry of this process, as `register` does.
    """
    if _METRICS.setdefault(name, factory) is not factory:
        raise UserError(f"a metric named {name!r} is registered already")


def build(
    name: str = "softmax_cross_entropy",
    arguments: Mapping[str, Any] | None = None,
    token_bytes: Sequence[int] | None = None,
) -> Objective:
    """Returns a new objective.

    Args:
        name: of a registered objective.
        arguments: keywords of its factory, and `metrics`: names of registered metrics
            that stand behind its own.
        token_bytes: of the data set, for an objective that takes such an argument.

    Raises:
        UserError: there is no such objective, argument or metric.
    """
    if name not in _OBJECTIVES:
        known = near_matches(name, _OBJECTIVES)
        raise UserError(f"no objective is named {name!r}: {known}.")
    factory, given = _OBJECTIVES[name], dict(arguments or {})
    more = given.pop("metrics", ())
    parameters = inspect.signature(factory).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for argument in given:
        if argument not in parameters and not open_ended:
            known = near_matches(argument, [*parameters, "metrics"])
            raise UserError(
                f"objective {name!r} takes no argument {argument!r}: {known}."
            )
    if token_bytes is not None and "token_bytes" in parameters:
        given.setdefault("token_bytes", token_bytes)
    objective = factory(**given)
    if not more:
        return objective
    return replace(objective, metrics=(*objective.metrics, *map(_metric, more)))


def _metric(name: str) -> Metric:
    if name not in _METRICS:
        raise UserError(f"no metric is named {name!r}: {near_matches(name, _METRICS)}.")
    return _METRICS[name]()
