"""Trials side by side in one program: no bit of one depends on the others."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import Goal, TrialState
from dps_tf.training import DeviceData, Program
from dps_tf.training.program import Loaded
from tests.training import problems
from tests.training.problems import Problem, same_bits

LANES = 3
OWN = 1
"""The lane whose bits are compared."""


def normalized() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input([8, 8, 1])
    hidden = layers.Dense(17, use_bias=False)(layers.Flatten()(inputs))
    hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    hidden = layers.Dropout(0.3)(hidden)
    return keras.Model(inputs, layers.Dense(10)(hidden))


class Case:
    """A program of lanes, and trials that it trains, one per lane."""

    def __init__(self, build=None, batch_size=16, lanes=LANES, goal=None, **arguments):
        self.problem = Problem(problems.DIGITS, batch_size=batch_size, **arguments)
        self.task = self.problem.task
        if build is not None:
            self.task = dataclasses.replace(self.task, network=build)
        self.data = DeviceData(self.task.dataset, problems.one_device())
        self.program = self.built(lanes, goal)

    def built(self, lanes=1, goal=None) -> Program:
        size = self.problem.batch_size
        return Program(self.task, self.data, size, lanes=lanes, goal=goal)

    def loaded(self, lane: int, trial: int, rate=None, masked=False) -> Loaded:
        initial = models.initial_point(self.program.network, trial)
        masks = None
        if masked:
            draw = np.random.default_rng(trial).random
            variables = self.program.network.trainable_variables
            masks = [np.float32(draw(v.shape) < 0.5) for v in variables]
            initial = [v * m for v, m in zip(initial, masks, strict=True)]
        point = {**self.problem.point, "learning_rate": rate or 0.02 * (trial + 1)}
        state = self.program.fresh_state(initial)
        return Loaded(lane, state, point, masks, seed=trial)

    def order(self, trial: int, first: int, steps: int) -> np.ndarray:
        return self.problem.order(first, steps, seed=trial)

    def trained(self, trials, turns=(5, 1, 4)):
        """Returns the last (state, advance) of each lane after turns of the program."""
        self.program.load_lanes(trials)
        step = 0
        for steps in turns:
            rows = {t.lane: self.order(t.seed, step, steps) for t in trials}
            advances = self.program.advance_lanes(rows, evaluates=True)
            step += steps
        states = self.program.states()
        return {lane: (states[lane], advances[lane]) for lane in states}


def filled(loaded: Loaded, value: float) -> Loaded:
    """Returns a trial whose weights and slots are all one value."""
    arrays = tuple(np.full_like(np.asarray(a), value) for a in loaded.state.arrays)
    state = TrialState(0, arrays, loaded.state.layout)
    return loaded._replace(state=state)


KINDS = {
    "mlp": (dict(network="mlp", optimizer="momentum"), False),
    "normalized": (dict(build=normalized, optimizer="adam"), False),
    "linear": (dict(network="mlp", optimizer="nesterov", schedule="linear"), True),
}


class BitsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=sorted(KINDS), batch_size=(1, 3, 37, 64))
    def test_no_bit_depends_on_what_other_lanes_hold(self, kind, batch_size):
        arguments, masked = KINDS[kind]
        case = Case(batch_size=batch_size, **arguments)
        own = case.loaded(OWN, 4, masked=masked)
        others = [case.loaded(lane, lane, masked=masked) for lane in (0, 2)]
        wanted_state, wanted = case.trained([own])[OWN]
        self.assertTrue(np.isfinite(wanted.loss))
        for neighbours in (
            others,
            others[:1],
            [filled(other, np.nan) for other in others],
            [filled(other, np.inf) for other in others],
            [filled(other, 0.0) for other in others],
        ):
            state, advance = case.trained([*neighbours, own])[OWN]
            self.assertTrue(same_bits(state, wanted_state))
            self.assertEqual(advance, wanted)

    @parameterized.product(kind=sorted(KINDS), batch_size=(1, 37))
    def test_lanes_compute_what_one_lane_does(self, kind, batch_size):
        arguments, masked = KINDS[kind]
        # Adam would divide small gradients by themselves, and show how they round.
        arguments = {**arguments, "optimizer": "momentum"}
        case = Case(batch_size=batch_size, **arguments)
        trials = [case.loaded(lane, lane, masked=masked) for lane in range(LANES)]
        found = case.trained(trials, (3, 1))
        case.program = case.built()
        for trial in trials:
            alone = trial._replace(lane=0)
            state, advance = case.trained([alone], (3, 1))[0]
            lane_state, lane_advance = found[trial.lane]
            self.assertAllClose(lane_advance.loss, advance.loss, rtol=1e-5)
            metrics = advance.evaluation.metrics
            self.assertAllClose(lane_advance.evaluation.metrics, metrics, rtol=1e-4)
            for a, b in zip(lane_state.arrays, state.arrays, strict=True):
                self.assertAllClose(a, b, rtol=1e-4, atol=1e-6)
            for array, mask in zip(lane_state.arrays, trial.masks or (), strict=False):
                self.assertAllEqual(array[mask == 0], np.zeros_like(array[mask == 0]))


class DivergenceTest(tf.test.TestCase):
    def test_a_lane_that_diverges_stands_still_and_the_others_go_on(self):
        case = Case(network="mlp", optimizer="momentum")
        bad = case.loaded(0, 0, rate=1e20)
        own = case.loaded(OWN, 4)
        wanted_state, wanted = case.trained([own], (40,))[OWN]
        found = case.trained([bad, own], (40,))
        self.assertTrue(same_bits(found[OWN][0], wanted_state))
        self.assertEqual(found[OWN][1], wanted)
        ended, advance = found[0]
        self.assertTrue(advance.diverged)
        self.assertLess(advance.steps, 40)
        self.assertEqual(ended.step, advance.steps)
        alone, _ = case.trained([bad], (advance.steps,))[0]
        self.assertTrue(same_bits(ended, alone))
        _, last = case.trained([bad], (advance.steps - 1,))[0]
        self.assertTrue(np.isfinite(last.loss))

    def test_a_weight_that_is_not_finite_ends_its_lane_alone(self):
        case = Case(network="mlp")
        bad, own = case.loaded(0, 0), case.loaded(OWN, 4)
        arrays = list(bad.state.arrays)
        # A dead unit: NaN in a bias after it would show, infinity before ReLU does not.
        arrays[1] = np.where(np.arange(arrays[1].size) == 0, -np.inf, arrays[1])
        bad = bad._replace(state=dataclasses.replace(bad.state, arrays=tuple(arrays)))
        found = case.trained([bad, own], (2,))
        self.assertTrue(found[0][1].diverged)
        self.assertFalse(found[OWN][1].diverged)


class EvaluationTest(tf.test.TestCase):
    def test_each_lane_stops_at_its_own_decision(self):
        goal = Goal("validation/classification_error", 0.25)
        case = Case(network="mlp", optimizer="momentum", goal=goal)
        trials = [case.loaded(0, 0, rate=1e-5), case.loaded(1, 1, rate=0.1)]
        turns = (30, 5, 5)
        together = case.trained(trials, turns)
        bounds = [together[lane][1].evaluation.is_bound for lane in (0, 1)]
        self.assertEqual(bounds, [True, False])
        for trial in trials:
            state, advance = case.trained([trial], turns)[trial.lane]
            self.assertTrue(same_bits(state, together[trial.lane][0]))
            self.assertEqual(repr(advance), repr(together[trial.lane][1]))
        case.program = case.built(goal=goal)
        for trial in trials:
            _, plain = case.trained([trial._replace(lane=0)], turns)[0]
            evaluation = together[trial.lane][1].evaluation
            self.assertEqual(plain.evaluation.is_bound, evaluation.is_bound)
            self.assertAllClose(
                plain.evaluation.metrics["validation/classification_error"],
                evaluation.metrics["validation/classification_error"],
                atol=0.02,
            )

    def test_evaluations_of_a_loaded_trial_are_those_of_its_turn(self):
        case = Case(network="mlp")
        trials = [case.loaded(lane, lane) for lane in (0, 2)]
        found = case.trained(trials)
        evaluations = case.program.evaluate_lanes()
        tests = case.program.evaluate_lanes("train")
        for lane in (0, 2):
            self.assertEqual(evaluations[lane], found[lane][1].evaluation)
            self.assertNotEqual(tests[0].metrics, tests[2].metrics)
