"""The goal of trials: the only place where metrics meet a threshold."""

from __future__ import annotations

import difflib
import functools
import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dps_tf.core.errors import UserError, check_whole, is_number

_LEAST_SINGLE, _MOST_SINGLE = (
    float(number) for number in (np.finfo(np.float32).tiny, np.finfo(np.float32).max)
)
_SINGLE_UNIT = float(np.finfo(np.float32).eps)
_COMPARISONS: dict[tuple[str, bool], tuple[str, Callable[[Any, float], Any]]] = {
    ("minimize", True): ("<=", operator.le),
    ("minimize", False): ("<", operator.lt),
    ("maximize", True): (">=", operator.ge),
    ("maximize", False): (">", operator.gt),
}
_NAMES = (
    ("maximize", 1.0, "acc|accuracy|precision|recall|f1|f1_score|auc|auroc|dice|ssim"),
    ("maximize", 1.0, "iou|miou|r2|r_squared"),
    ("maximize", math.inf, "bleu|psnr"),
    ("minimize", 1.0, r"classification_error|top_?\d+_error"),
    ("minimize", math.inf, "loss|error|error_rate|mse|rmse|mae|wer|cer|nll"),
    ("minimize", math.inf, "cross_?entropy|perplexity|ppl"),
    ("minimize", math.inf, "bits_per_(byte|char|character|dim|pixel|token|word)"),
)
"""Direction, largest value, and the words at the end of a metric's name that tell."""
_USUAL = ("classification_error", "cross_entropy", "accuracy", "mean_squared_error")
_BEFORE = "|".join(
    (
        "train|training|val|valid|validation|dev|test|eval|evaluation|held_?out|logged",
        "metric|metrics|epoch|step|batch|final|last|best|worst|main|overall|total",
        "mean|avg|average|median|macro|micro|weighted|balanced|running|smoothed|ema",
        "classification|regression|reconstruction|categorical|sparse|binary|class|label",
        "digit|token|word|character|char|phoneme|sentence|sequence|image|pixel|per",
        "squared|absolute|root|log|logarithmic|percentage|relative|normalized",
        r"huber|hinge|focal|ctc|mlm|lm|l1|l2|top_?(\d+|k)",
    )
)
"""Words before them that turn no direction. Of any other name the direction is asked:
nobody can list what a name may do to a metric, as `1-acc` and `gap_to_loss` do."""


@functools.cache
def _told_by(metric: str) -> tuple[str, float]:
    """Returns the direction that the name of a metric tells, or "", and its maximum."""
    # One separator at a time: a second one may be a sign.
    name = re.sub("[/. -]", "_", metric.lower().replace("@", "_at_"))
    plain = name.removesuffix("_percent")
    for direction, most, words in _NAMES:
        if re.fullmatch(rf"(({_BEFORE})_)*({words})(_at_(\d+|k))?", plain):
            return direction, most if plain == name else math.inf
    return "", math.inf


def direction_of(metric: str, given: str = "", stated: str = "") -> str:
    """Returns in which direction a metric gets better: `minimize` or `maximize`.

    Args:
        metric: name of the metric, with or without a split.
        given: direction that the user gives, or "".
        stated: direction that the source of the metric states, or "".

    Raises:
        UserError: the source states another direction than the user or the name, unless
            these two agree; or nobody states one and the name does not tell.

    >>> direction_of("test/top_5_accuracy"), direction_of("validation/loss")
    ('maximize', 'minimize')
    >>> direction_of("validation/score", stated="maximize")
    'maximize'
    """
    told = _told_by(metric)[0]
    if stated and not given and told not in ("", stated):
        raise UserError(
            f"the source states to {stated}, and by its name {metric} is to "
            f"{told}: give the direction that its values have."
        )
    if given and stated and given not in (stated, told):
        raise UserError(
            f"the direction of {metric} is given as {given!r}, and its source states "
            f"{stated!r}: leave the direction out, or correct it."
        )
    direction = given or stated or told
    if not direction:
        split, slash, name = metric.rpartition("/")
        near = difflib.get_close_matches(name, _USUAL, n=1, cutoff=0.85)
        meant = f" (did you mean {split + slash + near[0]!r}?)" if near else ""
        raise UserError(
            f"the direction of a goal on {metric} is missing, and the name does not "
            "tell whether larger is better: give direction 'minimize' or 'maximize'"
            f"{meant}."
        )
    return direction


@dataclass(frozen=True)
class Goal:
    """A threshold on a validation metric.

    Lee et al. 2021 compare inclusively, Shallue et al. 2019 strictly (notebook of the
    public archive); the default is inclusive.

    Attributes:
        metric: `split/metric`, for example `validation/classification_error`.
        threshold: the goal value, in the unit of the metric.
        direction: `minimize` or `maximize`; by default what the name of the metric
            tells, as accuracy, error and loss do. Other names need it.
        inclusive: whether a value equal to the threshold meets the goal.
        in_a_row: number of successive evaluations that have to meet the threshold; the
            goal is met at the last of them.
        mean_of: number of evaluations whose running mean has to meet the threshold; the
            goal is met at the last of them. A mean that differs from the threshold by
            rounding alone is equal to it. At most one of these two is above 1: they
            guard against a single lucky evaluation of a curve that goes up and down.

    Raises:
        UserError: a value is not allowed, the direction is missing, or the threshold of
            a share, such as an accuracy, is above 1.

    >>> Goal("validation/accuracy", 0.9).is_met([0.85, 0.91])
    True
    """

    metric: str
    threshold: float
    direction: str = ""
    inclusive: bool = True
    in_a_row: int = 1
    mean_of: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or "/" not in self.metric:
            raise UserError(
                f"goal.metric is {self.metric!r}; it must be written 'split/metric', "
                "for example 'validation/classification_error'."
            )
        if self.direction not in ("", None, "minimize", "maximize"):
            raise UserError(
                f"goal.direction is {self.direction!r}; it must be 'minimize' or "
                "'maximize'."
            )
        if not is_number(self.threshold):
            raise UserError(
                f"goal.threshold is {self.threshold!r}; it must be a finite number."
            )
        if self.threshold > _told_by(self.metric)[1]:
            raise UserError(
                f"goal.threshold is {self.threshold!r}, and {self.metric} is by its "
                "name a share, at most 1: give the share, or add _percent to the name "
                "of a metric in percent."
            )
        if not isinstance(self.inclusive, bool):
            raise UserError(
                f"goal.inclusive is {self.inclusive!r}; it must be True or False."
            )
        for name in ("in_a_row", "mean_of"):
            check_whole(f"goal.{name}", getattr(self, name))
        if self.in_a_row > 1 and self.mean_of > 1:
            raise UserError(
                f"goal.in_a_row is {self.in_a_row} and goal.mean_of is {self.mean_of}: "
                "leave one of them at 1."
            )
        # The decimals that are meant: float(np.float32(0.7)) is 0.699999988. NumPy's
        # str() would round them to 12 digits where a program asks for legacy printing.
        is_of_numpy = isinstance(self.threshold, np.floating)
        text = (np.format_float_scientific if is_of_numpy else float)(self.threshold)
        object.__setattr__(self, "threshold", float(text))
        direction = direction_of(self.metric, self.direction)
        object.__setattr__(self, "direction", direction)

    def __str__(self) -> str:
        sign, _ = _COMPARISONS[self.direction, self.inclusive]
        text = f"{self.metric} {sign} {self.threshold!r}"
        if self.in_a_row > 1:
            text += f" at {self.in_a_row} evaluations in a row"
        return text if self.mean_of == 1 else f"{text}, mean of {self.mean_of}"

    @property
    def window(self) -> int:
        """The number of evaluations that decide whether the goal is met at the last."""
        return max(self.in_a_row, self.mean_of)

    @overload
    def reaches(self, value: float) -> bool: ...

    @overload
    def reaches(self, value: NDArray[np.float64]) -> NDArray[np.bool_]: ...

    def reaches(self, value: Any) -> Any:
        """Returns whether a value of the metric meets the threshold.

        NaN and infinite values never do, as no result of training is infinite. A value
        that is the threshold in single precision, which logs of others have, is equal
        to it: float32(0.1) meets 0.1. For an array it returns one of the same shape.
        """
        _, compare = _COMPARISONS[self.direction, self.inclusive]
        met = compare(value, self.threshold) & (abs(value) < math.inf)
        is_equal = value == _single(self.threshold)
        return met | is_equal if self.inclusive else met & (is_equal ^ True)

    def check_unit(self, values: Any) -> None:
        """Raises UserError for a finite value that the metric cannot have by its name.

        Args:
            values: a value of the metric, or an array of any shape.
        """
        most = _told_by(self.metric)[1] * (1 + 1e-6)
        is_beyond = values > most
        if is_beyond is False or not np.any(is_beyond):
            return
        beyond = np.ravel(values)[
            np.isfinite(values).ravel() & (np.ravel(values) > most)
        ]
        if beyond.size:
            raise UserError(
                f"{self.metric} is {beyond[0]:g}, and by its name a share, at most 1: "
                "measure or import the share, or let the name of the metric end "
                "with _percent."
            )

    def is_met(self, values: Sequence[float]) -> bool:
        """Returns whether the goal is met at the last of successive evaluations.

        Values that are not finite never meet it; only the last `window` values matter.
        """
        return self.reaches(self.over_window(values))

    def over_window(self, values: Sequence[float]) -> float:
        """Returns the value to compare with the threshold at the last evaluation.

        That is the mean of the last `mean_of` values, or the worst of the last
        `in_a_row`; NaN if one of these is not finite, or if there are fewer.
        """
        recent = values[-self.window :]
        if len(recent) < self.window or not all(map(math.isfinite, recent)):
            return math.nan
        if self.mean_of > 1:
            return float(self.mean(recent))
        return max(recent) if self.direction == "minimize" else min(recent)

    def mean(self, recent: Sequence[Any]) -> Any:
        """Returns the mean of `mean_of` values, or arrays of values, the oldest first.

        Where it differs from the threshold by rounding alone, it is the threshold: the
        mean of 0.1, 0.1 and 0.1 is 0.1. So is the mean of 0.05 and 0.15 in single
        precision.
        """
        # Python's sum() rounds otherwise from 3.12 on. Rounding of values, threshold,
        # sum and quotient together is at most (mean_of + 2) eps / 2 times the mean.
        mean = functools.reduce(operator.add, recent) / self.mean_of
        total = sum(map(abs, recent))
        rounding = sys.float_info.epsilon * total
        # Logs of others round each value to single precision, half a unit at most.
        with np.errstate(over="ignore", invalid="ignore"):
            are_single = np.all([x == np.float32(x) for x in recent], axis=0)
        rounding = np.where(
            are_single, _SINGLE_UNIT / 2 * total / self.mean_of, rounding
        )
        return np.where(abs(mean - self.threshold) < rounding, self.threshold, mean)

    def is_stricter_than(self, other: Goal) -> bool:
        """Returns whether each curve that meets this goal has met the other one too.

        Equal goals are stricter than each other. Goals on other metrics, in other
        directions or of other means cannot be compared and give False.
        """
        if (self.metric, self.direction) != (other.metric, other.direction):
            return False
        if self.mean_of != other.mean_of or self.in_a_row < other.in_a_row:
            return False
        if self.threshold == other.threshold:
            return other.inclusive or not self.inclusive
        return other.reaches(self.threshold)

    def to_json(self) -> dict[str, Any]:
        """Returns the goal as a JSON object, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Goal:
        """Returns the goal that `to_json` described."""
        return cls(**value)


@functools.lru_cache
def _single(threshold: float) -> float:
    """Returns a threshold in single precision, where it is in its range."""
    is_in_range = _LEAST_SINGLE <= abs(threshold) <= _MOST_SINGLE
    return float(np.float32(threshold)) if is_in_range else threshold
