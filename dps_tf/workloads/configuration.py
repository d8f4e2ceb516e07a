"""The functions that a gin file configures: the sweep and its parts.

`sweep` is the root; all others make parts of a sweep. Gin accepts values of any type,
so the classes of `core` check every value after parsing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from typing import Any

import gin

from dps_tf.core import (
    EvaluationInterval,
    Goal,
    Pruning,
    ScalingRule,
    Space,
    StepsInExamples,
    StepsTable,
    SweepSpecification,
    UserError,
    Workload,
    WorkloadFamily,
    check_known,
    grid,
    is_number,
)

_VARYING = (Mapping, StepsInExamples)
"""Types of a budget that depends on the batch size."""


@gin.register
def goal(
    metric: str = "validation/classification_error",
    threshold: float = gin.REQUIRED,
    direction: str = "",
    inclusive: bool = True,
    in_a_row: int = 1,
    mean_of: int = 1,
) -> Goal:
    """Returns the goal of a trial; see `core.goal.Goal`."""
    return Goal(metric, threshold, direction, inclusive, in_a_row, mean_of)


@gin.register
def evaluation(
    steps: int | StepsTable | None = None,
    examples: int | None = None,
    minimum: int = 1,
    maximum: int | None = None,
) -> EvaluationInterval | StepsTable:
    """Returns the interval of evaluations; see `core.workload.EvaluationInterval`.

    Args:
        steps: steps between evaluations, or a table of them, `{batch size: steps}`.
        examples: training examples between evaluations, instead of `steps`.
        minimum: fewest steps, with `examples`.
        maximum: most steps, with `examples`.
    """
    if isinstance(steps, Mapping):
        if (examples, minimum, maximum) != (None, 1, None):
            raise UserError(
                "evaluation.steps is a table, and examples, minimum or maximum is "
                "bound too: leave these out."
            )
        return steps
    return EvaluationInterval(steps, examples, minimum, maximum)


@gin.register
def step_budget(
    examples: int = gin.REQUIRED, minimum: int = 1, maximum: int | None = None
) -> StepsInExamples:
    """Returns a budget in examples, divided by the batch size and kept within ends."""
    return StepsInExamples(None, examples, minimum, maximum)


@gin.register
def scaling_rule(
    point: Mapping[str, float] = gin.REQUIRED,
    batch_size: int = gin.REQUIRED,
    exponent: float = gin.REQUIRED,
    warmup_examples: int = 0,
) -> ScalingRule:
    """Returns the rule for points of batch sizes; see `core.sweep.ScalingRule`."""
    return ScalingRule(_point(point), batch_size, exponent, warmup_examples)


@gin.register
def pruning(
    prunable: str = "kernels",
    scope: str = "global",
    examples: int = 0,
    arguments: Mapping[str, Any] | None = None,
) -> Pruning:
    """Returns the options of pruning; see `core.study.Pruning`."""
    return Pruning(prunable, scope, examples, dict(arguments or {}))


@gin.register
def workload(
    goal: Goal = gin.REQUIRED,
    evaluation: EvaluationInterval | StepsTable = gin.REQUIRED,
    space: Mapping[str, Any] | str | None = None,
    points: int | Sequence[Mapping[str, float]] | ScalingRule = 100,
    step_budget: int | StepsTable | StepsInExamples = gin.REQUIRED,
    fixed: Mapping[str, float] | None = None,
    **further: Any,
) -> Workload | WorkloadFamily:
    """Returns a data set, network and optimizer with goal, space and budget.

    Args:
        goal: goal of a trial, `@goal()`.
        evaluation: interval of evaluations, `@evaluation()`.
        space: tuned metaparameters, `{name: (scale, low, high)}`, or `'default'` for
            the optimizer's own (`optim.default_space`) without the fixed ones.
        points: number of trials to draw from the space, or a list of points to run
            instead of a search, or `@scaling_rule()`, one point for each batch size.
        step_budget: steps that a trial may run: a number, a table `{batch size: steps}`
            or `@step_budget()` in examples.
        fixed: metaparameters that are set and not tuned.
        further: every other field of `core.workload.Workload`.
    """
    _of_type("workload.goal", goal, Goal, "@goal()")
    interval, per_size = _interval(evaluation)
    rule = points if isinstance(points, ScalingRule) else None
    number, explicit = _points(
        [points.at(points.batch_size)] if isinstance(points, ScalingRule) else points
    )
    if not explicit and not space:
        raise UserError(
            "the workload has neither a space to search nor explicit points: bind "
            "workload.space, or a list to workload.points."
        )
    _check_fields(further)
    if isinstance(space, str):
        space = _named_space(space, str(further["optimizer"]), fixed or {})
    budgets = step_budget if isinstance(step_budget, _VARYING) else None
    template = Workload(
        goal=goal,
        space=Space.from_dict(space or {}),
        points=number,
        explicit_points=explicit,
        evaluation_interval=interval,
        step_budget=1 if isinstance(step_budget, _VARYING) else step_budget,
        fixed=_point(fixed or {}),
        **further,
    )
    if budgets is None and per_size is None and rule is None:
        return template
    return WorkloadFamily(template, budgets, per_size, rule)


def _interval(evaluation: Any) -> tuple[EvaluationInterval, StepsTable | None]:
    """Returns the interval of a workload, and the table of intervals, or None."""
    if isinstance(evaluation, Mapping):
        return EvaluationInterval(1), evaluation
    _of_type("workload.evaluation", evaluation, EvaluationInterval, "@evaluation()")
    return evaluation, None


def _named_space(
    name: str, optimizer: str, fixed: Mapping[str, float]
) -> Mapping[str, Any]:
    """Returns the default space of an optimizer without the fixed metaparameters."""
    from dps_tf import optim  # imports TensorFlow, seconds

    if name != "default":
        raise UserError(
            f"workload.space is {name!r}; it must be a dictionary such as "
            "{'learning_rate': ('log', 1e-4, 1.0)}, or 'default'."
        )
    space = optim.default_space(optimizer)
    return {name: entry for name, entry in space.items() if name not in fixed}


def check_field(name: str) -> None:
    """Raises UserError unless a workload has a value of this name."""
    own = inspect.signature(workload).parameters
    allowed = {*own, *_further_fields()} - {"further"}
    check_known("parameter of workload", name, allowed)


def _further_fields() -> dict[str, Field[Any]]:
    """Returns the fields of a workload that gin files bind unchanged, by name."""
    made = {*inspect.signature(workload).parameters, "explicit_points"}
    made.add("evaluation_interval")
    return {field.name: field for field in fields(Workload) if field.name not in made}


def _check_fields(further: Mapping[str, Any]) -> None:
    """Raises UserError for names that no workload has, and for missing names."""
    for name in further:
        check_field(name)
    for name, field in _further_fields().items():
        has_default = (field.default, field.default_factory) != (MISSING, MISSING)
        if name not in further and not has_default:
            raise UserError(f"workload.{name} is missing: bind it in the gin file.")


@gin.register
def sweep(  # noqa: PLR0913 - keywords are what a gin file binds
    workloads: Workload | WorkloadFamily | Sequence[Any] = gin.REQUIRED,
    batch_sizes: Sequence[int] = gin.REQUIRED,
    sparsities: Sequence[float] = (0.0,),
    sparsity_methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    pruning: Pruning | None = None,
    search_mode: str = "race",
    finishers: int = 5,
    stop_at_goal: bool = True,
    evaluation_mode: str = "exact",
    further_splits: Mapping[str, str] | None = None,
    precision: str = "float32",
    axes: Mapping[str, Any] | None = None,
    repeats: int = 0,
    repeated_points: int = 1,
) -> SweepSpecification:
    """Returns the studies of the grid; see `core.sweep.grid`.

    Args:
        workloads: one workload, or a list with one for each optimizer.
        batch_sizes: global batch sizes.
        sparsities: zero fractions of the prunable parameters, in [0, 1).
        sparsity_methods: names of the methods for the sparsities above 0.
        seeds: study seeds; each repeats every study from other draws.
        pruning: options of pruning, `@pruning()`.
        search_mode: `race`, or `exhaustive` for questions about final quality.
        finishers: m; K_(1) to K_(m) are exact.
        stop_at_goal: whether a trial of an exhaustive study ends at the goal.
        evaluation_mode: `exact`, or `goal` to stop an evaluation once the goal is out
            of reach (curves then hold bounds).
        further_splits: splits to evaluate besides the validation split, and when, for
            example `{'test': 'always'}`.
        precision: type in which networks compute, `float32` or `mixed_bfloat16`.
        axes: gin names of further axes, each with its values.
        repeats: number of new seeds with which the best points of each cell are trained
            again once its study is closed.
        repeated_points: number of the best points that are repeated.
    """
    alone = isinstance(workloads, (Workload, WorkloadFamily))
    listed = _sequence("sweep.workloads", [workloads] if alone else workloads)
    for entry in listed:
        _of_type("sweep.workloads", entry, (Workload, WorkloadFamily), "@workload()")
    _of_type("sweep.pruning", pruning, Pruning | None, "@pruning()")
    cells = grid(
        listed,
        _sequence("sweep.batch_sizes", batch_sizes),
        sparsities=_sequence("sweep.sparsities", sparsities),
        sparsity_methods=_sequence("sweep.sparsity_methods", sparsity_methods),
        seeds=_sequence("sweep.seeds", seeds),
        pruning=pruning or Pruning(),
        search_mode=search_mode,
        finishers=finishers,
        stop_at_goal=stop_at_goal,
        evaluation=evaluation_mode,
        further_splits=_mapping("sweep.further_splits", further_splits),
        precision=precision,
        axes=_axes(axes or {}),
    )
    return replace(cells, repeats=repeats, repeated_points=repeated_points)


def _axes(axes: Any) -> Mapping[str, Any]:
    if isinstance(axes, Mapping) and all(isinstance(name, str) for name in axes):
        return axes
    raise UserError(
        f"sweep.axes is {axes!r}; it must be a dictionary such as "
        "{'workload.network_arguments.width': (16, 32)}."
    )


def _points(
    points: int | Sequence[Mapping[str, float]],
) -> tuple[int, tuple[Mapping[str, float], ...]]:
    """Returns (number of trials, explicit points) of a bound value."""
    if isinstance(points, int):
        return points, ()
    if not isinstance(points, (list, tuple)):
        raise UserError(
            f"workload.points is {points!r}; it must be a whole number, or a list of "
            "points such as [{'learning_rate': 0.1}]."
        )
    explicit = tuple(map(_point, points))
    return len(explicit), explicit


def _of_type(kind: str, value: object, wanted: Any, example: str) -> None:
    if not isinstance(value, wanted):
        raise UserError(f"{kind} is {value!r}; bind it to {example}.")


def _mapping(kind: str, value: Any) -> dict[str, str] | None:
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(value)
    raise UserError(f"{kind} is {value!r}; it must be like {{'test': 'always'}}.")


def _sequence(kind: str, value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    raise UserError(f"{kind} is {value!r}; it must be a list, for example [1, 2].")


def _point(point: Any) -> dict[str, float]:
    if not isinstance(point, Mapping) or not all(map(is_number, point.values())):
        raise UserError(
            f"{point!r} is no point: write metaparameters as {{'learning_rate': 0.1}}."
        )
    return {str(name): float(value) for name, value in point.items()}
