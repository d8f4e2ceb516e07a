"""Objectives by name: the loss and the metrics of a workload.

A factory takes keyword arguments, `workload.objective_arguments`, and returns an
`Objective`. A user's module registers further objectives, and metrics to compute
besides the objective's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.core import (
    TRAIN_LOSS,
    VALIDATION,
    Registry,
    StudySpecification,
    UserError,
    Workload,
    arguments_of,
    near_matches,
    remembered,
)
from dps_tf.objectives.batch_sums import BatchSums, Progress, dense_gradients
from dps_tf.objectives.losses import (
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    squared_error,
    token_cross_entropy,
)
from dps_tf.objectives.metric import Metric, count, fractions, mean_loss
from dps_tf.objectives.objective import Objective, merge, penalty

Factory = Callable[..., Objective]

OBJECTIVES: Registry[Factory] = Registry("objective")
"""The registered objectives. A factory gets `workload.objective_arguments`."""
METRICS: Registry[Callable[[], Metric]] = Registry("metric")
"""The registered metrics, which an objective gets besides its own by
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
            registered metrics to add after the objective's own.
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
    if not isinstance(objective, Objective):
        raise UserError(
            f"objective {name!r} is a {type(objective).__name__}: its function must "
            "return an Objective."
        )
    if not more:
        return objective
    metrics = (*objective.metrics, *(METRICS[metric]() for metric in more))
    return replace(objective, metrics=metrics)


def build_for(
    workload: Workload, token_bytes: Sequence[int] | None = None
) -> Objective:
    """Returns the objective of a workload, whose passes are traced once for all cells.

    `token_bytes`: bytes of the data set's tokens, for an objective that reads them.
    """
    lengths = None if token_bytes is None else [int(n) for n in token_bytes]
    return _built(workload.objective, workload.objective_arguments, lengths)


_built = remembered(8)(build)
_SOME_TOKEN_BYTES = (1,)
"""Placeholder for the bytes of the tokens before the data set is loaded."""


def check_goal(
    study: StudySpecification,
    token_bytes: Sequence[int] | None = _SOME_TOKEN_BYTES,
    where: str = "",
) -> None:
    """Raises UserError for a goal on a metric that the objective does not have.

    Args:
        study: has the goal and the objective.
        token_bytes: bytes of the data set's tokens; a placeholder before it is loaded.
        where: the data set in the message.
    """
    objective = build_for(study.workload, token_bytes)
    splits = (VALIDATION, *study.further_splits)
    columns = [name for split in splits for name in objective.columns(split)]
    columns.append(TRAIN_LOSS)
    metric = study.goal.metric
    if metric not in columns:
        raise UserError(
            f"goal.metric {metric!r} is no metric of the objective "
            f"{study.workload.objective!r}{where}: {near_matches(metric, columns)}."
        )
    if study.evaluation == "goal":
        objective.bounded_metric(study.goal)
