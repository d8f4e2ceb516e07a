"""The frozen specification of a study, and the identity of a study."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from dps_tf.core.cell import DENSE, Cell
from dps_tf.core.errors import UserError, check_keys, check_known, check_whole, is_whole
from dps_tf.core.evaluation_steps import EvaluationSchedule
from dps_tf.core.goal import Goal
from dps_tf.core.race import RaceRule
from dps_tf.core.workload import Workload

RESULTS_VERSION = 2
"""Part of every fingerprint. Raise it whenever a change to the code can change a
number that a study records; a test pins a tiny study's error counts to it."""
VALIDATION = "validation"
TRAIN_LOSS = "train/loss"
"""The mini-batch loss of the last step before an evaluation, as it was trained on."""
FURTHER_SPLITS = ("test", "train")
"""Splits that may be evaluated besides the validation split; of the training split, a
fixed part with as many examples as the validation split has."""
WHEN = ("ends", "always")
"""Times at which a further split is evaluated: when the goal is met and at the last
evaluation of the budget, or with every evaluation of the validation split."""
FLOAT32 = "float32"
"""The precision of imported runs that do not name theirs."""
OPEN: Mapping[str, Any] = {"lanes": 0, "xla": None, "deterministic": None}
"""Fields that may be left to the slot that opens a new study, and how: each with the
value that says so. The record has what the slot decided, and every later start of the
study takes that. These fields change bits and no K* beyond rounding."""
PRECISIONS = (FLOAT32, "mixed_bfloat16")
"""Types in which the network computes; variables, loss and updates are float32."""


def is_further(column: str) -> bool:
    """Returns whether a column of the curves belongs to a further split, such as test.

    >>> is_further("test/accuracy"), is_further("validation/accuracy")
    (True, False)
    """
    return column != TRAIN_LOSS and column.partition("/")[0] in FURTHER_SPLITS


@dataclass(frozen=True)
class Pruning:
    """The options by which a network is pruned at its initial point.

    Attributes:
        prunable: `kernels`, or `kernels_and_biases` as in Lee et al. 2021.
        scope: name of the selection, which decides what stays by the scores: `global`
            ranking, `layer` by layer, `n_of_m` entries of each kernel's inputs, whole
            `filters`, or one of the user's own.
        examples: number of training examples that a score is computed on (in each round
            of an iterative method); 0 is the method's own number.
        arguments: further keywords of the methods. Keywords of a single method may
            stand under its name, and keywords of a selection have to.
    """

    prunable: str = "kernels"
    scope: str = "global"
    examples: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_known("prunable", self.prunable, ("kernels", "kernels_and_biases"))
        check_whole("pruning.examples", self.examples, 0)
        check_keys("pruning.arguments", self.arguments)


@dataclass(frozen=True)
class StudySpecification:
    """Everything that a result of one cell depends on.

    Attributes:
        cell: place in the grid.
        workload: what is trained, and its goal.
        search_mode: `race`, or `exhaustive` for questions about final quality.
        finishers: m, for K_(1) .. K_(m).
        stop_at_goal: whether an exhaustive trial ends at the goal.
        evaluation: `exact`, or `goal` to stop an evaluation once the goal is out of
            reach (curves then hold bounds).
        pruning: how the network is pruned, where the sparsity is above 0.
        precision: type for training and evaluation, one of PRECISIONS. Scores for
            pruning, smoothness and noise scale are always computed in float32: they
            describe the network, and both precisions share them.
        further_splits: splits to evaluate besides the validation split, each with one
            of WHEN; the curves have NaN where a split is not evaluated.
        intra_op_threads: TensorFlow's threads per operation, which change the bits.
        lanes: number of trials that one program advances together; see OPEN for 0. It
            is no power of two above 1: neighbours in a Sobol sequence would share
            lanes.
        xla: whether XLA compiles steps and evaluations; see OPEN for None.
        deterministic: whether TensorFlow's operations are deterministic; without that a
            GPU does not repeat a trial to the bit; see OPEN for None.
        results_version: RESULTS_VERSION of the code.
    """

    cell: Cell
    workload: Workload
    search_mode: str = "race"
    finishers: int = 5
    stop_at_goal: bool = True
    evaluation: str = "exact"
    pruning: Pruning = field(default_factory=Pruning)
    precision: str = FLOAT32
    further_splits: Mapping[str, str] = field(default_factory=dict)
    intra_op_threads: int = 1
    lanes: int = 1
    xla: bool | None = False
    deterministic: bool | None = False
    results_version: int = RESULTS_VERSION

    def __post_init__(self) -> None:
        check_known("search_mode", self.search_mode, ("race", "exhaustive"))
        check_known("evaluation", self.evaluation, ("exact", "goal"))
        _check_precision(self.precision)
        if self.cell.sparsity > 0 and self.cell.sparsity_method == DENSE:
            raise UserError(
                f"sparsity {self.cell.sparsity!r} needs a sparsity method: bind "
                "sweep.sparsity_methods."
            )
        self._check_splits()
        check_whole("finishers", self.finishers)
        self._check_lanes()
        if self.evaluation == "goal" and self.goal.mean_of > 1:
            raise UserError(
                f"the goal is a mean of {self.goal.mean_of} evaluations, and with "
                "evaluation_mode='goal' some of them are only bounds: use 'exact'."
            )
        if self.rule.last_evaluation == 0:
            raise UserError(
                f"step_budget {self.workload.step_budget} of {self.workload.name} ends "
                f"before the first evaluation at step {self.evaluations.interval}: "
                "raise it or evaluate more often."
            )

    def _check_lanes(self) -> None:
        """Raises UserError for a number of lanes that trials would not fill."""
        lanes, points = self.lanes, self.workload.points
        if not is_whole(lanes, 0) or (lanes > 1 and lanes & (lanes - 1) == 0):
            raise UserError(
                f"lanes is {lanes!r}; it must be a whole number and no power of two "
                "above 1, such as 15, and 0 leaves it to the machine."
            )
        most = 1 if self.workload.is_adaptive else points
        if lanes > most:
            raise UserError(
                f"lanes is {lanes}, and {most} trial(s) of {self.workload.name} can go "
                "on together: give no more lanes."
            )

    def _check_splits(self) -> None:
        """Raises UserError for a split that is unknown, or not evaluated in time."""
        for name, when in self.further_splits.items():
            check_known("further split", name, FURTHER_SPLITS)
            check_known(f"time of evaluating {name}", when, WHEN)
        if "test" in self.further_splits and self.workload.test == "none":
            raise UserError(
                f"{self.workload.name} has no test set to evaluate: bind workload.test "
                "to 'given' or 'carved'."
            )
        split = self.goal.metric.partition("/")[0]
        if self.evaluation == "goal" and split != VALIDATION:
            raise UserError(
                "evaluation_mode = 'goal' decides goals on the validation split and "
                f"not on {self.goal.metric}: use evaluation_mode = 'exact'."
            )
        if is_further(self.goal.metric) and self.further_splits.get(split) != "always":
            raise UserError(
                f"the goal is on {self.goal.metric}, and {split} is not evaluated "
                f"always: bind sweep.further_splits to {{{split!r}: 'always'}}."
            )

    def splits_at(
        self, step: int, metrics: Mapping[str, float], is_bound: bool
    ) -> tuple[str, ...]:
        """Returns which further splits belong to an evaluation.

        If a goal is over several evaluations, each one may be the last of them, and
        they belong to each that may.

        Args:
            step: step of the evaluation.
            metrics: metrics of the splits that are evaluated always, if computed.
            is_bound: whether these metrics do not count as meeting the goal.
        """
        if not self.further_splits:
            return ()
        value = metrics.get(self.goal.metric, math.nan)
        ends = step == self.rule.last_evaluation or (
            not is_bound and (self.goal.mean_of > 1 or self.goal.reaches(value))
        )
        return tuple(
            name for name, when in self.further_splits.items() if ends or when != "ends"
        )

    @property
    def goal(self) -> Goal:
        """The goal of the trials."""
        return self.workload.goal

    @functools.cached_property
    def evaluations(self) -> EvaluationSchedule:
        """The schedule of the evaluations of trials in this cell."""
        return self.workload.evaluation_interval.at(self.cell.batch_size)

    @functools.cached_property
    def rule(self) -> RaceRule:
        """The rule that decides the study."""
        workload = self.workload
        feasible = workload.count == "feasible"
        exhaustive = self.search_mode == "exhaustive" or workload.is_adaptive
        return RaceRule(
            points=workload.points,
            finishers=min(self.finishers, workload.points),
            step_budget=workload.step_budget,
            schedule=self.evaluations,
            feasible_only=feasible,
            max_draws=(workload.max_draws or 10 * workload.points) if feasible else 0,
            exhaustive=exhaustive,
            stop_at_goal=self.stop_at_goal or workload.is_adaptive,
        )

    @property
    def settled(self) -> dict[str, Any]:
        """The values of the fields of OPEN that are settled."""
        values = {name: getattr(self, name) for name in OPEN}
        return {name: v for name, v in values.items() if v != OPEN[name]}

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to the slot that opens the study."""
        return len(self.settled) == len(OPEN)

    def settled_by(self, values: Mapping[str, Any]) -> StudySpecification:
        """Returns this study with what it leaves open taken from `values`."""
        left = {n: v for n, v in values.items() if getattr(self, n) == OPEN[n]}
        return replace(self, **left)

    def to_json(self) -> dict[str, Any]:
        """Returns the specification as JSON, for `from_json`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["cell"] = self.cell.to_json()
        values["workload"] = self.workload.to_json()
        values["pruning"] = asdict(self.pruning)
        values["further_splits"] = dict(self.further_splits)
        # Tuples become lists here, so that what is read back compares equal.
        return dict(json.loads(json.dumps(values)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StudySpecification:
        """Returns the specification that `to_json` described."""
        values = dict(value)
        values["cell"] = Cell.from_json(values["cell"])
        values["workload"] = Workload.from_json(values["workload"])
        values["pruning"] = Pruning(**values["pruning"])
        return cls(**values)

    def identity(self) -> dict[str, Any]:
        """Returns the values that two runs of one study share, by dotted name."""
        flat = _flat(self.to_json())
        grows = ["workload.points", "workload.max_draws", "finishers", "workload.goal"]
        if not self.workload.depends_on_budget:
            grows.append("workload.step_budget")
        for key in grows:
            for name in [n for n in flat if n == key or n.startswith(key + ".")]:
                del flat[name]
        flat["goal"] = [self.goal.metric, self.goal.direction]
        return flat

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the identity, hexadecimal."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def refusals(self, stored: StudySpecification) -> list[str]:
        """Returns why this specification cannot continue a stored one, as lines."""
        now, before = self.identity(), stored.identity()
        lines = [
            f"{name}: stored {before.get(name)!r}, now {now.get(name)!r}"
            for name in sorted({*now, *before})
            if now.get(name) != before.get(name)
        ]
        old_rule, rule = stored.rule, self.rule
        for name, old, new in (
            ("points", old_rule.points, rule.points),
            ("finishers", stored.finishers, self.finishers),
            ("step_budget", old_rule.step_budget, rule.step_budget),
            ("max_draws", old_rule.max_draws, rule.max_draws),
        ):
            if new < old:
                lines.append(f"{name}: stored {old}, now {new} (it may only grow)")
        reason = ""
        if self.workload.is_adaptive:
            reason = "the oracle chose points by scores that follow from it"
            old, new = old_rule.step_budget, rule.step_budget
            if rule.last_evaluation > old_rule.last_evaluation:
                lines.append(f"step_budget: stored {old}, now {new} ({reason})")
        elif self.evaluation == "goal":
            reason = "evaluations that stop at it hold bounds for that goal only"
        if reason and self.goal != stored.goal:
            lines.append(f"goal: stored {stored.goal}, now {self.goal} ({reason})")
        elif not self.goal.is_stricter_than(stored.goal):
            lines.append(
                f"goal: stored {stored.goal}, now {self.goal} (it may only become "
                "stricter; `report --goal` answers a looser one)"
            )
        return lines


def _check_precision(precision: str) -> None:
    if precision == "mixed_float16":
        raise UserError(
            "precision 'mixed_float16' is not offered, because its gradients vanish "
            "without a loss scale, which would be one more metaparameter: use "
            "'mixed_bfloat16', which has the range of float32."
        )
    check_known("precision", precision, PRECISIONS)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping) and entry:
            flat.update(_flat(entry, f"{prefix}{name}."))
        else:
            flat[prefix + name] = entry
    return flat
