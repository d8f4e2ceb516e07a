"""Objectives: the loss and the metrics of a workload, as sums that can be merged.

An objective maps labels and outputs to a loss for each position (an example, a token of
a sequence, or one of several labels) and to sums for its metrics. Sums over batches and
devices add up to the sums over all examples. So no metric depends on how examples were
divided, and every mean is one over all positions.
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
from dps_tf.core import (
    NOT_NEGATIVE,
    Argument,
    Goal,
    Reads,
    UserError,
    near_matches,
    on_one_line,
    own_code,
)
from dps_tf.objectives.metric import Metric, Sums, check_sums, one_per_label

Metaparameters = Mapping[str, Any]

CLASSES = "classes"
INDICATORS = "indicators"
NUMBERS = "numbers"
_TAKEN = {
    CLASSES: "one whole number, the class, for each position",
    INDICATORS: "0 or 1 for each class (below 0: unknown), as whole numbers",
    NUMBERS: "floating-point numbers of the shape of the outputs (NaN: unknown)",
}
_TRACED = (
    "write it with TensorFlow's operations, as tf.where for an `if`, without NumPy",
    (TypeError, AttributeError, NotImplementedError, ValueError),
)
_ROWS = 10_000  # rows of labels read at a time, as they may be mapped from a file
L2_PENALTY = "l2_penalty"
"""A metaparameter of every objective: half of its value times the square norm of all
trained kernels (variables of rank 2 and more) is added to the loss of a batch."""


@dataclass(frozen=True, eq=False)
class Objective:
    """Loss and metrics of a workload.

    Attributes:
        loss: maps (labels, outputs, metaparameters) to float32, one per label. Outputs
            are the network's, as float32. Metaparameters are scalar tensors by name in
            training; one that no point holds is not in the mapping.
        metrics: the metrics of a split, in the order of its columns.
        labels: kind of the labels: CLASSES, INDICATORS or NUMBERS.
        metaparameters: the metaparameters that `loss` reads from a point.
        weights: maps labels to float32, one per label: the weight of a position in the
            loss, 0 for padding or unknown labels, never negative. A label of weight 0
            has a finite loss. None gives every position weight 1, and devices exchange
            no sums of weights.
        link: the function that the loss applies to outputs, `softmax` or `sigmoid`; a
            network that ends in this function is refused. '' refuses no network.

    Raises:
        UserError: `labels` is no such kind, or metric names are equal or `loss`.
    """

    loss: Callable[[tf.Tensor, tf.Tensor, Metaparameters], tf.Tensor]
    metrics: tuple[Metric, ...]
    labels: str = CLASSES
    metaparameters: Reads = field(default_factory=dict)
    weights: Callable[[tf.Tensor], tf.Tensor] | None = None
    link: str = ""

    def __post_init__(self) -> None:
        if self.labels not in _TAKEN:
            allowed = near_matches(str(self.labels), _TAKEN)
            raise UserError(
                f"labels of an objective are no {self.labels!r}: {allowed}."
            )
        if not isinstance(self.metrics, tuple | list):
            raise UserError(
                f"metrics of an objective are a {type(self.metrics).__name__}: give a "
                "tuple, as (mean_loss('error'),)."
            )
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
        if self.weights is not None:
            object.__setattr__(self, "weights", _one_each(self.weights))

    @property
    def reads(self) -> Reads:
        """The metaparameters that the loss of a batch reads, with the L2 penalty."""
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
        """Returns the metric of a goal; UserError if it cannot be decided early."""
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
        """Returns (metaparameters of the loss, of the optimizer) of a point."""
        loss = {name: value for name, value in point.items() if name in self.reads}
        return loss, {name: v for name, v in point.items() if name not in loss}

    def checked_labels(self, labels: Any, what: str) -> np.ndarray:
        """Returns labels as int32 or float32; UserError for labels of another kind."""
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
        """Returns the type of the labels of a batch for the shape of the outputs."""
        if self.labels == CLASSES:
            return tf.TensorSpec([None, *outputs[1:-1]], tf.int32)
        dtype = tf.float32 if self.labels == NUMBERS else tf.int32
        return tf.TensorSpec([None, *outputs[1:]], dtype)

    def check_outputs(
        self, labels: np.ndarray, outputs: Sequence[int | None], what: str
    ) -> None:
        """Raises UserError unless labels of a split fit the outputs of a network.

        `outputs`: shape of the outputs, [batch, ...]; `what`: owner of the labels.
        """
        positions = self.label_type(outputs).shape[1:]
        # A network for sequences of any length has outputs of unknown length.
        if not positions.is_compatible_with(labels.shape[1:]):
            raise UserError(
                f"an example of {what} has labels of shape {list(labels.shape[1:])}, "
                f"and the network's outputs {list(outputs[1:])} take labels of shape "
                f"{list(positions)} by this objective: change one of them."
            )
        if self.labels != NUMBERS and isinstance(labels, np.ndarray) and labels.size:
            classes = outputs[-1] if self.labels == CLASSES else 2
            self._check_range(labels, classes or 0, what)
        is_held = isinstance(labels, np.ndarray) and labels.size
        if is_held and (self.weights is not None or self.labels == NUMBERS):
            self._check_weights(labels, outputs, what)
        own = [x for x in self.summed if not x.__module__.startswith("dps_tf.")]
        if is_held and own:
            self._check_sums(labels, outputs)

    def _check_range(self, labels: np.ndarray, classes: int, what: str) -> None:
        # Labels below 0 are padding or unknown, if the objective has weights.
        least = 0 if self.weights is None else int(labels.min())
        for label in (labels.min(), labels.max()):
            if not least <= label < classes:
                raise UserError(
                    f"a label of {what} is {label}: by this objective and network it "
                    f"has to be from 0 to {classes - 1}."
                )

    def _check_weights(
        self, labels: np.ndarray, outputs: Sequence[int | None], what: str
    ) -> None:
        """Raises UserError for labels and weights that no mean can be taken of."""
        total, without = 0.0, None
        for start in range(0, len(labels), _ROWS):
            part, weights = labels[start : start + _ROWS], np.ones(1, np.float32)
            if self.weights is not None:
                with tf.init_scope():
                    weights = self.weights(tf.constant(part)).numpy()
            if not (weights >= 0).all() or np.isinf(weights).any():
                raise UserError(
                    f"the weights of labels of {what} go from {weights.min()} to "
                    f"{weights.max()}: they must be finite and at least 0."
                )
            if self.labels == NUMBERS and (np.isnan(part) & (weights > 0)).any():
                raise UserError(
                    f"a label of {what} is NaN, and counts by this objective: leave "
                    "the example out, or give the objective weights of 0 for it."
                )
            total += float(weights.sum(dtype=np.float64))
            if without is None and not weights.all():
                row = int(np.argwhere(weights == 0)[0][0])
                without = part[row : row + 1]
        if total == 0:
            raise UserError(
                f"the weights of all labels of {what} are 0, so that nothing can be "
                "learned from them: change the labels, or the objective's weights."
            )
        if without is not None:
            self._check_without_weight(without, outputs, what)

    def _check_without_weight(
        self, labels: np.ndarray, outputs: Sequence[int | None], what: str
    ) -> None:
        """Raises UserError where a label of weight 0 makes the loss fail or NaN."""
        # Zero times NaN is NaN, and TensorFlow's own losses refuse a class below 0.
        known = self.label_type(outputs).shape.rank
        shape = [*labels.shape, *outputs[known:]]
        with tf.init_scope(), tf.GradientTape() as tape:
            at = tf.fill(shape, 0.5)
            tape.watch(at)
            try:
                loss = self.batch_loss(tf.constant(labels), at, {}, 1.0)
                slope = tape.gradient(loss, at)
                parts = [loss] if slope is None else [loss, slope]
                if all(np.isfinite(part).all() for part in parts):
                    return
                found = "NaN"
            except tf.errors.InvalidArgumentError:
                found = "an error"
        raise UserError(
            f"the loss of the objective is {found} for labels of {what} that have "
            "weight 0: replace such labels inside of the loss, as by "
            "tf.maximum(labels, 0)."
        )

    def _check_sums(self, labels: np.ndarray, outputs: Sequence[int | None]) -> None:
        """Raises UserError for a metric whose sums depend on what else is in a batch.

        The second half of the labels counts as padding, which sums leave out.
        """
        shape = [*labels.shape[1:], *outputs[self.label_type(outputs).shape.rank :]]
        few = labels[: max(2, min(16, 10**6 // math.prod(shape)))]
        half = (len(few) + 1) // 2
        sums = tf.function(self.sums, autograph=False)
        with tf.init_scope():
            drawn = np.random.default_rng(0).normal(size=[len(few), *shape])
            both = tf.constant(few), tf.constant(drawn, tf.float32)
            padded = sums(*both, tf.range(len(few)) < half)["metrics"]
            each = [[x[i : i + 1] for x in both] for i in range(half)]
            alone = [sums(*one, tf.ones(1, tf.bool))["metrics"] for one in each]
        for found, *parts in zip(padded, *alone, strict=True):
            for name, value in found.items():
                added = sum(np.asarray(part[name]) for part in parts)
                if not np.allclose(value, added, 1e-3, 1e-5, equal_nan=True):
                    raise UserError(
                        f"{name!r} of a metric's sums changes with the batch that "
                        "examples are in: return sums over examples of what counts by "
                        "the weights, and neither means nor numbers that broadcast."
                    )

    def batch_loss(
        self,
        labels: tf.Tensor,
        outputs: tf.Tensor,
        metaparameters: Metaparameters,
        positions: int | tf.Tensor,
    ) -> tf.Tensor:
        """Returns the weighted sum of the loss divided by `positions`, float32 [].

        `positions`: sum of the weights of the global batch, so that the shares of
        devices add up to the mean over its positions.
        """
        losses = self._losses(labels, outputs, metaparameters)
        if self.weights is None:
            total = tf.reduce_sum(losses)
            if isinstance(positions, int):
                return total / positions
            # TensorFlow turns the division by a constant into this product.
            return total * (1.0 / tf.cast(positions, tf.float32))
        total = tf.reduce_sum(losses * self.weights(labels))
        return tf.math.divide_no_nan(total, positions)

    def _losses(
        self, labels: tf.Tensor, outputs: tf.Tensor, metaparameters: Metaparameters
    ) -> tf.Tensor:
        try:
            with own_code("the loss of the objective", *_TRACED):
                losses = self.loss(labels, outputs, metaparameters)
        except KeyError as error:
            if error.args[0] in metaparameters or not isinstance(error.args[0], str):
                raise
            raise UserError(
                f"the loss reads {error} of its metaparameters, which hold what a "
                "point has, and nothing in evaluation: declare it in `metaparameters` "
                "of the Objective, and read it by .get with a default."
            ) from error
        one_per_label("the loss of the objective", losses, labels, tf.float32)
        return losses

    def mean_loss(
        self, labels: tf.Tensor, outputs: tf.Tensor, metaparameters: Metaparameters
    ) -> tf.Tensor:
        """Returns the mean loss over the positions of a batch on one device, []."""
        if self.weights is None:
            return tf.reduce_mean(self._losses(labels, outputs, metaparameters))
        positions = tf.reduce_sum(self.weights(labels))
        return self.batch_loss(labels, outputs, metaparameters, positions)

    def sums(self, labels: tf.Tensor, outputs: tf.Tensor, valid: tf.Tensor) -> Sums:
        """Returns the sums of a batch: `loss`, `weight`, and the sums of each metric.

        `valid`: bool [batch], False for padding. The result has `loss` and `weight`,
        float64 []; `metrics`, a dictionary for each of `summed`; and `rows`, a
        dictionary of tensors [batch, ...] for each of `kept`.
        """
        weights = self.valid_weights(labels, valid)

        def found(sums: Callable[..., Any]) -> Any:
            with own_code("a metric of the objective", *_TRACED):
                return sums(labels, outputs, weights)

        return {
            "loss": tf.reduce_sum(self.weighted_loss(labels, outputs, weights)),
            "weight": tf.reduce_sum(tf.cast(weights, tf.float64)),
            "metrics": [
                check_sums(found(sums), labels, of_rows=False) for sums in self.summed
            ],
            "rows": [
                check_sums(found(rows), labels, of_rows=True) for rows in self.kept
            ],
        }

    def weighted_loss(
        self, labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor
    ) -> tf.Tensor:
        """Returns the unsmoothed loss times weights, float64, one per label."""
        loss = self._losses(labels, outputs, {})
        # A product alone is not enough, because the loss of padding may be NaN.
        loss = tf.where(weights > 0, loss * weights, tf.zeros_like(loss))
        return tf.cast(loss, tf.float64)

    def positions(self, labels: np.ndarray) -> int:
        """Returns the number of labels of a split that have a positive weight."""
        return int(self._total(labels, lambda weights: weights > 0))

    def total_weight(self, labels: np.ndarray) -> float:
        """Returns the sum of the weights of the labels of a split."""
        return self._total(labels, lambda weights: weights)

    def _total(self, labels: np.ndarray, of: Callable[[Any], Any]) -> float:
        if self.weights is None:
            return labels.size
        parts = (labels[i : i + _ROWS] for i in range(0, len(labels), _ROWS))
        each = (of(self.weights(tf.constant(part))) for part in parts)
        return sum(float(tf.reduce_sum(tf.cast(part, tf.float64))) for part in each)

    def valid_weights(self, labels: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
        """Returns weights of the labels' shape, float32, 0 where `valid` is False."""
        spread = tf.reshape(valid, [-1] + [1] * (labels.shape.rank - 1))
        counts = tf.broadcast_to(spread, tf.shape(labels))
        if self.weights is None:
            return tf.cast(counts, tf.float32)
        weights = self.weights(labels)
        return tf.where(counts, weights, tf.zeros_like(weights))

    @functools.cached_property
    def summed(self) -> list[Callable[..., Sums]]:
        """The different functions that return sums, in the order of the metrics."""
        return _different(m.sums for m in self.metrics if not m.keeps_examples)

    @functools.cached_property
    def kept(self) -> list[Callable[..., Sums]]:
        """The different functions that return rows, in the order of the metrics."""
        return _different(m.sums for m in self.metrics if m.keeps_examples)

    def values(self, split: str, sums: Sums) -> dict[str, float]:
        """Returns values by column of a split, from merged sums as NumPy values."""
        common = {"loss": float(sums["loss"]), "weight": float(sums["weight"])}
        results = dict(zip(self.summed, sums["metrics"], strict=True))
        results.update(zip(self.kept, sums["rows"], strict=True))
        return {
            f"{split}/{metric.name}": _value(
                metric, {**common, **(results[metric.sums] if metric.sums else {})}
            )
            for metric in self.metrics
        }

    def bounds(self, split: str, metric: Metric, against: int, total: int) -> Any:
        """Returns bounds by column of a split; NaN for metrics that have none.

        `against`: positions of `total` that count against a goal on `metric`.
        """
        return {
            f"{split}/{other.name}": (
                other.of_count(against, total)
                if other.of_count and other.counts_against is metric.counts_against
                else math.nan
            )
            for other in self.metrics
        }


def _value(metric: Metric, sums: Mapping[str, Any]) -> float:
    try:
        value = metric.value(sums)
    except ZeroDivisionError:  # it has none on a split without positions for it
        return math.nan
    except KeyError as error:
        if error.args[0] in sums:
            raise
        raise UserError(
            f"metric {metric.name!r} reads the sum {error}, and it has "
            f"{', '.join(map(repr, sums))}: change its value or its sums."
        ) from error
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"metric {metric.name!r} is {on_one_line(repr(value))}: its value must "
            "return one number."
        ) from error


def _one_each(weights: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Returns weights that raise UserError unless they are one for each label."""

    def checked(labels: tf.Tensor) -> tf.Tensor:
        found = weights(labels)
        one_per_label("the weight of a label", found, labels, tf.float32)
        return found

    return checked


def _different(functions: Any) -> list[Any]:
    return list(dict.fromkeys(f for f in functions if f is not None))


def merge(batches: Sequence[Sums]) -> Sums:
    """Returns the sums over several batches, from the sums of each as NumPy values.

    Sums are added, and rows concatenated, in the order of the batches.
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
    """Returns the penalty to add to the mean loss of a batch, float32 [], or None.

    The penalty is the sum of the losses that layers added in the model's last call
    (regularizers, `add_loss`), and of the L2 penalty if the metaparameters hold it.
    """
    parts = [tf.cast(tf.reduce_sum(part), tf.float32) for part in model.losses]
    if L2_PENALTY in metaparameters:
        kernels: Sequence[tf.Variable] = [
            v for v in model.trainable_variables if v.shape.rank > 1
        ]
        square = tf.add_n([tf.reduce_sum(tf.square(v)) for v in kernels])
        parts.append(0.5 * metaparameters[L2_PENALTY] * square)
    return tf.add_n(parts) if parts else None
