"""A trial with dropout and augmentation is a function of its seeds alone."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from dps_tf import data, models, optim
from dps_tf._keras import keras
from dps_tf.core import Job, UserError
from dps_tf.training import DeviceData, Program, StreamedData, Task, TrainingRunner
from tests.training import problems
from tests.training.problems import Problem, same_bits

layers = keras.layers

ERROR = "validation/classification_error"


def network() -> keras.Model:
    """Convolution with every kind of draw that is cheap; unnamed layers."""
    inputs = keras.Input([8, 8, 1])
    x = layers.RandomBrightness(0.1, value_range=(-5, 5))(inputs)
    x = layers.Conv2D(8, 3, activation="relu")(x)
    x = layers.SpatialDropout2D(0.1)(x)
    x = layers.Flatten()(layers.MaxPooling2D(2)(x))
    x = layers.GaussianNoise(0.05)(x)
    x = layers.Dense(16, activation="relu")(x)
    x = layers.Dropout(0.3)(x)
    return keras.Model(inputs, layers.Dense(10)(x))


class Noisy(Problem):
    """Digits, padded, cropped and mirrored, through `network`."""

    @property
    def task(self) -> Task:
        optimizer = functools.partial(optim.build, self.optimizer, self.schedule)
        return Task(network, optimizer, self.dataset)


@functools.cache
def problem() -> Noisy:
    # Not when tests are collected: TensorFlow's threads are set after that.
    digits = data.load("digits", augmentation=("pad_and_crop", "flip"))
    return Noisy(digits, optimizer="momentum")


def begin(program: Program, seed: int = 3) -> None:
    initial = models.initial_point(program.network, seed)
    program.load(program.fresh_state(initial), problem().point, seed=seed)


@functools.cache
def on_one_device():
    """Losses, evaluations and last state of 30 steps."""
    program = problems.shared(problem())
    begin(program)
    return *problem().curve(program, 30, 10), program.read()


@functools.cache
def another() -> Program:
    """Returns another program of the same."""
    return problem().program()


class RandomnessTestCase(tf.test.TestCase):
    def assert_same_curve(self, program: Program) -> None:
        losses, evaluations, state = on_one_device()
        begin(program)
        other_losses, others = problem().curve(program, 30, 10)
        self.assertAllClose(losses, other_losses, rtol=0, atol=1e-5)
        self.assertEqual(
            [e.metrics[ERROR] for e in evaluations], [e.metrics[ERROR] for e in others]
        )
        for array, other in zip(state.arrays, program.read().arrays, strict=True):
            self.assertAllClose(array, other, rtol=1e-3, atol=1e-5)
        self.assertEqual(program.traces, 1)


class SlicesTest(RandomnessTestCase):
    def test_slices_of_any_length_in_another_program_after_other_trials(self):
        """And so after a kill at any step: what is left of a trial is its state."""
        generator = np.random.default_rng(0)
        for kills in ([], range(1, 30), sorted(generator.integers(1, 30, 3))):
            program = another()
            begin(program)
            for first, last in zip([0, *kills], [*kills, 30], strict=True):
                state = program.read()
                begin(program, seed=9)
                program.advance(problem().order(0, 2))
                program.load(state, problem().point, seed=3)
                program.advance(problem().order(first, last - first))
            self.assertTrue(same_bits(program.read(), on_one_device()[-1]))

    def test_runner_goes_on_with_a_trial_and_a_replay_repeats_it(self):
        programs = problems.shared(problem()), another()
        first, second = (TrainingRunner([program], 11) for program in programs)
        (begun,) = first.run(0, [Job(2, problem().point, None, 20)], lambda: True)
        self.assertBetween(begun.step, 1, 19)
        job = Job(2, problem().point, begun.state, 20)
        (done,) = second.run(0, [job], lambda: False)
        seeds = first.provenance(2)
        program = first._programs[0]
        initial = models.initial_point(program.network, seeds.initial_seed)
        state = program.fresh_state(initial)
        program.load(state, problem().point, seed=seeds.initial_seed)
        program.advance(problem().order(0, 20, seeds.order_seed))
        self.assertTrue(same_bits(program.read(), done.state))

    def test_streamed_data(self):
        streamed = StreamedData(problem().dataset, problems.one_device())
        program = Program(problem().task, streamed, problem().batch_size)
        begin(program)
        problem().curve(program, 30, 10)
        self.assertTrue(same_bits(program.read(), on_one_device()[-1]))

    def test_another_seed_or_step_draws_otherwise(self):
        program = another()
        initial = program.fresh_state(models.initial_point(program.network, 3))
        rows = problem().order(0, 1)
        losses = []
        for seed, step in ((3, 0), (4, 0), (3, 1), (3, 0)):
            state = dataclasses.replace(initial, step=step)
            program.load(state, problem().point, seed=seed)
            losses.append(program.advance(rows).loss)
        self.assertEqual(losses[0], losses[3])
        self.assertLen(set(losses), 3)

    def test_evaluation_draws_nothing(self):
        program = another()
        begin(program)
        program.advance(problem().order(0, 5))
        before = program.evaluate()
        network = problems.trained_network(program)
        plain = keras.Model(network.input, network.output)
        held = problem().dataset.validation
        logits = plain(held.inputs[np.arange(len(held))], training=False)
        wrong = np.argmax(logits, -1) != held.labels
        self.assertEqual(before.metrics[ERROR], wrong.mean())
        self.assertEqual(before, program.evaluate())

    def test_layer_that_draws_by_itself_is_refused_before_the_first_step(self):
        class Own(layers.Layer):
            def call(self, inputs):
                return tf.nn.dropout(inputs, 0.5)

        def own() -> keras.Model:
            inputs = keras.Input([8])
            return keras.Model(inputs, layers.Dense(4)(Own(name="mine")(inputs)))

        task = Task(own, lambda: optim.build("sgd"), problems.BLOBS)
        with self.assertRaisesRegex(UserError, r"layer 'mine' \(Own\) .*draws random"):
            Program(task, DeviceData(problems.BLOBS, problems.one_device()), 16)


@pytest.mark.multi_device
class ReplicasTest(RandomnessTestCase):
    def test_batches_that_replicas_share(self):
        self.assert_same_curve(problem().program(problems.mirrored(2)))

    def test_under_xla(self):
        self.assert_same_curve(problem().program(jit_compile=True))
