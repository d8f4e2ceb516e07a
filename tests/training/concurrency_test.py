"""Trials side by side in threads have the bits of trials by themselves."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from dps_tf._keras import keras
from dps_tf.core import TrialState
from dps_tf.training import DeviceData, Program, Task
from dps_tf.training.evaluation import Evaluated, Evaluation
from tests.training import problems
from tests.training.problems import Problem, same_bits

THREADS = 2


class Residual(Problem):
    """Images, and a network that adds to what a layer was given."""

    @property
    def task(self) -> Task:
        def network() -> keras.Model:
            inputs = keras.Input([8, 8, 3])
            hidden = keras.layers.Conv2D(4, 3, padding="same")(inputs)
            for _ in range(2):
                own = keras.layers.BatchNormalization()(hidden)
                own = keras.layers.Conv2D(4, 3, padding="same")(own)
                hidden = keras.layers.Add()([hidden, own])
            hidden = keras.layers.MaxPooling2D(2)(hidden)  # Its gradient is a call.
            flat = keras.layers.Flatten()(keras.layers.ReLU()(hidden))
            return keras.Model(inputs, keras.layers.Dense(10)(flat))

        return dataclasses.replace(super().task, network=network)


class ConcurrencyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("mlp_in_lanes", Problem(), 3),
        ("simple_cnn", Problem(problems.images(side=16), "simple_cnn", "adam")),
        # Residual sums make AddN operations, whose temporaries are named in a space
        # that all graphs of a process share.
        ("residual", Residual(problems.images(), optimizer="momentum", smoothing=True)),
    )
    def test_bits_do_not_depend_on_company(self, problem, lanes=1):
        data = DeviceData(problem.dataset, problems.one_device())
        first = Program(problem.task, data, problem.batch_size, lanes=lanes)
        # Threads share what is traced where no AddN forbids it.
        programs = [first, first.twin()]
        if programs[1] is None:
            programs[1] = Program(problem.task, data, problem.batch_size, lanes=lanes)
        makes_add_n = isinstance(problem, Residual)
        self.assertEqual(programs[1]._run is not first._run, makes_add_n)

        def train(slot: int, trial: int) -> tuple[TrialState, list[Evaluation]]:
            problem.begin(programs[slot], seed=trial)
            evaluations = problem.curve(programs[slot], 12, 4, seed=trial)[1]
            return programs[slot].read(), evaluations

        # First calls, which trace, come at once as well.
        with ThreadPoolExecutor(THREADS) as pool:
            turns = [
                list(pool.map(train, range(THREADS), trials))
                for trials in ((0, 1), (1, 0), (0, 1))
            ]
        alone = [train(0, trial) for trial in range(THREADS)]
        turns[1].reverse()
        for found in turns:
            for (state, evaluations), (wanted, of_it) in zip(found, alone, strict=True):
                self.assertTrue(same_bits(state, wanted))
                self.assertEqual(evaluations, of_it)
        self.assertEqual([program.traces for program in programs], [1, 1])

    def test_a_network_that_threads_share_is_traced_by_one_at_a_time(self):
        problem = Problem()
        data = DeviceData(problem.dataset, problems.one_device())
        first = Program(problem.task, data, problem.batch_size)
        outputs, held = Evaluated.outputs, []

        def noted(of, *arguments):
            held.append(of.tracing.locked())
            return outputs(of, *arguments)

        programs = [first, first.twin()]
        with mock.patch.object(Evaluated, "outputs", noted):
            for program in programs:
                problem.begin(program)
            with ThreadPoolExecutor(THREADS) as pool:
                one, other = pool.map(lambda p: p.evaluate("train"), programs)
        self.assertEqual(one, other)
        self.assertTrue(held and all(held))
