"""Do masks and wrappers train alike, and do the schedules of tfmot keep their word?"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, optim
from dps_tf._keras import keras
from dps_tf.core import Pruning, UserError
from dps_tf.sparsity import prunable, tfmot
from dps_tf.sparsity.selection import select
from tests.sparsity.data import ones_like

STEPS, BATCH = 24, 8
POINTS = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.05, "momentum": 0.9},
    "nesterov": {"learning_rate": 0.05, "momentum": 0.9},
    "adam": {"learning_rate": 0.003},
}


def simple_cnn():
    return models.build("simple_cnn", (16, 16, 1), 10)


def batches():
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(STEPS, BATCH, 16, 16, 1)).astype(np.float32)
    return inputs, draw.integers(0, 10, (STEPS, BATCH)).astype(np.int32)


def magnitude_masks(network, initial, sparsity):
    """Masks of the kernels by magnitude, ones elsewhere."""
    masks = ones_like(initial)
    kernels = [
        place
        for place, role in enumerate(prunable.roles(network))
        if role.is_in("kernels")
    ]
    kept = select([np.abs(initial[place]) for place in kernels], sparsity)
    for place, mask in zip(kernels, kept, strict=True):
        masks[place] = mask
    return masks


class FixedMasks(tfmot.tfmot.PruningSchedule):
    """A schedule that never moves the masks: they are set from outside."""

    def __call__(self, step):
        return tf.constant(False), tf.constant(0.0)

    def get_config(self):
        return {"class_name": type(self).__name__, "config": {}}


def wrap_with_masks(network, masks, prunable_set="kernels"):
    """A network inside wrappers that keep the given masks."""
    wrapped = tfmot.PrunedModel(network, FixedMasks(), prunable_set, None)
    assign_masks(wrapped, masks)
    return wrapped


def assign_masks(wrapped, masks):
    pruned = [v for wrapper in wrapped._wrappers for v in wrapper.pruning_vars]
    own = {id(weight): mask for weight, mask, _ in pruned}
    for variable, mask in zip(wrapped.model.trainable_variables, masks, strict=True):
        if id(variable) in own:
            own[id(variable)].assign(mask)
    apply_masks(wrapped)


def apply_masks(wrapped):
    """Makes pruned entries zero now, not only in the next forward pass."""
    for wrapper in wrapped._wrappers:
        for weight, mask, _ in wrapper.pruning_vars:
            weight.assign(weight * mask)


def train(model, optimizer, gradient_masks=None, before_step=None, clip=None):
    """Makes STEPS updates in one compiled loop."""
    inputs, labels = batches()
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(autograph=False)
    def run(inputs, labels):
        def body(step):
            if before_step is not None:
                before_step(step)
            with tf.GradientTape() as tape:
                logits = model(inputs[step], training=True)
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels[step], logits)
                )
            gradients = tape.gradient(loss, variables)
            if gradient_masks is not None:
                pairs = zip(gradients, gradient_masks, strict=True)
                gradients = [g * m for g, m in pairs]
            if clip is not None:
                gradients, _ = tf.clip_by_global_norm(gradients, clip)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return (step + 1,)

        tf.while_loop(lambda step: step < STEPS, body, (tf.constant(0),))

    run(tf.constant(inputs), tf.constant(labels))


class CarriersTest(tf.test.TestCase, parameterized.TestCase):
    def trained_both_ways(self, name, clip=None, sparsity=0.8):
        network = simple_cnn()
        initial = models.initial_point(network, 3)
        masks = magnitude_masks(network, initial, sparsity)
        network.set_weights(initial)
        wrapped = wrap_with_masks(network, masks)
        network.set_weights(prunable.masked(network, initial, masks))
        for model, given, before in (
            (network, masks, None),
            (wrapped.model, None, wrapped.before_step),
        ):
            optimizer = optim.build(name)
            optimizer.set_metaparameters(POINTS[name])
            train(model, optimizer, given, before, clip)
        native = [v.numpy() for v in network.trainable_variables]
        apply_masks(wrapped)
        by_wrappers = [v.numpy() for v in wrapped.model.trainable_variables]
        return initial, masks, native, by_wrappers

    @parameterized.parameters(*POINTS)
    def test_masks_and_wrappers_give_the_same_bits_after_24_steps(self, name):
        initial, masks, native, by_wrappers = self.trained_both_ways(name)
        for ours, theirs in zip(native, by_wrappers, strict=True):
            self.assertAllEqual(ours, theirs)
        kept = [m > 0 for m in masks]
        for before, after, mask in zip(initial, native, kept, strict=True):
            self.assertAllEqual(after[~mask], np.zeros(np.count_nonzero(~mask)))
            self.assertNotAllEqual(after[mask], before[mask])

    def test_clipping_by_norm_differs_because_tfmot_leaves_pruned_gradients_in(self):
        _, _, native, by_wrappers = self.trained_both_ways("sgd", clip=0.01)
        difference = max(
            np.abs(a - b).max() for a, b in zip(native, by_wrappers, strict=True)
        )
        self.assertGreater(difference, 1e-6)

    def test_fit_with_the_callback_and_strip_keep_the_masks(self):
        network = simple_cnn()
        network.set_weights(models.initial_point(network, 1))
        masks = magnitude_masks(network, network.get_weights(), 0.7)
        wrapped = wrap_with_masks(network, masks)
        inputs, labels = batches()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = optim.build("sgd")
        optimizer.set_metaparameters(POINTS["sgd"])
        wrapped.model.compile(optimizer, loss)
        wrapped.model.fit(
            inputs.reshape(-1, 16, 16, 1),
            labels.ravel(),
            batch_size=BATCH,
            verbose=0,
            callbacks=[tfmot.tfmot.UpdatePruningStep()],
        )
        apply_masks(wrapped)
        stripped = tfmot.tfmot.strip_pruning(wrapped.model)
        self.assertEqual(
            [layer.name for layer in stripped.layers],
            [layer.name for layer in network.layers],
        )
        for value, mask in zip(stripped.get_weights(), masks, strict=True):
            if value.ndim > 1:
                self.assertAllEqual(value != 0, mask > 0)
        self.assertAllClose(wrapped.mask_set().realised_sparsity, 0.7, atol=1e-4)

    def test_biases_and_layers_unknown_to_tfmot_are_wrapped(self):
        network = models.build("tiny_transformer", (6,), 11, width=8, heads=2, blocks=1)
        network.set_weights(models.initial_point(network, 0))
        roles = prunable.roles(network)
        draw = np.random.default_rng(1)
        masks = [
            draw.integers(0, 2, v.shape).astype(np.float32)
            if role.is_in("kernels_and_biases")
            else np.ones(v.shape, np.float32)
            for v, role in zip(network.trainable_variables, roles, strict=True)
        ]
        wrapped = wrap_with_masks(network, masks, "kernels_and_biases")
        for found, given in zip(wrapped.mask_set().masks, masks, strict=True):
            self.assertAllEqual(found, given)
        tokens = draw.integers(0, 11, (2, 6)).astype(np.int32)
        network.set_weights(prunable.masked(network, network.get_weights(), masks))
        self.assertAllEqual(network(tokens), wrapped.model(tokens))
        names = [row["name"] for row in wrapped.mask_set().layers]
        self.assertIn("position/position", names)
        self.assertNotIn("norm/gamma", names)


class SchedulesTest(tf.test.TestCase, parameterized.TestCase):
    def pruned(self, method, sparsity, arguments, steps=STEPS):
        network = simple_cnn()
        network.set_weights(models.initial_point(network, 2))
        wrapped = tfmot.wrap_with_schedule(
            network, method, sparsity, Pruning(arguments=arguments), STEPS
        )
        optimizer = optim.build("momentum")
        optimizer.set_metaparameters(POINTS["momentum"])
        train(wrapped.model, optimizer, before_step=wrapped.before_step)
        return wrapped

    @parameterized.parameters(
        ("tfmot_constant", {"begin_step": 1, "end_step": 1, "frequency": 1}),
        ("tfmot_constant", {"begin_step": 0, "frequency": 7}),
        ("tfmot_polynomial", {"begin_step": 2, "end_step": 22, "frequency": 5}),
    )
    def test_schedule_reaches_its_sparsity_in_every_layer(self, method, arguments):
        wrapped = self.pruned(method, 0.75, arguments)
        wrapped.check_reached(STEPS)
        for row in wrapped.mask_set().layers:
            self.assertEqual(row["kept"], round(row["parameters"] * 0.25))
        self.assertAllClose(wrapped.mask_set().realised_sparsity, 0.75, atol=1e-3)

    def test_a_trial_that_ended_before_the_schedule_is_an_error(self):
        arguments = {"begin_step": 0, "end_step": 20, "frequency": 10}
        wrapped = self.pruned("tfmot_polynomial", 0.9, arguments)
        wrapped.check_reached(20)
        with self.assertRaisesRegex(UserError, "step 20, but the trial ended at .* 19"):
            wrapped.check_reached(19)

    def test_masks_short_of_the_target_are_an_error_at_any_step(self):
        arguments = {"begin_step": 1, "end_step": 1, "frequency": 1}
        wrapped = self.pruned("tfmot_constant", 0.5, arguments)
        ones = ones_like(wrapped.model.trainable_variables)
        assign_masks(wrapped, ones)
        with self.assertRaisesRegex(UserError, "sparsity 0.0000"):
            wrapped.check_reached(STEPS)

    @parameterized.parameters(
        ("tfmot_constant", {}, "reaches sparsity 0.9 at step 100, behind"),
        ("tfmot_constant", {"end_step": 50}, "never prunes"),
        ("tfmot_polynomial", {}, "needs end_step"),
        ("tfmot_polynomial", {"end_step": 20}, "not a multiple of frequency 100"),
        ("tfmot_polynomial", {"end_step": 0}, "needs an end_step behind"),
        (
            "tfmot_polynomial",
            {"end_step": 20, "frequency": 5, "initial_sparsity": 0.95},
            "above the sparsity",
        ),
        ("tfmot_constant", {"freqency": 3}, "did you mean 'frequency'"),
        ("snip", {}, "has no pruning schedule"),
    )
    def test_schedules_that_cannot_arrive_are_refused(self, method, arguments, text):
        with self.assertRaisesRegex(UserError, text):
            tfmot.wrap_with_schedule(
                simple_cnn(), method, 0.9, Pruning(arguments=arguments), 32
            )


if __name__ == "__main__":
    tf.test.main()
