"""What a workload is trained for and judged by, as sums that can be merged.

An objective turns labels and outputs into a loss for each position (an example, a token
of a sequence, a label of several) and into sums for its metrics. Sums over batches and
devices add up to the sums over all of them, so that no metric depends on how examples
were divided, and a mean over positions is one over positions everywhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import NOT_NEGATIVE, Argument, Goal, Reads, UserError, near_matches
from dps_tf.objectives.metric import Metric, Sums, count

Metaparameters = Mapping[str, Any]

CLASSES = "classes"
INDICATORS = "indicators"
NUMBERS = "numbers"
_TAKEN = {
    CLASSES: "one whole number, the class, for each position",
    INDICATORS: "0 or 1 for each class (below 0: unknown), as whole numbers",
    NUMBERS: "floating-point numbers of the shape of the outputs (NaN: unknown)",
}
_ROWS = 10_000  # of labels at a time, which may be mapped from a file
L2_PENALTY = "l2_penalty"
"""A metaparameter of every objective: half of it times the square norm of all trained
kernels (variables of rank 2 and more) is added to the loss of a batch."""


@dataclass(frozen=True, eq=False)
class Objective:
    """Loss and metrics of a workload.

    Attributes:
        loss: (labels, outputs, metaparameters) -> float32, one per label. Outputs are
            those of the network, as float32. A metaparameter that no point holds is
            not in the mapping; the others are scalar tensors in training.
        metrics: columns of a split, in their order.
        labels: what labels are, CLASSES, INDICATORS or NUMBERS.
        metaparameters: what `loss` reads of a point.
        weights: labels -> float32, one per label: what a position counts in the loss,
            0 for padding, or unknown labels; None counts every position once, and then
            no sum of weights has to be exchanged between devices.
        link: what the loss itself applies to outputs, `softmax` or `sigmoid`; a network
            that ends in it is refused. '' refuses nothing.
    """

    loss: Callable[[tf.Tensor, tf.Tensor, Metaparameters], tf.Tensor]
    metrics: tuple[Metric, ...]
    labels: str = CLASSES
    metaparameters: Reads = field(default_factory=dict)
    weights: Callable[[tf.Tensor], tf.Tensor] | None = None
    link: str = ""

    def __post_init__(self) -> None:
        if self.labels not in _TAKEN:
            known = near_matches(str(self.labels), _TAKEN)
            raise UserError(f"labels of an objective are no {self.labels!r}: {known}.")
        names = [metric.name for metric in self.metrics]
        if "loss" in names:
            raise UserError(
                "a metric is named 'loss', and train/loss is the loss of a step: "
                "rename it."
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(
                f"the objective has two metrics named {twice[0]!r}: rename one."
            )

    @property
    def reads(self) -> Reads:
        """The metaparameters that the loss of a batch reads, its penalty included."""
        return {**self.metaparameters, L2_PENALTY: Argument(0.0, NOT_NEGATIVE)}

    def columns(self, split: str) -> tuple[str, ...]:
        """Returns the names of the metrics of a split."""
        return tuple(f"{split}/{metric.name}" for metric in self.metrics)

    def metric(self, column: str) -> Metric:
        """Returns the metric of a column `split/metric`; UserError if there is none."""
        by_name = {metric.name: metric for metric in self.metrics}
        name = column.partition("/")[2]
        if name not in by_name:
            raise UserError(
                f"goal metric {column!r} is none of the objective: "
                f"{near_matches(name, by_name)}."
            )
        return by_name[name]

    def bounded_metric(self, goal: Goal) -> Metric:
        """Returns the metric of a goal that is decided early, or raises UserError."""
        metric = self.metric(goal.metric)
        if not metric.can_be_bounded:
            raise UserError(
                f"evaluation_mode = 'goal' cannot decide a goal on {goal.metric} "
                "early: use evaluation_mode = 'exact'."
            )
        return metric

    def split_point(
        self, point: Mapping[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Returns (what the loss reads, what the optimizer reads) of a point."""
        loss = {name: value for name, value in point.items() if name in self.reads}
        return loss, {name: v for name, v in point.items() if name not in loss}

    def checked_labels(self, labels: Any, what: str) -> np.ndarray:
        """Returns labels as int32 or float32; UserError for another kind, of `what`."""
        array = labels if hasattr(labels, "dtype") else np.asarray(labels)
        kinds = "f" if self.labels == NUMBERS else "iub"
        if array.dtype.kind not in kinds:
            raise UserError(
                f"the labels of {what} are {array.dtype.name}, and the objective takes "
                f"{_TAKEN[self.labels]}: convert them, or bind another "
                "workload.objective."
            )
        wanted = np.dtype(np.float32 if self.labels == NUMBERS else np.int32)
        return array if array.dtype == wanted else array.astype(wanted)

    def label_type(self, outputs: Sequence[int | None]) -> tf.TensorSpec:
        """Returns the type of the labels of a batch, by the shape of the outputs."""
        if self.labels == CLASSES:
            return tf.TensorSpec([None, *outputs[1:-1]], tf.int32)
        dtype = tf.float32 if self.labels == NUMBERS else tf.int32
        return tf.TensorSpec([None, *outputs[1:]], dtype)

    def check_outputs(
        self, labels: np.ndarray, outputs: Sequence[int | None], what: str
    ) -> None:
        """Raises UserError unless labels of a split go with the outputs of a network.

        `outputs`: their shape, [batch, ...]; `what`: whose labels they are.
        """
        positions = self.label_type(outputs).shape[1:]
        # A network for sequences of any length has outputs of any.
        if not positions.is_compatible_with(labels.shape[1:]):
            raise UserError(
                f"an example of {what} has labels of shape {list(labels.shape[1:])}, "
                f"and the network's outputs {list(outputs[1:])} take labels of shape "
                f"{list(positions)} by this objective: change one of them."
            )
        if self.labels != NUMBERS and isinstance(labels, np.ndarray) and labels.size:
            classes = outputs[-1] if self.labels == CLASSES else 2
            self._check_range(labels, classes or 0, what)

    def _check_range(self, labels: np.ndarray, classes: int, what: str) -> None:
        # Below 0 is padding, or unknown, for objectives whose positions have weights.
        least = 0 if self.weights is None else int(labels.min())
        for label in (labels.min(), labels.max()):
            if not least <= label < classes:
                raise UserError(
                    f"a label of {what} is {label}: by this objective and network it "
                    f"has to be from 0 to {classes - 1}."
                )

    def batch_loss(
        self,
        labels: tf.Tensor,
        outputs: tf.Tensor,
        metaparameters: Metaparameters,
        positions: int | tf.Tensor,
    ) -> tf.Tensor:
        """Returns the weighted sum of the loss over `positions`, float32 [].

        `positions`: the sum of the weights of the global batch, so that the shares of
        devices add up to the mean over its positions.
        """
        each = self.loss(labels, outputs, metaparameters)
        if self.weights is None:
            return tf.reduce_sum(each) / positions
        total = tf.reduce_sum(each * self.weights(labels))
        return tf.math.divide_no_nan(total, positions)

    def mean_loss(
        self, labels: tf.Tensor, outputs: tf.Tensor, metaparameters: Metaparameters
    ) -> tf.Tensor:
        """Returns the mean loss of the positions of a batch on one device."""
        if self.weights is None:
            return tf.reduce_mean(self.loss(labels, outputs, metaparameters))
        positions = tf.reduce_sum(self.weights(labels))
        return self.batch_loss(labels, outputs, metaparameters, positions)

    def sums(self, labels: tf.Tensor, outputs: tf.Tensor, valid: tf.Tensor) -> Sums:
        """Returns the sums of a batch: `loss`, `weight`, and those of each metric.

        `valid`: bool [batch]; False where an example only fills up the batch. Returned
        are `loss` and `weight`, float64 []; `metrics`: a dictionary for each of
        `summed`; and `rows`: a dictionary for each of `kept`, with tensors [batch,
        ...].
        """
        weights = self.valid_weights(labels, valid)
        return {
            "loss": self.loss_sum(labels, outputs, weights),
            "weight": tf.reduce_sum(tf.cast(weights, tf.float64)),
            "metrics": [sums(labels, outputs, weights) for sums in self.summed],
            "rows": [rows(labels, outputs, weights) for rows in self.kept],
        }

    def loss_sum(
        self, labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor
    ) -> tf.Tensor:
        """Returns the weighted sum of the plain loss of a batch, float64 []."""
        return tf.reduce_sum(self.weighted_loss(labels, outputs, weights))

    def weighted_loss(
        self, labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor
    ) -> tf.Tensor:
        """Returns the plain loss times weights, float64, one per label."""
        loss = self.loss(labels, outputs, {})
        # Not multiplied alone: what fills up a batch may be NaN.
        loss = tf.where(weights > 0, loss * weights, tf.zeros_like(loss))
        return tf.cast(loss, tf.float64)

    def positions(self, labels: np.ndarray) -> int:
        """Returns how many of the labels of a split count."""
        if self.weights is None:
            return int(labels.size)
        parts = (labels[i : i + _ROWS] for i in range(0, len(labels), _ROWS))
        return sum(int(count(self.weights(tf.constant(part)) > 0)) for part in parts)

    def valid_weights(self, labels: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
        """Returns float32 weights of the labels' shape, 0 where not `valid`."""
        spread = tf.reshape(valid, [-1] + [1] * (labels.shape.rank - 1))
        counts = tf.broadcast_to(spread, tf.shape(labels))
        if self.weights is None:
            return tf.cast(counts, tf.float32)
        weights = self.weights(labels)
        return tf.where(counts, weights, tf.zeros_like(weights))

    @property
    def summed(self) -> list[Callable[..., Sums]]:
        """The different functions whose sums are added up, in order of metrics."""
        return _different(m.sums for m in self.metrics if not m.keeps_examples)

    @property
    def kept(self) -> list[Callable[..., Sums]]:
        """The different functions whose rows are kept, in order of metrics."""
        return _different(m.sums for m in self.metrics if m.keeps_examples)

    def values(self, split: str, sums: Sums) -> dict[str, float]:
        """Returns the columns of a split, from merged sums as NumPy values."""
        common = {"loss": float(sums["loss"]), "weight": float(sums["weight"])}
        of = dict(zip(self.summed, sums["metrics"], strict=True))
        of.update(zip(self.kept, sums["rows"], strict=True))
        return {
            f"{split}/{metric.name}": _value(
                metric, {**common, **(of[metric.sums] if metric.sums else {})}
            )
            for metric in self.metrics
        }

    def bounds(self, split: str, metric: Metric, against: int, total: int) -> Any:
        """Returns the columns of a split; NaN for those that the bound leaves open."""
        return {
            f"{split}/{other.name}": (
                other.of_count(against, total)
                if other.of_count and other.counts_against is metric.counts_against
                else math.nan
            )
            for other in self.metrics
        }


def _value(metric: Metric, sums: Mapping[str, Any]) -> float:
    # A split that holds nothing of what a metric is over has no value of it.
    try:
        return float(metric.value(sums))
    except ZeroDivisionError:
        return math.nan


def _different(found: Any) -> list[Any]:
    return list(dict.fromkeys(each for each in found if each is not None))


def merge(batches: Sequence[Sums]) -> Sums:
    """Returns the sums of several batches as those of all, from NumPy values.

    Sums are added in the order of the batches; rows follow each other.
    """
    first, *others = ({k: v for k, v in b.items() if k != "rows"} for b in batches)
    merged = functools.reduce(
        functools.partial(tf.nest.map_structure, np.add), others, first
    )
    rows = [batch["rows"] for batch in batches]
    return {
        **merged,
        "rows": tf.nest.map_structure(lambda *parts: np.concatenate(parts), *rows),
    }


def penalty(model: keras.Model, metaparameters: Metaparameters) -> tf.Tensor | None:
    """Returns what is added to the mean loss of a batch, float32 [], or None.

    That is what layers have added in the last call of the model (regularizers,
    `add_loss`) and the L2 penalty, if a point holds it.
    """
    parts = [tf.cast(tf.reduce_sum(part), tf.float32) for part in model.losses]
    if L2_PENALTY in metaparameters:
        kernels: Sequence[tf.Variable] = [
            v for v in model.trainable_variables if v.shape.rank > 1
        ]
        square = tf.add_n([tf.reduce_sum(tf.square(v)) for v in kernels])
        parts.append(0.5 * metaparameters[L2_PENALTY] * square)
    return tf.add_n(parts) if parts else None
