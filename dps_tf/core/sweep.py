"""The studies of a grid of cells, and the repeats of their best points.

Budgets, evaluations and points may follow from the batch size by a rule. Studies hold
plain numbers only, so that a study is the same whether its budget came from a rule or
was written down.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dps_tf.core.cell import DENSE, Cell, axis_text, check_sparsity, is_axis
from dps_tf.core.errors import (
    UserError,
    check_known,
    check_whole,
    is_number,
    near_matches,
)
from dps_tf.core.seeds import derive_seed
from dps_tf.core.space import Space
from dps_tf.core.study import FURTHER_SPLITS, StudySpecification
from dps_tf.core.workload import (
    QUASI_RANDOM,
    EvaluationInterval,
    StepsInExamples,
    Workload,
)

_NO_AXES = ("name", "optimizer", "goal", "space", "explicit_points")
"""Fields that cannot be axes: they name the cell, or change what it measures."""


@dataclass(frozen=True)
class SweepSpecification:
    """The specification of a sweep: one study per cell, in the order of running.

    Attributes:
        studies: studies of distinct cells.
        repeats: r, number of new seeds with which the best points of each cell are
            trained again once its study is closed; 0 repeats nothing.
        repeated_points: m, number of the best points that are repeated.
        sparsity_methods: methods that the sweep names, also if no cell is sparse.
    """

    studies: tuple[StudySpecification, ...]
    repeats: int = 0
    repeated_points: int = 1
    sparsity_methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [study.cell.name for study in self.studies]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(f"the grid holds {twice[0]} twice: list every value once.")
        if not names:
            raise UserError("the grid is empty: give at least one batch size.")
        check_whole("sweep.repeats", self.repeats, 0)
        check_whole("sweep.repeated_points", self.repeated_points)

    def _max_trials(self, study: StudySpecification) -> int:
        repeated = min(self.repeated_points, study.rule.finishers)
        return study.rule.draws_limit + self.repeats * repeated

    @property
    def max_trials(self) -> int:
        """Largest number of trials that the sweep may start, repeats included."""
        return sum(map(self._max_trials, self.studies))

    @property
    def max_steps(self) -> int:
        """Largest number of steps of the sweep, each trial to the end of its budget."""
        return sum(self._max_trials(s) * s.rule.last_evaluation for s in self.studies)

    @property
    def max_examples(self) -> int:
        """Largest number of examples that the sweep may train on."""
        return sum(
            self._max_trials(s) * s.rule.last_evaluation * s.cell.batch_size
            for s in self.studies
        )


def repeat_study(
    study: StudySpecification, points: Sequence[Mapping[str, float]], repeats: int
) -> StudySpecification:
    """Returns the study that trains points of a cell again under other seeds.

    Its trials are points[0], points[1], ..., points[0], ...: each `repeats` times, and
    each is run until it meets the goal or spends the budget. `points`: the tuned
    metaparameters, best first; NaN where a point has none. All seeds come from the
    `repeated_seed` of the points, so that other points or another number of repeats are
    another study. The order of examples is each trial's own, also where the trials of
    the study share one.
    """
    names = [n for n in study.workload.metaparameters if n not in study.workload.fixed]
    tuned = [
        {n: float(point[n]) for n in names if not math.isnan(point.get(n, math.nan))}
        for point in points
    ] * repeats
    workload = replace(
        study.workload,
        space=Space(()),
        explicit_points=tuple(tuned),
        points=len(tuned),
        count="all",
        max_draws=None,
        oracle=QUASI_RANDOM,
        oracle_arguments={},
        order="per_trial",
    )
    seed = repeated_seed(study.cell.seed, tuned)
    return replace(
        study,
        cell=replace(study.cell, seed=seed),
        workload=workload,
        search_mode="exhaustive",
        finishers=1,
        stop_at_goal=True,
        # Several are too many for few points: the slot decides anew.
        lanes=0 if study.lanes > 1 else study.lanes,
    )


def repeated_seed(seed: int, points: Sequence[Mapping[str, float]]) -> int:
    """Returns the study seed of the repeats of some points of a study.

    >>> repeated_seed(0, [{"learning_rate": 0.1}]) == repeated_seed(1, [])
    False
    """
    text = json.dumps([dict(point) for point in points], sort_keys=True)
    return derive_seed(seed, 0, f"repeats of {text}")


def grid(  # noqa: PLR0913 - each is independent of the others
    workloads: Sequence[Workload | WorkloadFamily],
    batch_sizes: Sequence[int],
    *,
    sparsities: Sequence[float] = (0.0,),
    sparsity_methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    further_splits: Mapping[str, str] | None = None,
    axes: Mapping[str, Any] | None = None,
    **study: Any,
) -> SweepSpecification:
    """Returns the studies of every combination; dense cells once, not once a method.

    Args:
        workloads: one workload for each optimizer, data set and network; a family has a
            workload for each batch size.
        batch_sizes: global batch sizes.
        sparsities: zero fractions of the prunable parameters.
        sparsity_methods: methods for the sparsities above 0.
        seeds: study seeds.
        further_splits: see StudySpecification; by default a workload with a test set
            has that and a part of the training split at the ends, others have none.
        axes: further axes, gin names of values of the workload (or of pruning) with a
            list of values, for example {'workload.network_arguments.width': (16, 32)}.
            Axes of a single workload or optimizer stand under its name.
        study: further fields of every StudySpecification.
    """
    _check_sparsities(sparsities, sparsity_methods)
    _check_owners(axes or {}, workloads)
    cells = [
        (family.at(size), Cell(family.name, family.optimizer, method, seed, size, s))
        for seed in seeds
        for s in sparsities
        for method in ((DENSE,) if s == 0 else sparsity_methods)
        for family in workloads
        for size in batch_sizes
    ]
    studies = (
        StudySpecification(
            cell, workload, further_splits=_splits_of(workload, further_splits), **study
        )
        for workload, cell in cells
    )
    return SweepSpecification(
        tuple(
            _at(plain, values)
            for plain in studies
            for values in _combinations(axes or {}, plain.workload)
        ),
        sparsity_methods=tuple(sparsity_methods),
    )


def _check_sparsities(sparsities: Sequence[float], methods: Sequence[str]) -> None:
    """Raises UserError for a sparsity outside of [0, 1), or without a method."""
    for sparsity in sparsities:
        check_sparsity(sparsity)
    if any(sparsity != 0 for sparsity in sparsities) and not methods:
        raise UserError(
            f"sparsities {tuple(sparsities)} need a method: bind "
            "sweep.sparsity_methods, for example to ('snip',)."
        )


def _splits_of(
    workload: Workload, further_splits: Mapping[str, str] | None
) -> Mapping[str, str]:
    """Returns the splits to evaluate besides the validation split, and when."""
    if further_splits is None and workload.test != "none":
        return dict.fromkeys(FURTHER_SPLITS, "ends")
    return further_splits or {}


def _check_owners(
    axes: Mapping[str, Any], workloads: Sequence[Workload | WorkloadFamily]
) -> None:
    """Raises UserError for an axis that is neither a gin name nor an entry of one."""
    owners = {workload.name for workload in workloads}
    owners |= {workload.optimizer for workload in workloads}
    for name, values in axes.items():
        if not isinstance(values, Mapping) and not is_axis(name):
            raise UserError(
                f"axis {name!r} is no value of a workload or of pruning: write for "
                "example 'workload.network_arguments.width'."
            )
        if isinstance(values, Mapping):
            check_known("workload or optimizer of sweep.axes", name, owners)


def _combinations(
    axes: Mapping[str, Any], workload: Workload
) -> Iterator[dict[str, Any]]:
    """Yields every combination of the values of the axes that a workload has."""
    own: dict[str, Any] = {}
    for name, values in axes.items():
        if not isinstance(values, Mapping):
            own[name] = values
        elif name in (workload.name, workload.optimizer):
            own.update(values)
    for name, values in own.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise UserError(
                f"axis {name!r} is {values!r}; it must be a list of values, for "
                "example [16, 32]."
            )
    for combination in itertools.product(*own.values()):
        yield dict(zip(own, combination, strict=True))


def _at(study: StudySpecification, values: Mapping[str, Any]) -> StudySpecification:
    """Returns a study with the values of some axes, which become axes of its cell."""
    if not values:
        return study
    parts: dict[str, Any] = {"workload": study.workload, "pruning": study.pruning}
    for name, value in values.items():
        part, *path = name.split(".")
        parts[part] = _changed(parts[part], name, path, value)
    axes = tuple((name, axis_text(value)) for name, value in values.items())
    return replace(study, cell=replace(study.cell, axes=axes), **parts)


def _changed(part: Any, axis: str, path: list[str], value: Any) -> Any:
    """Returns a workload or pruning with a new value of a field, or of its entry."""
    name, *key = path
    allowed = [field.name for field in fields(part) if field.name not in _NO_AXES]
    if name not in allowed:
        raise UserError(
            f"axis {axis!r} names no value that can be an axis: "
            f"{near_matches(name, allowed)}."
        )
    mapping = getattr(part, name)
    if isinstance(mapping, Mapping) != bool(key):
        example = f"{name}.width" if isinstance(mapping, Mapping) else name
        raise UserError(
            f"axis {axis!r} does not name a single value: write "
            f"{axis.split('.')[0]}.{example}."
        )
    if name == "fixed":
        if not is_number(value):
            raise UserError(f"axis {axis!r} has the value {value!r}: give numbers.")
        value = float(value)
    return replace(part, **{name: {**mapping, key[0]: value} if key else value})


StepsTable = Mapping[int, int]
"""Steps of each batch size."""


def steps_at(name: str, rule: StepsTable | StepsInExamples, batch_size: int) -> int:
    """Returns the steps that a table or a rule in examples has for a batch size.

    Raises UserError if a table has no whole number for it; `name` is for messages.
    """
    if isinstance(rule, StepsInExamples):
        return rule.steps_at(batch_size)
    if batch_size not in rule:
        sizes = ", ".join(str(size) for size in sorted(rule))
        raise UserError(
            f"{name} has nothing for batch size {batch_size}: add it to the table, "
            f"which has {sizes or 'no entry'}, or bind a number."
        )
    check_whole(f"{name} for batch size {batch_size}", rule[batch_size])
    return rule[batch_size]


@dataclass(frozen=True)
class ScalingRule:
    """One point, tuned at one batch size, that is carried over to the others.

    The learning rate at B is `learning_rate * (B / batch_size) ** exponent`; all other
    metaparameters stay. Nothing is searched: every cell has one trial.

    Attributes:
        point: metaparameters at `batch_size`, a learning rate among them.
        batch_size: batch size at which they were tuned.
        exponent: 1 for the linear rule (Goyal et al. 2017), 1/2 for the square-root
            rule (Hoffer et al. 2017).
        warmup_examples: examples during which the rate grows from that at `batch_size`
            to its own, in equal steps, where the batch is larger (Goyal et al.: five
            epochs); 0 for no warm-up.
    """

    point: Mapping[str, float]
    batch_size: int
    exponent: float
    warmup_examples: int = 0

    def __post_init__(self) -> None:
        if "learning_rate" not in self.point:
            raise UserError(
                f"the scaling rule carries over {sorted(self.point)}: give it the "
                "point that was tuned, with its learning_rate."
            )
        check_whole("the scaling rule's batch_size", self.batch_size)
        check_whole("the scaling rule's warmup_examples", self.warmup_examples, 0)

    def at(self, batch_size: int) -> dict[str, float]:
        """Returns the point of a batch size."""
        ratio = batch_size / self.batch_size
        point = {**self.point}
        point["learning_rate"] *= ratio**self.exponent
        if self.warmup_examples:
            # All cells have the same names: without growth the warm-up has no steps.
            grows = ratio > 1
            steps = max(1, self.warmup_examples // batch_size)
            point["warmup_steps"] = float(steps if grows else 0)
            point["warmup_start_factor"] = ratio**-self.exponent if grows else 1.0
        return point


@dataclass(frozen=True)
class WorkloadFamily:
    """A workload for each batch size.

    Attributes:
        template: workload that all share, with placeholders where a rule applies.
        step_budget: rule of the budget; None keeps the template's.
        evaluation: steps between evaluations by batch size; None likewise.
        points: rule for the point of each batch size; None likewise.
    """

    template: Workload
    step_budget: StepsTable | StepsInExamples | None = None
    evaluation: StepsTable | None = None
    points: ScalingRule | None = None

    @property
    def name(self) -> str:
        """The name of all of its workloads."""
        return self.template.name

    @property
    def optimizer(self) -> str:
        """The optimizer of all of its workloads."""
        return self.template.optimizer

    def at(self, batch_size: int) -> Workload:
        """Returns the workload of a batch size; UserError if a table has none."""
        workload = self.template
        if self.step_budget is not None:
            steps = steps_at("workload.step_budget", self.step_budget, batch_size)
            workload = replace(workload, step_budget=steps)
        if self.evaluation is not None:
            interval = steps_at("evaluation.steps", self.evaluation, batch_size)
            evaluations = EvaluationInterval(interval)
            workload = replace(workload, evaluation_interval=evaluations)
        if self.points is not None:
            points = (self.points.at(batch_size),)
            workload = replace(workload, explicit_points=points)
        return workload
