"""The step at which a pruning schedule of tfmot reaches its sparsity.

tfmot counts the first update as step 1 and moves its masks at the steps t with
begin <= t <= end and (t - begin) divisible by the frequency. With its defaults a short
run never prunes at all: whether it does must not depend on the batch size unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dps_tf.core.errors import UserError
from dps_tf.sparsity import methods


@dataclass(frozen=True)
class Target:
    """What a scheduled method has to arrive at.

    Attributes:
        method: `tfmot_constant` or `tfmot_polynomial`.
        sparsity: of each prunable variable, at the end.
        reached_at: the step (updates made) from which on it holds.
        arguments: of the schedule, defaults filled in.
    """

    method: str
    sparsity: float
    reached_at: int
    arguments: Mapping[str, Any]


def target(
    method: str, sparsity: float, arguments: Mapping[str, Any], step_budget: int
) -> Target:
    """Returns the target; UserError if the schedule does not reach it in the budget.

    Args:
        method: `tfmot_constant` or `tfmot_polynomial`.
        sparsity: fraction to remove, in (0, 1).
        arguments: `begin_step`, `end_step`, `frequency`; for `tfmot_polynomial` also
            `initial_sparsity` and `power`. Defaults are tfmot's; it has none for the
            `end_step` of a polynomial.
        step_budget: updates that a trial may make.
    """
    known = methods.method(method)
    if known.kind != methods.SCHEDULED:
        raise UserError(f"sparsity method {method!r} has no pruning schedule")
    if not 0 < sparsity < 1:
        raise UserError(f"sparsity {sparsity!r} of {method} is outside of (0, 1)")
    resolved = known.resolve(arguments)
    if method == "tfmot_constant":
        reached_at = _constant(resolved)
    else:
        reached_at = _polynomial(sparsity, resolved)
    if reached_at > step_budget:
        raise UserError(
            f"{method} reaches sparsity {sparsity!r} at step {reached_at}, behind the "
            f"step budget {step_budget}: let it end earlier (begin_step, end_step, "
            "frequency) or raise the budget"
        )
    return Target(method, sparsity, reached_at, resolved)


def _constant(arguments: Mapping[str, Any]) -> int:
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
