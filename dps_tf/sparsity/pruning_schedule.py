"""The step at which a pruning schedule of tfmot reaches its sparsity.

tfmot counts the first update as step 1 and moves its masks at the steps t with
begin <= t <= end and (t - begin) divisible by the frequency. With its defaults a short
run never prunes at all, so schedules that do not reach their sparsity are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dps_tf.core import FRACTION, POSITIVE, Argument, Pruning, Range, Reads, UserError
from dps_tf.objectives import Progress
from dps_tf.sparsity.methods import (
    AT_LEAST_ONE,
    SparsityMethod,
    register_sparsity_method,
)
from dps_tf.sparsity.request import (
    SPARSITY_METHODS,
    ExampleReader,
    MaskRequest,
    ScoreCache,
    own_arguments,
)


@dataclass(frozen=True)
class Scheduled(SparsityMethod):
    """A method whose masks tfmot moves during training (`dps_tf.sparsity.tfmot`).

    It chooses by magnitude inside each variable, whatever the selection.

    Attributes:
        schedule: name of tfmot's class.
        keyword: name of the argument of this class that takes the sparsity.
        reached_at: (sparsity, arguments) -> the first step that has the sparsity.
    """

    schedule: str
    keyword: str
    reached_at: Callable[[float, Mapping[str, Any]], int]
    reads: Reads
    reader: ExampleReader = field(default_factory=ExampleReader)
    prunes_while_training: ClassVar[bool] = True

    def prune(
        self, request: MaskRequest, cache: ScoreCache | None, progress: Progress | None
    ) -> list[np.ndarray]:
        """Raises UserError: there is no mask at the initial point."""
        raise UserError(
            f"sparsity method {request.method!r} prunes during training and has no "
            "mask at the initial point: train it inside the wrappers of "
            "dps_tf.sparsity.tfmot"
        )

    def check(
        self, name: str, sparsity: float, pruning: Pruning, step_budget: int
    ) -> None:
        """Raises UserError also if the sparsity is not reached in the budget."""
        target(name, sparsity, pruning, step_budget)


@dataclass(frozen=True)
class Target:
    """The sparsity that a scheduled method has to reach, and by which step."""

    name: str
    method: Scheduled
    sparsity: float  # of each prunable variable, at the end
    reached_at: int  # number of updates after which the sparsity holds
    arguments: Mapping[str, Any]  # of the schedule, defaults filled in


def target(name: str, sparsity: float, pruning: Pruning, step_budget: int) -> Target:
    """Returns the target; UserError if the schedule does not reach it in the budget.

    Args:
        name: name of the method.
        sparsity: fraction to remove, in (0, 1).
        pruning: holds the arguments `begin_step`, `end_step` and `frequency`; for
            `tfmot_polynomial` also `initial_sparsity` and `power`.
        step_budget: updates that a trial may make.
    """
    method = SPARSITY_METHODS[name]
    if not isinstance(method, Scheduled):
        raise UserError(f"sparsity method {name!r} has no pruning schedule")
    if not 0 < sparsity < 1:
        raise UserError(f"sparsity {sparsity!r} of {name} is outside of (0, 1)")
    arguments = own_arguments(name, pruning)
    reached_at = method.reached_at(sparsity, arguments)
    if reached_at > step_budget:
        raise UserError(
            f"{name} reaches sparsity {sparsity!r} at step {reached_at}, behind the "
            f"step budget {step_budget}: let it end earlier (begin_step, end_step, "
            "frequency) or raise the budget"
        )
    return Target(name, method, sparsity, reached_at, arguments)


def _constant(sparsity: float, arguments: Mapping[str, Any]) -> int:
    del sparsity
    begin, end = arguments["begin_step"], arguments["end_step"]
    first = begin or arguments["frequency"]
    if 0 <= end < first:
        raise UserError(
            f"tfmot_constant with begin_step {begin}, end_step {end} and frequency "
            f"{arguments['frequency']} never prunes: its first step would be {first}; "
            "to prune once at the first update set all three to 1"
        )
    return first


def _polynomial(sparsity: float, arguments: Mapping[str, Any]) -> int:
    begin, end = arguments["begin_step"], arguments["end_step"]
    frequency = arguments["frequency"]
    if end <= begin:
        raise UserError(
            f"tfmot_polynomial needs an end_step behind begin_step {begin}, not {end}"
        )
    if (end - begin) % frequency:
        raise UserError(
            f"tfmot_polynomial never reaches its sparsity: end_step - begin_step = "
            f"{end - begin} is not a multiple of frequency {frequency}, so its last "
            "update comes before end_step"
        )
    if arguments["initial_sparsity"] > sparsity:
        raise UserError(
            f"initial_sparsity {arguments['initial_sparsity']} of tfmot_polynomial is "
            f"above the sparsity {sparsity!r} of the cell"
        )
    return end


# Defaults of tfmot, in steps as it counts them: the first update is step 1.
_STEPS: Reads = {
    "begin_step": Argument(0, Range(whole=True)),
    "end_step": Argument(-1, Range(low=-1, whole=True)),
    "frequency": Argument(100, AT_LEAST_ONE),
}
register_sparsity_method(
    "tfmot_constant",
    Scheduled("ConstantSparsity", "target_sparsity", _constant, _STEPS),
)
register_sparsity_method(
    "tfmot_polynomial",
    Scheduled(
        "PolynomialDecay",
        "final_sparsity",
        _polynomial,
        {
            **_STEPS,
            "end_step": Argument(range=Range(whole=True)),
            "initial_sparsity": Argument(0.0, FRACTION),
            "power": Argument(3, POSITIVE),
        },
    ),
)
