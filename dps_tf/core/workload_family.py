"""Workloads whose budget, evaluations or point follow from the batch size, by a rule.

Studies hold plain numbers only, so that a study is the same whether its budget came
from a rule or was written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dps_tf.core.errors import UserError, check_whole
from dps_tf.core.workload import EvaluationInterval, StepsInExamples, Workload

StepsTable = Mapping[int, int]
"""Steps of each batch size."""


def steps_at(name: str, rule: StepsTable | StepsInExamples, batch_size: int) -> int:
    """Returns the steps that a table or a rule in examples has for a batch size.

    UserError where a table has no whole number for it; `name` says of what.
    """
    if isinstance(rule, StepsInExamples):
        return rule.steps_at(batch_size)
    if batch_size not in rule:
        known = ", ".join(str(size) for size in sorted(rule))
        raise UserError(
            f"{name} has nothing for batch size {batch_size}: add it to the table, "
            f"which has {known or 'no entry'}, or bind a number."
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
        batch_size: at which they were tuned.
        exponent: 1 for the linear rule (Goyal et al. 2017), 1/2 for that of the square
            root (Hoffer et al. 2017).
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
        found = {**self.point}
        found["learning_rate"] *= ratio**self.exponent
        if self.warmup_examples:
            # All cells have the same names: without growth there is no step of it.
            grows = ratio > 1
            steps = max(1, self.warmup_examples // batch_size)
            found["warmup_steps"] = float(steps if grows else 0)
            found["warmup_start_factor"] = ratio**-self.exponent if grows else 1.0
        return found


@dataclass(frozen=True)
class WorkloadFamily:
    """A workload for each batch size.

    Attributes:
        template: what all of them share; holds placeholders for what a rule gives.
        step_budget: the rule of the budget, or None where the template's holds.
        evaluation: steps between evaluations, likewise.
        points: the point of each batch size, or None where the template's are run.
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
        found = self.template
        if self.step_budget is not None:
            steps = steps_at("workload.step_budget", self.step_budget, batch_size)
            found = replace(found, step_budget=steps)
        if self.evaluation is not None:
            interval = steps_at("evaluation.steps", self.evaluation, batch_size)
            found = replace(found, evaluation_interval=EvaluationInterval(interval))
        if self.points is not None:
            found = replace(found, explicit_points=(self.points.at(batch_size),))
        return found
