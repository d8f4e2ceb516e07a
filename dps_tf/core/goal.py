"""When a trial has met its goal: the only comparator of the package."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dps_tf.core.errors import UserError

_COMPARISONS: dict[tuple[str, bool], tuple[str, Callable[[Any, float], Any]]] = {
    ("minimize", True): ("<=", operator.le),
    ("minimize", False): ("<", operator.lt),
    ("maximize", True): (">=", operator.ge),
    ("maximize", False): (">", operator.gt),
}


@dataclass(frozen=True)
class Goal:
    """A threshold on a validation metric.

    Lee et al. 2021 compare inclusively, Shallue et al. 2019 strictly (notebook of the
    public archive); the default is inclusive.

    Attributes:
        metric: `split/metric`, for example `validation/classification_error`.
        threshold: the goal value, in the unit of the metric.
        direction: `minimize` or `maximize`.
        inclusive: whether a value equal to the threshold meets the goal.
    """

    metric: str
    threshold: float
    direction: str = "minimize"
    inclusive: bool = True

    def __post_init__(self) -> None:
        if self.direction not in ("minimize", "maximize"):
            raise UserError(
                f"goal.direction is {self.direction!r}; it must be 'minimize' or "
                "'maximize'."
            )
        if (
            isinstance(self.threshold, bool)
            or not isinstance(self.threshold, (int, float))
            or not math.isfinite(self.threshold)
        ):
            raise UserError(
                f"goal.threshold is {self.threshold!r}; it must be a finite number."
            )
        if not isinstance(self.metric, str) or "/" not in self.metric:
            raise UserError(
                f"goal.metric is {self.metric!r}; it must be written 'split/metric', "
                "for example 'validation/classification_error'."
            )
        if not isinstance(self.inclusive, bool):
            raise UserError(
                f"goal.inclusive is {self.inclusive!r}; it must be True or False."
            )
        object.__setattr__(self, "threshold", float(self.threshold))

    def __str__(self) -> str:
        sign, _ = _COMPARISONS[self.direction, self.inclusive]
        return f"{self.metric} {sign} {self.threshold!r}"

    @overload
    def reaches(self, value: float) -> bool: ...

    @overload
    def reaches(self, value: NDArray[np.float64]) -> NDArray[np.bool_]: ...

    def reaches(self, value: Any) -> Any:
        """Returns whether a value of the metric meets the goal; NaN never does.

        Of an array, returns an array of the same shape.
        """
        _, compare = _COMPARISONS[self.direction, self.inclusive]
        return compare(value, self.threshold)

    def first_reached(self, values: Sequence[float]) -> int | None:
        """Returns the position of the first value that meets the goal, or None."""
        for position, value in enumerate(values):
            if self.reaches(value):
                return position
        return None

    def is_stricter_than(self, other: Goal) -> bool:
        """Returns whether each value that meets this goal meets the other one too.

        Equal goals are stricter than each other. Goals on other metrics or in other
        directions cannot be compared and give False.
        """
        if (self.metric, self.direction) != (other.metric, other.direction):
            return False
        if self.threshold == other.threshold:
            return other.inclusive or not self.inclusive
        return other.reaches(self.threshold)

    def to_json(self) -> dict[str, Any]:
        """Returns the goal as a JSON object, for `from_json`."""
        return {
            "metric": self.metric,
            "threshold": self.threshold,
            "direction": self.direction,
            "inclusive": self.inclusive,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Goal:
        """Returns the goal that `to_json` described."""
        return cls(**value)
