"""Turns of trials: what a runner reports, and what no turn depends on."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.core import Goal, Job, TrialState, TurnReport, derive_seed
from dps_tf.sparsity import MaskSet
from dps_tf.training import DeviceData, Program, TrainingRunner
from dps_tf.training import runner as runners
from tests.training import problems
from tests.training.problems import Problem, same_bits

PROBLEM = Problem(optimizer="momentum")


def never() -> bool:
    return False


def half(trial: int, initial: list[np.ndarray]) -> MaskSet:
    generator = np.random.default_rng(trial)
    masks = tuple(np.float32(generator.random(v.shape) < 0.5) for v in initial)
    return MaskSet(masks, 0.5, ({"name": "all"},), 7)


class RunnerTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data = DeviceData(PROBLEM.dataset, problems.one_device())
        goal = Goal("validation/classification_error", 0.3)
        cls.programs = [Program(PROBLEM.task, data, 16) for _ in range(2)]
        cls.goal_program = Program(PROBLEM.task, data, 16, goal=goal)

    def runner(self, **arguments) -> TrainingRunner:
        return TrainingRunner(self.programs, 11, **arguments)

    def turn(
        self,
        runner: TrainingRunner,
        until: int,
        state: TrialState | None = None,
        trial: int = 2,
        slot: int = 0,
        stop=never,
        **changes: float,
    ) -> TurnReport:
        job = Job(trial, {**PROBLEM.point, **changes}, state, until)
        return runner.run(slot, [job], stop)[0]

    def test_report_of_a_turn(self):
        runner = self.runner()
        self.assertEqual(runner.slots, 2)
        first = self.turn(runner, 10)
        second = self.turn(runner, 25, first.state)
        self.assertEqual(
            (second.trial, second.step, second.steps_executed), (2, 25, 15)
        )
        self.assertEqual(second.state.step, 25)
        self.assertIsNone(second.diverged_step)
        self.assertFalse(second.is_bound)
        self.assertGreater(second.seconds, 0)
        self.assertEqual(
            list(second.metrics),
            [
                "validation/classification_error",
                "validation/cross_entropy",
                "validation/accuracy",
                "train/loss",
            ],
        )

    def test_trial_is_a_function_of_its_seeds(self):
        """The same through the program, from the seeds that the provenance tells."""
        runner = self.runner()
        provenance = runner.provenance(2)
        self.assertEqual(provenance.initial_seed, derive_seed(11, 2, "initial point"))
        self.assertEqual(provenance.order_seed, derive_seed(11, 2, "order"))
        found = self.turn(runner, 20)
        program = self.programs[1]
        PROBLEM.begin(program, seed=provenance.initial_seed)
        loss = program.advance(PROBLEM.order(0, 20, provenance.order_seed)).loss
        evaluation = program.evaluate()
        self.assertTrue(same_bits(program.read(), found.state))
        self.assertEqual(found.metrics, {**evaluation.metrics, "train/loss": loss})

    def test_shared_order_is_that_of_the_first_trial(self):
        own, shared = self.runner(), self.runner(order="shared")
        self.assertNotEqual(own.provenance(2).order_seed, own.provenance(0).order_seed)
        self.assertEqual(shared.provenance(2).order_seed, own.provenance(0).order_seed)
        self.assertEqual(
            shared.provenance(2).initial_seed, own.provenance(2).initial_seed
        )
        self.assertNotEqual(self.runner().provenance(1), self.runner().provenance(2))

    @parameterized.parameters(0.0, 1e9)
    def test_slices_and_turns_change_no_bit(self, slice_seconds):
        straight = self.turn(self.runner(), 40)
        with mock.patch.object(runners, "SLICE_SECONDS", slice_seconds):
            runner = self.runner()
            state = None
            for turn, until in enumerate((1, 13, 40)):
                self.turn(runner, 5, trial=7, slot=turn % 2)
                report = self.turn(runner, until, state, slot=turn % 2)
                state = report.state
        self.assertTrue(same_bits(state, straight.state))
        self.assertEqual(report.metrics, straight.metrics)

    def test_stop_ends_a_turn_after_a_slice(self):
        runner = self.runner()
        asked = []

        def stop() -> bool:
            asked.append(1)
            return len(asked) == 2

        with mock.patch.object(runners, "SLICE_SECONDS", 0.0):
            stopped = self.turn(runner, 400, stop=stop)
        self.assertEqual((stopped.step, len(asked)), (8, 2))  # four, twice
        self.assertIsNone(stopped.metrics)
        self.assertIsNone(stopped.diverged_step)
        resumed = self.turn(runner, 400, stopped.state)
        self.assertTrue(same_bits(resumed.state, self.turn(runner, 400).state))

    def test_stop_on_the_last_slice_still_evaluates(self):
        report = self.turn(self.runner(), 4, stop=lambda: True)
        self.assertEqual(report.step, 4)
        self.assertIsNotNone(report.metrics)

    def test_long_turn_ends_so_that_it_can_be_saved(self):
        with mock.patch.object(runners, "TURN_SECONDS", 0.0):
            report = self.turn(self.runner(), 400)
        self.assertEqual(report.step, 4)
        self.assertIsNone(report.metrics)

    def test_slices_grow_to_the_pace_and_tracing_is_no_part_of_it(self):
        program = copy.copy(self.programs[0])
        steps, now = [], [0.0]
        advance = program.advance_lanes

        def timed(rows, evaluates):
            # Five seconds for tracing, then 2^-7 for each step.
            now[0] += len(rows[0]) / 128 if steps else 5.0
            steps.append(len(rows[0]))
            return advance(rows, evaluates)

        program.advance_lanes = timed
        runner = TrainingRunner([program], 11)
        clock = SimpleNamespace(monotonic=lambda: now[0])
        with mock.patch.object(runners, "time", clock):
            self.turn(runner, 1_200)
        self.assertEqual(steps, [4, 4, 640, 552])

    def test_divergence_is_a_step_and_no_metrics(self):
        runner = self.runner()
        rate = 1e12
        whole = self.turn(runner, 400, learning_rate=rate)
        self.assertGreater(whole.diverged_step, 1)
        self.assertEqual(whole.step, whole.diverged_step)
        self.assertEqual(whole.steps_executed, whole.diverged_step)
        self.assertIsNone(whole.metrics)
        state, steps = None, 0
        for until in range(1, 400):
            report = self.turn(runner, until, state, learning_rate=rate)
            state, steps = report.state, steps + report.steps_executed
            if report.diverged_step is not None:
                break
        # An evaluation may see it before the next batch does.
        self.assertLessEqual(report.diverged_step, whole.diverged_step)
        self.assertEqual(steps, report.diverged_step)

    def test_a_long_evaluation_has_one_step_beside_it(self):
        program = copy.copy(self.programs[0])
        calls, now = [], [0.0]
        advance = program.advance_lanes

        def timed(rows, evaluates):
            # A second for each step, and ten for an evaluation.
            calls.append((len(rows[0]), evaluates))
            now[0] += calls[-1][0] + 10 * evaluates
            return advance(rows, evaluates)

        program.advance_lanes = timed
        runner = TrainingRunner([program], 11)
        clock = SimpleNamespace(monotonic=lambda: now[0])
        with (
            mock.patch.object(runners, "time", clock),
            mock.patch.object(runners, "SLICE_SECONDS", 12.0),
        ):
            first = self.turn(runner, 20)
            self.turn(runner, 30, first.state)
        self.assertEqual(
            calls, [(4, False), (4, False), (12, True), (9, False), (1, True)]
        )

    def test_bound_is_marked(self):
        runner = TrainingRunner([self.goal_program], 11)
        self.assertTrue(self.turn(runner, 1).is_bound)
        report = self.turn(runner, 200)
        self.assertFalse(report.is_bound)
        self.assertLessEqual(report.metrics["validation/classification_error"], 0.3)

    def test_pruned_trial_starts_and_stays_pruned(self):
        calls = []

        def prune(trial: int, initial: list[np.ndarray]) -> MaskSet:
            calls.append(trial)
            return half(trial, initial)

        runner = self.runner(prune=prune)
        provenance = runner.provenance(2)
        self.assertEqual((provenance.realised_sparsity, provenance.examples), (0.5, 7))
        self.assertEqual(provenance.layers, ({"name": "all"},))
        state = self.turn(runner, 10).state
        state = self.turn(runner, 20, state, slot=1).state
        initial = models.initial_point(
            self.programs[0].network, provenance.initial_seed
        )
        masks = half(2, initial).masks
        arrays = [np.asarray(array) for array in state.arrays]
        for array, mask in zip(arrays, [*masks, *masks], strict=True):
            self.assertAllEqual(array[mask == 0], np.zeros(np.sum(mask == 0)))
        # Scores are dear: once for each trial, whatever is asked for.
        self.assertEqual(calls, [2])
        dense = self.turn(self.runner(), 20).state
        self.assertFalse(same_bits(state, dense))
