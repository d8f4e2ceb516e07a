"""Trials side by side in threads have the bits of trials by themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from dps_tf.training import DeviceData, Program
from dps_tf.training.evaluation import Evaluated, Evaluation
from tests.training import problems
from tests.training.problems import Problem, same_bits

THREADS = 2
ROUNDS = 3


class ConcurrencyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("mlp", Problem(optimizer="nesterov", schedule="linear", smoothing=True)),
        ("mlp_in_lanes", Problem(), 3),
        # Residual sums make AddN operations, whose temporaries are named in a space
        # that all graphs of a process share.
        ("resnet8", Problem(problems.images(), "resnet8", "momentum", smoothing=True)),
        ("simple_cnn", Problem(problems.images(side=16), "simple_cnn", "adam")),
        ("batch_norm", Problem(network="mlp_batch_norm", smoothing=True)),
        (
            "transformer",
            Problem(problems.sequences(), "tiny_transformer", arguments={"blocks": 1}),
        ),
    )
    def test_bits_do_not_depend_on_company(self, problem, lanes=1):
        data = DeviceData(problem.dataset, problems.one_device())
        first = Program(problem.task, data, problem.batch_size, lanes=lanes)
        # Threads share what is traced where no AddN forbids it.
        programs = [first, first.twin()]
        if programs[1] is None:
            programs[1] = Program(problem.task, data, problem.batch_size, lanes=lanes)
        makes_add_n = problem.smoothing or problem.network == "tiny_transformer"
        self.assertEqual(programs[1]._run is not first._run, makes_add_n)

        def train(slot: int, trial: int) -> list[Evaluation]:
            problem.begin(programs[slot], seed=trial)
            return problem.curve(programs[slot], 12, 4, seed=trial)[1]

        alone = {}
        for trial in range(THREADS):
            evaluations = train(0, trial)
            alone[trial] = programs[0].read(), evaluations
        with ThreadPoolExecutor(THREADS) as pool:
            for turn in range(ROUNDS):
                trials = [(slot + turn) % THREADS for slot in range(THREADS)]
                found = list(pool.map(train, range(THREADS), trials))
                for slot, trial in enumerate(trials):
                    state, evaluations = alone[trial]
                    self.assertTrue(same_bits(programs[slot].read(), state))
                    self.assertEqual(found[slot], evaluations)
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

    def test_first_calls_may_trace_at_once(self):
        problem = Problem(problems.images(), "resnet8", "sgd")
        data = DeviceData(problem.dataset, problems.one_device())
        programs = [
            Program(problem.task, data, problem.batch_size) for _ in range(THREADS)
        ]

        def first(program: Program) -> None:
            problem.begin(program)
            program.advance(problem.order(0, 2))
            program.evaluate()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(first, programs))
        one, other = (program.read() for program in programs)
        self.assertTrue(same_bits(one, other))
