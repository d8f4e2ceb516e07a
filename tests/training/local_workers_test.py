"""Local SGD: against a plain loop in NumPy, synchronous SGD, and on several devices."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import data, models, objectives, optim
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.data import Dataset, Examples
from dps_tf.training import DeviceData, Program, StreamedData, Task
from tests.made_up import small_sweeps
from tests.training import problems
from tests.training.problems import Problem, same_bits, shared


@dataclasses.dataclass(frozen=True, eq=False)
class Local(Problem):
    """A problem that workers train, H steps alone and then together."""

    workers: int = 4
    local_steps: int = 3
    delay: int = 0

    @property
    def point(self) -> dict[str, float]:
        local = {"workers": self.workers, "local_steps": self.local_steps}
        late = {"delay": self.delay} if self.delay else {}
        return {**super().point, **(local if self.workers else {}), **late}

    @property
    def task(self) -> Task:
        optimizer = functools.partial(
            optim.build,
            self.optimizer,
            self.schedule,
            self.point,
            workers=self.workers or 1,
            delay=self.delay,
        )
        return dataclasses.replace(super().task, optimizer=optimizer)


def trained(problem: Problem, program: Program, steps: int = 12, cut: int = 12):
    problem.begin(program)
    problem.curve(program, steps, cut)
    return program.read()


@functools.cache
def on_one_device(problem: Problem):
    return trained(problem, shared(problem))


@functools.cache
def local(optimizer: str) -> Local:
    return Local(optimizer=optimizer)


MOMENTUM = local("momentum")


def half_masks(program: Program) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [
        np.float32(generator.random(v.shape) < 0.5)
        for v in program.network.trainable_variables
    ]


class LinearRegressionTest(tf.test.TestCase, parameterized.TestCase):
    """The truth: a loop over workers in plain NumPy, gradients by hand."""

    def setUp(self):
        super().setUp()
        generator = np.random.default_rng(0)
        inputs = generator.normal(size=(60, 3)).astype(np.float32)
        labels = inputs @ [[1.0], [-2.0], [0.5]] + generator.normal(size=(60, 1))
        examples = Examples(inputs, labels.astype(np.float32))
        self.dataset = Dataset("line", examples, examples, 1, "", "none")
        self.rows = generator.integers(0, 60, (11, 8)).astype(np.int32)

    def expected(self, workers: int, local_steps: int, rate: float, beta: float, free):
        """Returns the averages of weights and of their first slot after all steps."""
        inputs, labels = self.dataset.train.inputs, self.dataset.train.labels
        weights, slot, mean = np.zeros((3, workers, 3, 1))
        kept, factor = (1.0, -rate) if free else (beta, 1.0)
        for step, batch in enumerate(self.rows, start=1):
            for w, rows in enumerate(np.split(batch, workers)):
                error = inputs[rows] @ weights[w] - labels[rows]
                gradient = 2 * inputs[rows].T @ error / len(rows)
                slot[w] = kept * slot[w] + factor * gradient
            mean += (slot - mean) / step
            between = (1 - beta) * slot + beta * mean
            weights[:] = between if free else weights - rate * slot
            if step % local_steps == 0:
                for part in (weights, slot, mean) if free else (weights,):
                    part[:] = part.mean(axis=0)
        return weights.mean(axis=0), slot.mean(axis=0)

    @parameterized.parameters(
        (2, "momentum", (4, 0.0), (3, 0.9)),
        (4, "momentum", (1, 0.9), (3, 0.9), (50, 0.5)),
        (4, "schedule_free_sgd", (3, 0.5)),
    )
    def test_is_the_plain_loop_whatever_the_local_steps(self, workers, name, *rounds):
        def network() -> keras.Model:
            inputs = keras.Input([3])
            return keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))

        free = name == "schedule_free_sgd"
        reads = "beta_1" if free else "momentum"
        names = ["learning_rate", reads, "workers", "local_steps"]
        task = Task(
            network,
            lambda: optim.build(name, "constant", names, workers=workers),
            self.dataset,
            objective=objectives.build("squared_error"),
        )
        program = Program(task, DeviceData(self.dataset, problems.one_device()), 8)
        for local_steps, beta in rounds:
            point = dict(zip(names, (0.05, beta, workers, local_steps), strict=True))
            program.load(program.fresh_state([np.zeros((3, 1), np.float32)]), point)
            program.advance(self.rows)
            found = program.read().arrays
            weights, slot = self.expected(workers, local_steps, 0.05, beta, free)
            self.assertAllClose(found[0], weights, rtol=1e-5)
            self.assertAllClose(found[1], slot, rtol=1e-4, atol=1e-5)


PLAIN = Problem(optimizer="momentum")


class SynchronousTest(tf.test.TestCase):
    def test_late_gradients_of_one_local_step_are_those_of_late_synchronous_sgd(self):
        late = dataclasses.replace(MOMENTUM, local_steps=1, delay=3)
        local = on_one_device(late)
        alone = on_one_device(dataclasses.replace(late, workers=0))
        for found, wanted in zip(local.arrays[:4], alone.arrays[:4], strict=True):
            self.assertAllClose(found, wanted, rtol=0, atol=2e-6)
        prompt = on_one_device(PLAIN)
        self.assertGreater(np.abs(prompt.arrays[0] - alone.arrays[0]).max(), 1e-4)

    def test_one_worker_is_synchronous_sgd_to_the_bit(self):
        one = on_one_device(Local(optimizer="momentum", workers=1))
        self.assertTrue(same_bits(one, on_one_device(PLAIN)))
        # Without workers there is nothing of theirs in the state.
        self.assertLen(one.arrays, 2 * len(shared(PLAIN).network.weights))

    def test_draws_of_one_local_step_are_those_of_synchronous_sgd(self):
        every = dataclasses.replace(noisy(), local_steps=1)
        alone = dataclasses.replace(noisy(), workers=0)
        local = trained(every, shared(noisy()))
        wanted = trained(alone, alone.program())
        for one, other in zip(local.arrays[:4], wanted.arrays[:4], strict=True):
            self.assertAllClose(one, other, rtol=0, atol=2e-6)


class StateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("momentum", "soap", "schedule_free_sgd")
    def test_slices_and_other_trials_change_no_bit(self, name):
        problem = local(name)
        program, whole = shared(problem), on_one_device(problem)
        problem.begin(program)
        for step in range(0, 12, 2):  # slices end within rounds and between
            program.advance(problem.order(step, 2))
            state = program.read()
            problem.begin(program, seed=9)
            program.advance(problem.order(0, 4))
            program.evaluate()
            program.load(state, problem.point)
        self.assertTrue(same_bits(whole, program.read()))
        self.assertEqual(program.traces, 1)

    def test_what_is_evaluated_is_the_average_within_a_round_too(self):
        state = trained(MOMENTUM, shared(MOMENTUM), 7)
        weights, own = state.arrays[:4], state.arrays[8:12]
        for average, of_workers in zip(weights, own, strict=True):
            self.assertAllClose(average, of_workers.mean(axis=0), atol=1e-6)
            self.assertGreater(np.abs(of_workers[1] - of_workers[0]).max(), 1e-4)

    def test_an_evaluation_before_the_first_step_changes_nothing(self):
        program = shared(MOMENTUM)
        MOMENTUM.begin(program)
        before = program.read()
        program.evaluate()
        self.assertTrue(same_bits(before, program.read()))

    def test_another_number_of_workers_is_refused(self):
        with self.assertRaisesRegex(UserError, "workers is 2.*built for 4"):
            MOMENTUM.begin(shared(MOMENTUM), workers=2)

    @parameterized.parameters("momentum", "soap")
    def test_pruned_entries_stay_zero(self, name):
        problem = local(name)
        program = shared(problem)
        masks = half_masks(program)
        initial = models.initial_point(program.network, 3)
        initial = [value * mask for value, mask in zip(initial, masks, strict=True)]
        program.load(program.fresh_state(initial), problem.point, masks)
        program.advance(problem.order(0, 8))
        arrays = program.read().arrays
        own = arrays[-(len(arrays) // 2) :]
        for weights, alone, mask in zip(arrays[:4], own[:4], masks, strict=True):
            self.assertAllEqual(weights[mask == 0], np.zeros((mask == 0).sum()))
            self.assertAllEqual(alone * mask, alone)
            self.assertGreater(np.abs(weights - alone[0]).max(), 0.0)


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (Local(batch_size=18), "batch size 18 cannot be split over 4 workers"),
        (Local(network="mlp_batch_norm"), "use a network without batch norm"),
    )
    def test_what_workers_cannot_share(self, problem, message):
        with self.assertRaisesRegex(UserError, message):
            problem.program()


def fixed(**values: float) -> str:
    return f"workload.fixed = {values}"


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ([fixed(workers=3, local_steps=2)], "size 8 cannot be split over 3 workers"),
        ([fixed(workers=2)], "only one of these is given: set both"),
        ([fixed(local_steps=2)], "only one of these is given: set both"),
        ([fixed(workers=2, local_steps=1.5)], "local_steps .* must be"),
        ([fixed(workers=0, local_steps=1)], "workers .* must be"),
        (
            [
                "workload.space = {'workers': ('linear', 1, 4)}",
                fixed(local_steps=2, learning_rate=0.1),
            ],
            "workers is tuned, and a program is compiled for one",
        ),
        (
            [
                fixed(workers=2, local_steps=2),
                "sweep.sparsities = (0.5,)",
                "sweep.sparsity_methods = ('tfmot_constant',)",
            ],
            "'tfmot_constant' prunes while it trains, and workers",
        ),
    ],
)
def test_a_gin_file_that_workers_cannot_follow_is_refused(bindings, message):
    with pytest.raises(UserError, match=message):
        small_sweeps.configured([*small_sweeps.BINDINGS, *bindings])


def network() -> keras.Model:
    inputs = keras.Input([8, 8, 1])
    x = keras.layers.Flatten()(inputs)
    x = keras.layers.Dense(12, activation="relu")(x)
    x = keras.layers.Dropout(0.3)(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


class Noisy(Local):
    """Digits that are cropped at random, through dropout."""

    @property
    def task(self) -> Task:
        return dataclasses.replace(super().task, network=network)


@functools.cache
def noisy(**changes) -> Noisy:
    digits = data.load("digits", augmentation=("pad_and_crop",))
    return Noisy(digits, optimizer="momentum", **changes)


@pytest.mark.multi_device
class DevicesTest(tf.test.TestCase):
    def assert_same(self, state, other) -> None:
        for array, wanted in zip(state.arrays, other.arrays, strict=True):
            self.assertAllClose(array, wanted, rtol=1e-3, atol=1e-4)

    def test_replicas_train_the_workers_that_one_device_trains(self):
        program = shared(MOMENTUM, 4)
        self.assert_same(trained(MOMENTUM, program), on_one_device(MOMENTUM))
        self.assertEqual(program.traces, 1)

    def test_slices_of_replicas_change_no_bit(self):
        program = shared(MOMENTUM, 4)
        whole = trained(MOMENTUM, program)
        self.assertTrue(same_bits(whole, trained(MOMENTUM, program, cut=2)))

    def test_trial_moves_between_devices_within_a_round(self):
        program, one = shared(MOMENTUM, 4), shared(MOMENTUM)
        trained(MOMENTUM, program, 5, 5)
        one.load(program.read(), MOMENTUM.point)
        one.advance(MOMENTUM.order(5, 7))
        self.assert_same(one.read(), on_one_device(MOMENTUM))

    def test_draws_belong_to_places_in_the_global_batch(self):
        """Of dropout and crops, where each of two replicas has two workers."""
        found = trained(noisy(), shared(noisy(), 2))
        self.assert_same(found, trained(noisy(), shared(noisy())))

    def test_under_xla(self):
        program = MOMENTUM.program(jit_compile=True)
        self.assert_same(trained(MOMENTUM, program), on_one_device(MOMENTUM))

    def test_streamed_data_change_no_bit(self):
        streamed = StreamedData(MOMENTUM.dataset, problems.one_device())
        program = Program(MOMENTUM.task, streamed, MOMENTUM.batch_size)
        wanted = on_one_device(MOMENTUM)
        self.assertTrue(same_bits(trained(MOMENTUM, program), wanted))

    def test_workers_that_replicas_cannot_share_are_refused(self):
        with self.assertRaisesRegex(UserError, "3 workers of local SGD .* 2 replicas"):
            Local(workers=3, batch_size=24).program(problems.mirrored(2))
