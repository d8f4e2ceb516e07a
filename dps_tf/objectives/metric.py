"""Metrics: numbers over a split, computed from sums over its examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dps_tf.core import Goal, UserError

Sums = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A number over a whole split, computed from sums over its examples.

    Example:
        >>> import dps_tf
        >>> bits = Metric("bits", lambda sums: 1.4427 * sums["loss"] / sums["weight"])
        >>> dps_tf.register_metric("bits", lambda: bits)

    Attributes:
        name: part of the column's name after the split, `validation/NAME`.
        value: maps the merged sums, NumPy values by name, to the number. The names are
            the names in `sums`, and always `loss` and `weight`: the weighted sum of the
            loss (without smoothing and penalties) and the sum of the weights.
        sums: maps (labels, outputs, weights) of a batch to tensors by name, which are
            added up: floating-point numbers or int64. `weights` is float32, one per
            label, 0 for labels that do not count. Metrics with the same function share
            its work. None if `loss` and `weight` suffice.
        keeps_examples: whether `sums` returns a row for each example instead, float32
            [batch, ...], and `value` gets the rows of all examples, in any order. So
            metrics are exact that no sum of fixed size gives. Rows of padding are
            removed.
        counts_against: maps (labels, outputs) to bool, one per label: whether a
            position counts against a goal. With it, an evaluation may stop as soon as
            the goal is out of reach.
        of_count: maps (positions that count against the goal, all positions) to the
            value.
    """

    name: str
    value: Callable[[Mapping[str, Any]], float]
    sums: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Sums] | None = None
    keeps_examples: bool = False
    counts_against: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    of_count: Callable[[int, int], float] | None = None

    @property
    def can_be_bounded(self) -> bool:
        """Whether `evaluation_mode = 'goal'` can decide a goal on this metric early."""
        return self.counts_against is not None and self.of_count is not None

    @property
    def grows(self) -> bool:
        """Whether the value grows with the positions that count against the goal."""
        assert self.of_count is not None
        return self.of_count(1, 1) > self.of_count(0, 1)

    def most_against(self, goal: Goal, total: int) -> int | None:
        """Returns how many of `total` positions may count against a goal that is met.

        It is None if the goal is missed even with 0.
        """
        assert self.of_count is not None
        met = (k for k in range(total, -1, -1) if goal.reaches(self.of_count(k, total)))
        return next(met, None)


def one_per_label(what: str, values: Any, labels: tf.Tensor, dtype: tf.DType) -> None:
    """Raises UserError unless values are a tensor of a type, one for each label.

    The check is one of static shapes: it costs nothing once a graph is traced.
    """
    if not tf.is_tensor(values):
        found = f"{type(values).__name__}, no tensor"
    elif values.dtype != dtype:
        found = f"{values.dtype.name}"
    elif not values.shape.is_compatible_with(labels.shape):
        found = f"of shape {values.shape}, and the labels are of shape {labels.shape}"
    else:
        return
    raise UserError(
        f"{what} is {found}: return one {dtype.name} for each label, neither reduced "
        "(as by Keras without reduction='none') nor broadcast."
    )


def check_sums(sums: Any, labels: tf.Tensor, of_rows: bool) -> Sums:
    """Returns what a function of a metric returned for a batch, if it can be merged.

    Sums that are floating-point numbers are returned, and so added up, in float64.

    Raises:
        UserError: they are no mapping, or have a name of `Metric.value`. A value is no
            tensor, a sum has the length of the batch or is a narrow whole number, or
            rows (`of_rows`) have another length.
    """
    batch = labels.shape[:1]
    if not isinstance(sums, Mapping):
        raise UserError(
            f"the sums of a metric are {type(sums).__name__}: return a dictionary of "
            "tensors by name."
        )
    for name, value in sums.items():
        if name in ("loss", "weight"):
            found = "named as a sum that every metric has"
        elif not tf.is_tensor(value):
            found = f"{type(value).__name__}, no tensor"
        elif of_rows and not value.shape[:1].is_compatible_with(batch):
            found = f"of shape {value.shape}, not a row for each example"
        elif not of_rows and not value.shape.is_fully_defined():
            found = f"of shape {value.shape}, not added up over the batch"
        elif not (of_rows or value.dtype.is_floating or value.dtype == tf.int64):
            found = f"{value.dtype.name}, and sums of it may overflow (take int64)"
        else:
            continue
        raise UserError(f"{name!r} of a metric's sums is {found}: change the metric.")
    if of_rows:
        return dict(sums)
    return {
        name: tf.cast(value, tf.float64) if value.dtype.is_floating else value
        for name, value in sums.items()
    }


def count(condition: tf.Tensor) -> tf.Tensor:
    """Returns how often a condition holds, int64 [], exact in any order of addition."""
    return tf.reduce_sum(tf.cast(condition, tf.int64))


def mean_loss(name: str) -> Metric:
    """Returns a metric that is the mean loss per position."""
    return Metric(name, lambda sums: float(sums["loss"] / sums["weight"]))


def fractions(
    against: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    error: str,
    accuracy: str | None = None,
) -> tuple[Metric, ...]:
    """Returns exact metrics that are fractions of positions and can be bounded early.

    Args:
        against: maps (labels, outputs) to bool, one per label: whether it is wrong.
        error: name of the fraction of positions that are wrong.
        accuracy: name of the fraction that is not wrong; None omits this metric.
    """

    def checked(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        is_against = against(labels, outputs)
        one_per_label(f"what counts for {error}", is_against, labels, tf.bool)
        return is_against

    def sums(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        counts = weights > 0
        wrong = tf.logical_and(checked(labels, outputs), counts)
        return {"wrong": count(wrong), "positions": count(counts)}

    def metric(name: str, of_count: Callable[[int, int], float]) -> Metric:
        def value(totals: Mapping[str, Any]) -> float:
            return of_count(int(totals["wrong"]), int(totals["positions"]))

        return Metric(name, value, sums, counts_against=checked, of_count=of_count)

    metrics = [metric(error, lambda wrong, total: wrong / total)]
    if accuracy is not None:
        metrics.append(metric(accuracy, lambda wrong, total: (total - wrong) / total))
    return tuple(metrics)
