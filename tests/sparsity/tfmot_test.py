"""The rule of tfmot as a pure function: is it that of tfmot's own wrappers?"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, optim
from dps_tf.core import Pruning, UserError
from dps_tf.data import Dataset, Examples
from dps_tf.sparsity import tfmot
from dps_tf.training import DeviceData, Program, Task
from tests.sparsity.wrappers import Wrapped
from tests.training.problems import one_device

STEPS, BATCH = 24, 8
POINTS = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.05, "momentum": 0.9},
    "adam": {"learning_rate": 0.003},
}
ONCE = ("tfmot_constant", {"begin_step": 1, "end_step": 1, "frequency": 1})
OFTEN = ("tfmot_constant", {"begin_step": 0, "frequency": 7})
GROWING = ("tfmot_polynomial", {"begin_step": 2, "end_step": 22, "frequency": 5})
ROWS = np.arange(STEPS * BATCH, dtype=np.int32).reshape(STEPS, BATCH)


def simple_cnn():
    return models.build("simple_cnn", (16, 16, 1), 10)


def batch_norm():
    return models.build("mlp_batch_norm", (16, 16, 1), 10, widths=(6,))


@functools.cache
def dataset() -> Dataset:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(STEPS * BATCH, 16, 16, 1)).astype(np.float32)
    examples = Examples(inputs, draw.integers(0, 10, STEPS * BATCH).astype(np.int32))
    return Dataset("noise", examples, examples, 10, "", "none")


def program_of(network, optimizer, method, sparsity, arguments) -> Program:
    """Returns a program that prunes in training, with a trial before its first step."""
    task = Task(
        network,
        functools.partial(optim.build, optimizer),
        dataset(),
        gradual=lambda model: tfmot.with_schedule(
            model, method, sparsity, Pruning(arguments=arguments), STEPS
        ),
    )
    program = Program(task, DeviceData(dataset(), one_device()), BATCH)
    initial = models.initial_point(program.network, 2)
    program.load(program.fresh_state(initial), POINTS[optimizer])
    return program


def by_wrappers(network, optimizer, schedule) -> Wrapped:
    """Returns a network that was trained in wrappers, by a plain loop."""
    plain = network()
    plain.set_weights(models.initial_point(plain, 2))
    wrapped = Wrapped(plain, schedule)
    keras_optimizer = optim.TensorOptimizer(optimizer)
    keras_optimizer.set_metaparameters(POINTS[optimizer])
    variables, examples = wrapped.model.trainable_variables, dataset().train
    keras_optimizer.build(variables)

    @tf.function(autograph=False)
    def step(number, inputs, labels):
        wrapped.before(number)
        with tf.GradientTape() as tape:
            logits = wrapped.model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, variables)
        keras_optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for number, rows in enumerate(ROWS):
        step(tf.constant(number), examples.inputs[rows], examples.labels[rows])
    return wrapped


class WrappersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (batch_norm, "sgd", *ONCE),
        (batch_norm, "adam", *OFTEN),
        (simple_cnn, "momentum", *GROWING),
    )
    def test_masks_and_weights_are_those_of_wrappers(
        self, network, optimizer, method, arguments
    ):
        program = program_of(network, optimizer, method, 0.75, arguments)
        program.advance(ROWS)
        truth = by_wrappers(network, optimizer, program.gradual.schedule)
        arrays = program.read().arrays
        masks = arrays[-len(program.gradual.places) :]
        self.assertLen(truth.pruned, len(masks))
        for (_, wanted), mask in zip(truth.pruned, masks, strict=True):
            self.assertAllEqual(mask, wanted)
            self.assertAllClose(mask.mean(), 0.25, atol=0.02)
        for own, wanted in zip(arrays, truth.weights, strict=False):
            self.assertAllClose(own, wanted, rtol=1e-5, atol=1e-6)
        # Every layer has reached its sparsity, and the rule says so.
        program.check_sparsity_reached(STEPS)
        found = program.gradual.mask_set(program.network.weights, masks)
        for row in found.layers:
            self.assertEqual(row["kept"], round(row["parameters"] * 0.25))
        self.assertAllClose(found.realised_sparsity, 0.75, atol=1e-3)


class SchedulesTest(tf.test.TestCase, parameterized.TestCase):
    def test_biases_and_layers_unknown_to_tfmot_are_pruned(self):
        network = models.build("tiny_transformer", (6,), 11, width=8, heads=2, blocks=1)
        pruning = Pruning(prunable="kernels_and_biases", arguments=ONCE[1])
        gradual = tfmot.with_schedule(network, ONCE[0], 0.5, pruning, STEPS)
        masks = gradual.fresh(network.weights)
        names = [row["name"] for row in gradual.mask_set(network.weights, masks).layers]
        self.assertIn("position/position", names)
        self.assertNotIn("norm/gamma", names)

    def test_a_trial_that_ended_before_the_schedule_is_an_error(self):
        arguments = {"begin_step": 0, "end_step": 20, "frequency": 10}
        program = program_of(batch_norm, "sgd", "tfmot_polynomial", 0.9, arguments)
        program.advance(ROWS[:20])
        program.check_sparsity_reached(20)
        with self.assertRaisesRegex(UserError, "step 20, but the trial ended at .* 19"):
            program.check_sparsity_reached(19)

    def test_masks_short_of_the_target_are_an_error_at_any_step(self):
        program = program_of(batch_norm, "sgd", ONCE[0], 0.5, ONCE[1])
        with self.assertRaisesRegex(UserError, "sparsity 0.0000"):
            program.check_sparsity_reached(STEPS)

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
            tfmot.with_schedule(
                batch_norm(), method, 0.9, Pruning(arguments=arguments), 32
            )
