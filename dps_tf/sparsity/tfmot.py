"""Pruning while a network trains, by schedules of tensorflow-model-optimization.

That library is imported here and nowhere else. Before a step, its rule moves the masks
by the magnitudes that the last update left, so that pruned entries may return, and the
weights are multiplied by the masks. The rule is a pure function: masks and trained
weights are the same as with tfmot's wrappers (`tests/sparsity/tfmot_test.py`).

This differs from masks that training multiplies gradients by. The gradients of pruned
entries stay in place, so gradient norms, clipping by norm and optimizer slots at pruned
entries include them. After an update pruned entries are not zero until the next step,
so sparsity is read off the masks. For optimizers that treat entries one by one the kept
entries are the same, bit for bit on a CPU with one thread per operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import Pruning, UserError
from dps_tf.sparsity import prunable as prunables
from dps_tf.sparsity import pruning_schedule
from dps_tf.sparsity.prunable import MaskSet, VariableRole, describe
from dps_tf.sparsity.selection import kept_count

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports distutils, which is deprecated
    from tensorflow_model_optimization.sparsity import keras as tfmot


@dataclass(frozen=True)
class Gradual:
    """A schedule of tfmot over the prunable variables of a network.

    Its masks are float32 0/1, one per prunable variable.

    Attributes:
        schedule: maps a step to (whether masks move, sparsity); the first update is 1.
        places: where each prunable variable stands in the network's weights.
        trained: where each trainable variable stands there.
        roles: role of each trainable variable.
        prunable: name of the prunable set.
        target: the sparsity to be reached, and by which step.
    """

    schedule: Any
    places: tuple[int, ...]
    trained: tuple[int, ...]
    roles: tuple[VariableRole, ...]
    prunable: str
    target: pruning_schedule.Target

    @property
    def reached_at(self) -> int:
        """The number of updates after which the masks have the target sparsity."""
        return self.target.reached_at

    def fresh(self, weights: Sequence[Any]) -> list[np.ndarray]:
        """Returns the masks before a trial's first step, ones."""
        return [np.ones(weights[place].shape, np.float32) for place in self.places]

    def moved(
        self, masks: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], step: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns the masks of the update from a step, int64 []."""
        is_due, sparsity = self.schedule(step + 1)
        own = [weights[place] for place in self.places]
        return tf.cond(
            is_due,
            lambda: [_mask(weight, sparsity) for weight in own],
            lambda: [tf.identity(mask) for mask in masks],
        )

    def masked(
        self, weights: Sequence[tf.Tensor], masks: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns all weights, with pruned entries zero."""
        kept = list(weights)
        for place, mask in zip(self.places, masks, strict=True):
            kept[place] = kept[place] * mask
        return kept

    def all_masks(
        self, weights: Sequence[Any], masks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Returns masks for all trainable variables, ones where nothing is pruned."""
        own = dict(zip(self.places, masks, strict=True))
        return [
            np.asarray(own[i]) if i in own else np.ones(weights[i].shape, np.float32)
            for i in self.trained
        ]

    def mask_set(self, weights: Sequence[Any], masks: Sequence[np.ndarray]) -> MaskSet:
        """Returns masks with their sparsity."""
        return describe(self.all_masks(weights, masks), self.roles, self.prunable)

    def check_reached(
        self, step: int, weights: Sequence[Any], masks: Sequence[np.ndarray]
    ) -> None:
        """Raises UserError unless the target sparsity holds after `step` updates.

        A trial that did not reach its target sparsity is an error, not a result.
        """
        target, present = self.target, self.mask_set(weights, masks)
        # tfmot keeps all entries as large as its threshold: ties may add a few.
        is_there = all(
            abs(row["kept"] - max(1, kept_count(row["parameters"], target.sparsity)))
            <= max(1, row["parameters"] // 1000)
            for row in present.layers
        )
        if step < target.reached_at or not is_there:
            raise UserError(
                f"{target.name} should reach sparsity {target.sparsity!r} at step "
                f"{target.reached_at}, but the trial ended at step {step} with "
                f"sparsity {present.realised_sparsity:.4f}: it is no result; let the "
                "schedule end earlier or train for longer"
            )


def _mask(weight: tf.Tensor, sparsity: tf.Tensor) -> tf.Tensor:
    """Returns the mask of the largest entries, as tfmot's wrappers choose them."""
    size, magnitude = tf.size(weight), tf.abs(weight)
    kept = tf.maximum(tf.round(tf.cast(size, tf.float32) * (1 - sparsity)), 1)
    values, _ = tf.math.top_k(tf.reshape(magnitude, [-1]), k=size)
    threshold = tf.gather(values, tf.cast(kept, tf.int32) - 1)
    return tf.cast(magnitude >= threshold, weight.dtype)


def with_schedule(
    model: keras.Model, method: str, sparsity: float, pruning: Pruning, step_budget: int
) -> Gradual:
    """Returns the rule by which masks of a network follow a schedule of tfmot.

    tfmot chooses by magnitude inside each variable, never globally.

    Args:
        model: the network.
        method: see `pruning_schedule.target`.
        sparsity: see `pruning_schedule.target`.
        pruning: see `pruning_schedule.target`.
        step_budget: updates a trial may make; a schedule that ends later is refused.

    Raises:
        UserError: the network has no prunable variable.

    Source: Zhu and Gupta 2017 for the polynomial schedule.
    """
    target = pruning_schedule.target(method, sparsity, pruning, step_budget)
    schedule = getattr(tfmot, target.method.schedule)(
        **{target.method.keyword: sparsity}, **target.arguments
    )
    trained, roles = prunables.trainable_positions(model), prunables.roles(model)
    pairs, prunable = zip(trained, roles, strict=True), pruning.prunable
    places = tuple(place for place, role in pairs if role.is_in(prunable))
    if not places:
        raise UserError(
            f"network {model.name!r} has no variable in the prunable set "
            f"{prunable!r}: tfmot has nothing to prune"
        )
    return Gradual(schedule, places, trained, roles, prunable, target)
