"""Numbers that an evaluation gives of a split, made of sums over its examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dps_tf.core import Goal

Sums = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A number over a whole split, made of sums over its examples.

    Attributes:
        name: behind the split in the column's name, `validation/NAME`.
        value: returns the number, of the merged sums as NumPy values: those of `sums`,
            and always `loss` and `weight`, the weighted sum of the loss (without
            smoothing and penalties) and the sum of the weights.
        sums: (labels, outputs, weights) of a batch -> tensors by name, to be added up.
            `weights`: float32, one per label, 0 where the label counts nothing. Metrics
            that share this function share its work. None: `loss` and `weight` suffice.
        keeps_examples: whether `sums` returns a row for each example instead, float32
            [batch, ...], so that `value` gets the rows of all examples, in any order:
            for what no sum of fixed size can tell exactly. Rows of examples that only
            fill up a batch are removed.
        counts_against: (labels, outputs) -> bool, one per label: what counts against a
            goal. Given, the metric is known to miss a goal before all examples have
            been looked at.
        of_count: (positions that count against the goal, positions in all) -> value.
    """

    name: str
    value: Callable[[Mapping[str, Any]], float]
    sums: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Sums] | None = None
    keeps_examples: bool = False
    counts_against: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    of_count: Callable[[int, int], float] | None = None

    @property
    def can_be_bounded(self) -> bool:
        """Whether `evaluation_mode = 'goal'` can decide goals on it early."""
        return self.counts_against is not None and self.of_count is not None

    @property
    def grows(self) -> bool:
        """Whether more that counts against the goal makes the value larger."""
        assert self.of_count is not None
        return self.of_count(1, 1) > self.of_count(0, 1)

    def most_against(self, goal: Goal, total: int) -> int | None:
        """Returns how many of `total` positions may count against a goal that is met.

        None if even 0 are too many.
        """
        assert self.of_count is not None
        met = (k for k in range(total, -1, -1) if goal.reaches(self.of_count(k, total)))
        return next(met, None)


def count(condition: tf.Tensor) -> tf.Tensor:
    """Returns how often a condition holds, int64: exact in any order of adding."""
    return tf.reduce_sum(tf.cast(condition, tf.int64))


def mean_loss(name: str) -> Metric:
    """Returns the metric that is the mean loss of a position."""
    return Metric(name, lambda sums: float(sums["loss"] / sums["weight"]))


def fractions(
    against: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    error: str,
    accuracy: str | None = None,
) -> tuple[Metric, ...]:
    """Returns the metrics that count positions, exactly: they can be bounded early.

    `against`: (labels, outputs) -> bool, one per label: whether it is wrong; `error`
    and `accuracy`: names of the fractions of positions that are wrong, and of the
    others.
    """

    def sums(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        counts = weights > 0
        wrong = tf.logical_and(against(labels, outputs), counts)
        return {"wrong": count(wrong), "positions": count(counts)}

    def metric(name: str, of_count: Callable[[int, int], float]) -> Metric:
        def value(found: Mapping[str, Any]) -> float:
            return of_count(int(found["wrong"]), int(found["positions"]))

        return Metric(name, value, sums, counts_against=against, of_count=of_count)

    found = [metric(error, lambda wrong, total: wrong / total)]
    if accuracy is not None:
        found.append(metric(accuracy, lambda wrong, total: (total - wrong) / total))
    return tuple(found)
