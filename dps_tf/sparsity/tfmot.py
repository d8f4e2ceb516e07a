"""Wrappers of tensorflow-model-optimization that prune a network while it trains.

That library is imported here and nowhere else. Its wrappers hold a mask beside each
prunable variable and multiply the variable by it in every forward pass. A training step
moves masks first, by the magnitudes that the last update left, so that pruned entries
may return. Evaluations would multiply too, which changes the trial, and fails in a loop
on several replicas: `Program.evaluate` has them read weights that it masks itself.

Where they differ from masks that training multiplies gradients by: wrappers leave the
gradients of pruned entries in place, so gradient norms, clipping by norm and optimizer
slots at pruned entries include them; and after an update pruned entries are not zero
until the next forward pass, so sparsity is read off the masks. For optimizers that
treat entries one by one (all of `dps_tf.optim`) the kept entries are the same, bit for
bit on a CPU with one thread per operation.

A wrapped layer's `get_weights()` and Keras weight files leave the masks out;
`tf.train.Checkpoint` and `PrunedModel.state_variables` hold them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import Pruning, UserError
from dps_tf.sparsity import prunable as prunables
from dps_tf.sparsity import pruning_schedule
from dps_tf.sparsity.prunable import MaskSet, describe
from dps_tf.sparsity.selection import kept_count

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports distutils, which is deprecated
    from tensorflow_model_optimization.sparsity import keras as tfmot


class PrunedModel:
    """A model inside tfmot's wrappers, by `wrap_with_schedule`.

    Attributes:
        model: the wrapped model, to be called with `training=True` once per update,
            after `before_step`, inside a `tf.function`: run eagerly the wrappers do
            nothing.
        weights: variables of the wrapped model, in the order of the plain model's.
        state_variables: masks, thresholds and pruning steps, to be stored beside
            weights and optimizer slots for an exact resume.
    """

    def __init__(
        self,
        model: keras.Model,
        schedule: Any,
        prunable: str,
        target: pruning_schedule.Target,
    ):
        self._target = target
        self._prunable = prunable
        self._wrappers: list[Any] = []
        roles = self._roles = prunables.roles(model)
        self._wanted = {
            id(variable)
            for variable, role in zip(model.trainable_variables, roles, strict=True)
            if role.is_in(prunable)
        }
        if not self._wanted:
            raise UserError(
                f"network {model.name!r} has no variable in the prunable set "
                f"{prunable!r}: tfmot has nothing to wrap"
            )
        self._schedule = schedule
        self.model = keras.models.clone_model(model, clone_function=self._wrapped)
        self._multiplies = True
        for wrapper in self._wrappers:
            self._take_over_masks(wrapper.pruning_obj)
        copies = _match_variables(model, self.model)
        self.weights = [copies[id(variable)] for variable in model.weights]
        for own, plain in zip(self.weights, model.weights, strict=True):
            own.assign(plain)
        self.state_variables = [
            variable
            for wrapper in self._wrappers
            for _, mask, threshold in wrapper.pruning_vars
            for variable in (mask, threshold)
        ] + [wrapper.pruning_step for wrapper in self._wrappers]

    def _wrapped(self, layer: Any) -> Any:
        """Returns a copy of a layer, inside a wrapper if it has prunable variables."""
        if isinstance(layer, keras.Model):
            return keras.models.clone_model(layer, clone_function=self._wrapped)
        copy = layer.__class__.from_config(layer.get_config())
        positions = [
            position
            for position, variable in enumerate(layer.trainable_weights)
            if id(variable) in self._wanted
        ]
        if not positions:
            return copy
        # Replaces tfmot's registry, which lists the kernels of some layers only.
        copy.get_prunable_weights = lambda: [
            copy.trainable_weights[position] for position in positions
        ]
        # The wrapper calls `layer.call` itself, so kernels are cast by its own policy.
        wrapper = tfmot.prune_low_magnitude(
            copy, pruning_schedule=self._schedule, dtype=layer.dtype_policy
        )
        self._wrappers.append(wrapper)
        return wrapper

    def _take_over_masks(self, pruning: Any) -> None:
        # Masks multiply what is stored: a cast value would round it to 8 bits.
        pruning._pruning_vars = [
            tuple(getattr(variable, "_variable", variable) for variable in triple)
            for triple in pruning._pruning_vars
        ]
        multiply = pruning.weight_mask_op
        pruning.weight_mask_op = lambda: (multiply if self._multiplies else tf.no_op)()

    @contextmanager
    def masked_before(self) -> Iterator[None]:
        """Lets forward passes that are traced within leave the weights as they are."""
        self._multiplies = False
        try:
            yield
        finally:
            self._multiplies = True

    @property
    def reached_at(self) -> int:
        """The number of updates after which the masks have the target sparsity."""
        return self._target.reached_at

    def before_step(self, step: tf.Tensor | int) -> None:
        """Tells the wrappers that `step` updates (int64 []) have been made.

        The call only assigns variables, so a compiled loop may contain it. The forward
        pass counts on from `step`: tfmot's first update is step 1.
        """
        for wrapper in self._wrappers:
            wrapper.pruning_step.assign(tf.cast(step, tf.int64))

    def fresh_state(self) -> list[np.ndarray]:
        """Returns the values of `state_variables` before a trial's first step."""
        ones_and_zeros = [
            value
            for wrapper in self._wrappers
            for _, mask, _ in wrapper.pruning_vars
            for value in (np.ones(mask.shape, np.float32), np.zeros((), np.float32))
        ]
        return ones_and_zeros + [np.array(-1, np.int64)] * len(self._wrappers)

    def masks(self) -> list[np.ndarray]:
        """Returns the present masks, one per trainable variable."""
        own = {
            id(weight): mask
            for wrapper in self._wrappers
            for weight, mask, _ in wrapper.pruning_vars
        }
        return [
            own[id(v)].numpy() if id(v) in own else np.ones(v.shape, np.float32)
            for v in self.model.trainable_variables
        ]

    def mask_set(self) -> MaskSet:
        """Returns the present masks with their sparsity."""
        return describe(self.masks(), self._roles, self._prunable)

    def check_reached(self, step: int) -> None:
        """Raises UserError unless the target sparsity holds after `step` updates.

        A trial that did not reach its target sparsity is an error, not a result.
        """
        target, present = self._target, self.mask_set()
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


def wrap_with_schedule(
    model: keras.Model, method: str, sparsity: float, pruning: Pruning, step_budget: int
) -> PrunedModel:
    """Returns `model` inside wrappers with masks that follow a schedule of tfmot.

    tfmot chooses by magnitude inside each variable, never globally.

    Args:
        model: functional or sequential, built; it is copied with its weights.
        method: see `pruning_schedule.target`.
        sparsity: see `pruning_schedule.target`.
        pruning: see `pruning_schedule.target`.
        step_budget: updates a trial may make; a schedule that ends later is refused.

    Source: Zhu and Gupta 2017 for the polynomial schedule.
    """
    target = pruning_schedule.target(method, sparsity, pruning, step_budget)
    schedule = getattr(tfmot, target.method.schedule)(
        **{target.method.keyword: sparsity}, **target.arguments
    )
    return PrunedModel(model, schedule, pruning.prunable, target)


def _match_variables(
    plain: keras.Model, wrapped: keras.Model
) -> dict[int, tf.Variable]:
    """Returns the variables of `wrapped`, by the id of those they are copies of."""
    copies = {}
    for layer, copy in zip(plain.layers, wrapped.layers, strict=True):
        if isinstance(layer, keras.Model):
            copies.update(_match_variables(layer, copy))
            continue
        inner = copy.layer if hasattr(copy, "pruning_vars") else copy
        for variable, own in zip(layer.weights, inner.weights, strict=True):
            copies[id(variable)] = own
    return copies


def masks_in_state(
    pruned: PrunedModel, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the masks of a trial that tfmot pruned, one per trainable variable.

    Args:
        pruned: the trial's network in its wrappers; its state is overwritten.
        arrays: state of the trial. It contains the wrappers' `state_variables` one
            after the other: masks that alternate with scalar thresholds, as no other
            arrays do.

    Raises:
        UserError: the arrays do not contain them.
    """
    own = pruned.state_variables
    forms = [(tuple(v.shape), v.dtype.as_numpy_dtype) for v in own]
    array_forms = [(array.shape, array.dtype.type) for array in arrays]
    for start in range(len(arrays) - len(own) + 1):
        if array_forms[start : start + len(own)] == forms:
            for variable, value in zip(own, arrays[start:], strict=False):
                variable.assign(value)
            return pruned.masks()
    raise UserError(
        "the state of the trial holds no masks of tfmot: it was trained by another "
        "sparsity method or network"
    )
