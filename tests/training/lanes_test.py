"""Trials side by side in one program: no bit of one depends on the others."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import data, models, objectives, optim
from dps_tf._keras import keras
from dps_tf.core import Goal, Job, TrialState
from dps_tf.sparsity import MaskSet
from dps_tf.training import (
    DeviceData,
    NoLanes,
    Program,
    Task,
    TrainingRunner,
    most_lanes,
)
from dps_tf.training import program as programs
from dps_tf.training import runner as runners
from dps_tf.training.packing import Packing
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


def convolved():
    """A network whose lanes are groups of channels, which XLA compiles."""
    layers = keras.layers
    return of(
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPool2D(),
        layers.Conv2D(3, 3, strides=2, padding="same"),
        layers.Dropout(0.3),
    )


class Case:
    """A program of lanes, and trials that it trains, one per lane."""

    def __init__(
        self,
        build=None,
        batch_size=16,
        lanes=LANES,
        goal=None,
        xla=False,
        **arguments,
    ):
        self.xla = xla
        self.problem = Problem(problems.DIGITS, batch_size=batch_size, **arguments)
        self.task = self.problem.task
        if build is not None:
            self.task = dataclasses.replace(self.task, network=build)
        self.data = DeviceData(self.task.dataset, problems.one_device())
        self.program = self.built(lanes, goal)

    def built(self, lanes=1, goal=None) -> Program:
        size = self.problem.batch_size
        options = {"lanes": lanes, "goal": goal, "jit_compile": self.xla}
        return Program(self.task, self.data, size, **options)

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

    def trained(self, trials, turns=(4, 1, 4)):
        """Returns the last (state, advance) of each lane after turns of the program."""
        if self.xla:  # It compiles once for every length.
            turns = (4,) * len(turns)
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
    "normalized": (dict(build=normalized, optimizer="adam", batch_size=37), False),
    # Adam divides small gradients by themselves, and shows how they round.
    "momentum": (dict(build=normalized, optimizer="momentum", batch_size=37), False),
    "linear": (dict(network="mlp", optimizer="nesterov", schedule="linear"), True),
    "convolved": (dict(build=convolved, batch_size=4, xla=True), False),
}


@functools.cache
def built(kind: str, lanes: int = LANES) -> Case:
    """Returns a case whose program several tests share."""
    return Case(lanes=lanes, **KINDS[kind][0])


def case_of(kind: str, batch_size: int, lanes: int = LANES) -> Case:
    """Returns a case of a batch size, on the program that serves any if one does."""
    case = copy.copy(built(kind, lanes))
    if batch_size != case.problem.batch_size:
        case.problem = dataclasses.replace(case.problem, batch_size=batch_size)
        case.program = case.program.twin(batch_size) or case.built(lanes)
    return case


class BitsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        # Those of the quickstart, too; each size, kind and number of lanes by pairs.
        *(("mlp", 3, size) for size in (1, 2, 4, 16, 37, 128, 1024)),
        *(("mlp", 15, size) for size in (3, 8, 32, 37, 64, 256, 512)),
        *(("linear", 3, size) for size in (3, 8, 37, 64)),
        *(("linear", 15, size) for size in (1, 2, 4, 16)),
        *(("normalized", 3, 37), ("normalized", 15, 2), ("convolved", 3, 4)),
    )
    def test_no_bit_depends_on_what_other_lanes_hold(self, kind, lanes, batch_size):
        case, masked = case_of(kind, batch_size, lanes), KINDS[kind][1]
        own = case.loaded(lanes // 2, 4, masked=masked)
        others = [
            case.loaded(lane, lane, masked=masked)
            for lane in range(lanes)
            if lane != own.lane
        ]
        wanted_state, wanted = case.trained([own])[own.lane]
        self.assertTrue(np.isfinite(wanted.loss))
        for neighbours in (
            others,
            others[:1],
            [filled(other, np.nan) for other in others],
            [filled(other, np.inf) for other in others],
            [filled(other, 0.0) for other in others],
        ):
            state, advance = case.trained([*neighbours, own])[own.lane]
            self.assertTrue(same_bits(state, wanted_state))
            self.assertEqual(advance, wanted)

    @parameterized.parameters(("mlp", 37), ("linear", 48, True))
    def test_a_graph_for_any_batch_size_has_the_bits_of_one_for_its_own(
        self, kind, batch_size, weighs=False
    ):
        """TensorFlow turns a division by a constant into a product, which rounds."""
        case, masked = case_of(kind, batch_size), KINDS[kind][1]
        if weighs:
            objective = objectives.build("softmax_cross_entropy")
            weights = lambda labels: 1.0 + tf.cast(labels, tf.float32)  # noqa: E731
            objective = dataclasses.replace(objective, weights=weights)
            case.task = dataclasses.replace(case.task, objective=objective)
            of_eight = Program(case.task, case.data, 8, lanes=LANES)
            case.program = of_eight.twin(batch_size)
        trials = [case.loaded(lane, lane + 3, masked=masked) for lane in range(LANES)]
        found = case.trained(trials)
        with mock.patch.object(programs, "_ANY_BATCH", ()):
            case.program = fixed = case.built(LANES)
        self.assertIsNone(fixed.twin(batch_size + 1))
        wanted = case.trained(trials)
        for lane, (state, advance) in wanted.items():
            self.assertTrue(same_bits(found[lane][0], state))
            self.assertEqual(found[lane][1], advance)

    def test_a_graph_that_knows_its_batch_size_is_for_no_other(self):
        """Means over a batch round by its size, and draws follow it."""
        case = built("mlp")
        self.assertIsNotNone(case.program.twin(8))
        own = copy.copy(case)
        own.task = dataclasses.replace(case.task, is_own=True)
        programs = [built("normalized").program]
        with mock.patch.object(Program, "_trace"):  # All is known before it.
            noise = Case(build=lambda: of(keras.layers.GaussianNoise(0.1)))
            programs += own.built(LANES), noise.program
        for program in programs:
            self.assertIsNone(program.twin(8))

    @parameterized.parameters(
        *(("mlp", 1), ("momentum", 37), ("linear", 37), ("convolved", 4))
    )
    def test_lanes_compute_what_one_lane_does(self, kind, batch_size):
        case, masked = case_of(kind, batch_size), KINDS[kind][1]
        trials = [case.loaded(lane, lane, masked=masked) for lane in range(LANES)]
        found = case.trained(trials, (3, 3))
        case.program = case.built()
        self.assertIsNone(case.program.twin(8))
        for trial in trials:
            alone = trial._replace(lane=0)
            state, advance = case.trained([alone], (3, 3))[0]
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
        case = built("mlp")
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

    def test_a_lane_stands_still_where_later_losses_would_be_finite(self):
        labels = np.zeros([8, 1], np.float32)
        labels[7] = 1e25  # its square is beyond float32, and a small update is not
        inputs = np.ones([8, 3], np.float32)
        held = data.Examples(inputs[:2], labels[:2])
        dataset = data.Dataset("far", data.Examples(inputs, labels), held, 1, "", "")
        task = Task(
            functools.partial(models.build, "mlp", (3,), 1, widths=()),
            functools.partial(optim.build, "sgd"),
            dataset,
            objective=objectives.build("squared_error"),
        )
        program = Program(
            task, DeviceData(dataset, problems.one_device()), 1, lanes=LANES
        )
        state = program.fresh_state(models.initial_point(program.network, 0))
        found, point = [], {"learning_rate": 1e-27}
        for rows in ([7], [7, 1, 2, 3]):
            program.load_lanes([Loaded(lane, state, point) for lane in (0, OWN)])
            orders = {0: np.ones([len(rows), 1]), OWN: np.array(rows)[:, None]}
            advances = program.advance_lanes(orders, evaluates=True)
            self.assertTrue(advances[OWN].diverged)
            self.assertEqual(advances[OWN].steps, 1)
            self.assertEqual(advances[0].steps, len(rows))
            found.append(program.states()[OWN])
        self.assertTrue(same_bits(*found))
        self.assertTrue(np.isfinite(found[0].arrays[0]).all())

    def test_each_lane_says_whether_its_pruned_entries_are_zero(self):
        case = built("mlp")
        loaded = [case.loaded(lane, lane, masked=lane < 2) for lane in range(LANES)]
        loaded[OWN] = filled(loaded[OWN], 1.0)
        found = case.trained(loaded, turns=(2,))
        self.assertEqual([found[i][1].is_sparse for i in range(3)], [True, False, True])

    def test_a_loaded_trial_that_does_not_go_on_stays_as_it_is(self):
        case = built("mlp")
        still, own = case.loaded(0, 0), case.loaded(OWN, 4)
        case.program.load_lanes([still, own])
        case.program.advance_lanes({OWN: case.order(4, 0, 5)})
        states = case.program.states()
        self.assertTrue(same_bits(states[0], still.state))
        self.assertEqual(states[OWN].step, 5)

    def test_a_weight_that_is_not_finite_ends_its_lane_alone(self):
        case = built("mlp")
        bad, own = case.loaded(0, 0), case.loaded(OWN, 4)
        arrays = list(bad.state.arrays)
        # A dead unit: NaN in a bias after it would show, infinity before ReLU does not.
        arrays[1] = np.where(np.arange(arrays[1].size) == 0, -np.inf, arrays[1])
        bad = bad._replace(state=dataclasses.replace(bad.state, arrays=tuple(arrays)))
        found = case.trained([bad, own], (2,))
        self.assertTrue(found[0][1].diverged)
        self.assertFalse(found[OWN][1].diverged)


GOAL = Goal("validation/classification_error", 0.2)


@functools.cache
def with_goal() -> Case:
    return Case(goal=GOAL, **KINDS["mlp"][0])


class EvaluationTest(tf.test.TestCase):
    def test_each_lane_stops_at_its_own_decision(self):
        case = copy.copy(with_goal())
        trials = [case.loaded(0, 0, rate=1e-5), case.loaded(1, 1, rate=0.1)]
        turns = (30, 5, 5)
        together = case.trained(trials, turns)
        bounds = [together[lane][1].evaluation.is_bound for lane in (0, 1)]
        self.assertEqual(bounds, [True, False])
        for trial in trials:
            state, advance = case.trained([trial], turns)[trial.lane]
            self.assertTrue(same_bits(state, together[trial.lane][0]))
            self.assertEqual(repr(advance), repr(together[trial.lane][1]))
        case.program = case.built(goal=GOAL)
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
        case = built("mlp")
        trials = [case.loaded(lane, lane) for lane in (0, 2)]
        found = case.trained(trials)
        evaluations = case.program.evaluate_lanes()
        tests = case.program.evaluate_lanes("train")
        for lane in (0, 2):
            self.assertEqual(evaluations[lane], found[lane][1].evaluation)
            self.assertNotEqual(tests[0].metrics, tests[2].metrics)


def half(trial: int, initial: list[np.ndarray]) -> MaskSet:
    draw = np.random.default_rng(trial).random
    return MaskSet(tuple(np.float32(draw(v.shape) < 0.5) for v in initial), 0.5)


class RunnerTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.case = with_goal()

    def runner(self, **arguments) -> TrainingRunner:
        return TrainingRunner([self.case.program] * 2, 11, **arguments)

    def job(self, trial: int, state: TrialState | None, until: int, rate=None) -> Job:
        rate = rate or 0.01 * (trial + 1)
        point = {**self.case.problem.point, "learning_rate": rate}
        return Job(trial, point, state, until)

    def curves(self, groups, slice_seconds=5.0, saved=False, **arguments):
        """Returns what is reported of each trial, and its state, by trial.

        `groups`: of each turn, which trials advance together.
        """
        runner, untils = self.runner(**arguments), (3, 10, 11, 30)
        states: dict[int, TrialState] = {}
        reported: dict[int, list] = {}
        with mock.patch.object(runners, "SLICE_SECONDS", slice_seconds):
            for turn, (until, together) in enumerate(zip(untils, groups, strict=True)):
                for trials in together:
                    jobs = [self.job(t, states.get(t), until) for t in trials]
                    for report in runner.run(turn % 2, jobs, lambda: False):
                        state = report.state
                        if saved:
                            arrays = tuple(map(np.array, state.arrays))
                            state = dataclasses.replace(state, arrays=arrays)
                        states[report.trial] = state
                        clean = dataclasses.replace(
                            report, state=None, seconds=0, data_wait=0
                        )
                        reported.setdefault(report.trial, []).append(clean)
        return reported, states

    def assert_same(self, one, other):
        self.assertEqual(repr(one[0]), repr(other[0]))
        for trial, state in one[1].items():
            self.assertTrue(same_bits(state, other[1][trial]))

    def test_the_seconds_of_a_turn_are_shared_by_its_trials(self):
        runner, began = self.runner(), time.monotonic()
        reports = runner.run(0, [self.job(t, None, 3) for t in range(5)], bool)
        passed = time.monotonic() - began
        seconds = [report.seconds for report in reports]
        self.assertLen(set(seconds), 1)
        self.assertBetween(sum(seconds), 0, passed)

    def test_groups_slices_and_saved_states_change_no_bit(self):
        for prune in (None, half):
            alone = self.curves([[[t] for t in (0, 4, 5, 2)]] * 4, prune=prune)
            self.assertEqual([r.step for r in alone[0][4]], [3, 10, 11, 30])
            mixed = [
                [[0, 4, 5], [2]],
                [[0, 4, 2], [5]],
                [[0], [4, 5], [2]],
                [[2, 4, 0], [5]],
            ]
            for slice_seconds, saved in ((5.0, False), (0.0, False), (5.0, True)):
                found = self.curves(mixed, slice_seconds, saved, prune=prune)
                self.assert_same(found, alone)

    def test_a_group_that_stays_together_is_not_stacked_again(self):
        runner = self.runner()
        reports = runner.run(
            0, [self.job(t, None, 1) for t in (0, 4, 5)], lambda: False
        )
        with (
            mock.patch.object(Packing, "joined", side_effect=AssertionError),
            mock.patch.object(programs, "_KEPT", 0),
        ):
            jobs = [self.job(r.trial, r.state, 2) for r in reports]
            reports = runner.run(0, jobs, lambda: False)
            jobs = [self.job(r.trial, r.state, 3) for r in reports[1:]]
            runner.run(0, jobs, lambda: False)
        # A large trial that is left behind holds its own arrays alone.
        tensors, lane = reports[0].state.arrays.held
        self.assertIsNone(lane)
        self.assertEqual(
            [t.shape for t in tensors],
            [s.shape for s in self.case.program._packing.signature],
        )

    def test_a_trial_that_diverges_ends_alone_in_any_slice(self):
        found = {}
        for slice_seconds in (0.0, 5.0):
            with mock.patch.object(runners, "SLICE_SECONDS", slice_seconds):
                jobs = [self.job(0, None, 40, rate=1e12), self.job(4, None, 40)]
                bad, good = self.runner().run(0, jobs, lambda: False)
            (alone,) = self.runner().run(0, jobs[1:], lambda: False)
            self.assertEqual(bad.diverged_step, bad.step)
            self.assertLess(bad.step, 40)
            self.assertEqual(bad.steps_executed, bad.step)
            self.assertIsNone(bad.metrics)
            self.assertEqual((good.step, good.metrics), (40, alone.metrics))
            found[slice_seconds] = bad.state
        self.assertTrue(same_bits(found[0.0], found[5.0]))

    def test_further_splits_are_those_of_the_trial(self):
        jobs = [self.job(t, None, 5) for t in (0, 4)]
        asked = self.runner(splits_at=lambda step, metrics, is_bound: ["train"])
        both = asked.run(0, jobs, lambda: False)
        for job, report in zip(jobs, both, strict=True):
            (alone,) = asked.run(0, [job], lambda: False)
            self.assertEqual(alone.metrics, report.metrics)
            self.assertIn("train/cross_entropy", report.metrics)


class Odd(keras.layers.Layer):
    """A user's layer around a function of (inputs, training)."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def call(self, inputs, training=None):
        return self._function(inputs, training)


def by_branch(inputs, training):
    positive = tf.reduce_mean(inputs) > 0
    return tf.cond(positive, lambda: inputs, lambda: 2.0 * inputs)


def by_loop(inputs, training):
    return tf.map_fn(lambda row: 2.0 * row, inputs)


def by_draws(inputs, training):
    # TensorFlow's rule for it is a loop over lanes.
    seed = tf.cast(inputs[0, :2], tf.int32)
    return inputs + tf.raw_ops.StatelessRandomUniform(shape=[5], seed=seed)


def when_evaluated(inputs, training):
    return inputs if training else inputs + tf.linalg.qr(inputs).q


def listed(read):
    """Returns a layer's function that reads a list of two at places of its own."""

    def function(inputs, training):
        if training:  # The gradient would write there, for which there is no rule.
            return inputs
        pair = tf.TensorArray(tf.float32, 2, clear_after_read=False)
        pair = pair.write(0, inputs).write(1, 2.0 * inputs)
        return read(pair, tf.cast(tf.reduce_mean(inputs) > 0, tf.int32))

    return function


def of(*layers):
    inputs = hidden = keras.Input([8, 8, 1])
    for layer in layers:
        hidden = layer(hidden)
    hidden = keras.layers.Flatten()(hidden)
    return keras.Model(inputs, keras.layers.Dense(10)(hidden))


def odd(function):
    layers = keras.layers
    return of(layers.Flatten(), layers.Dense(5), Odd(function))


class LanesForTest(tf.test.TestCase, parameterized.TestCase):
    def found(self, points=100, **arguments):
        problem = Problem(problems.DIGITS, **arguments)
        network, strategy = problem.task.network(), problems.one_device()
        dataset, size = problem.task.dataset, problem.batch_size
        return most_lanes(network, dataset, size, points, strategy)

    def test_most_lanes_are_no_power_of_two_and_no_more_than_points(self):
        for count, lanes in ((1, 1), (2, 1), (3, 3), (8, 7), (15, 15), (100, 15)):
            self.assertEqual(self.found(count), lanes)

    def test_large_batches_networks_and_data_have_one_lane(self):
        self.assertEqual(self.found(batch_size=1 << 20), 1)
        self.assertEqual(self.found(batch_size=4, arguments={"widths": (2048,)}), 1)
        with mock.patch.object(programs, "_MOST_DATA", 1000):
            self.assertEqual(self.found(), 1)

    @parameterized.named_parameters(
        ("branch", lambda: odd(by_branch), "If"),
        ("loop", lambda: odd(by_loop), "While"),
        ("draws", lambda: odd(by_draws), "StatelessRandomUniform"),
        ("when evaluated", lambda: odd(when_evaluated), "Qr"),
        (
            "item of a list",
            lambda: odd(listed(lambda pair, place: pair.read(place))),
            "TensorListGetItem",
        ),
        (
            "items of a list",
            lambda: odd(listed(lambda pair, place: pair.gather([place])[0])),
            "TensorListGather",
        ),
        ("convolution", lambda: of(keras.layers.Conv2D(3, 3)), "Conv2D"),
        (
            "recurrent",
            lambda: of(keras.layers.Reshape([8, 8]), keras.layers.SimpleRNN(4)),
            "While",
        ),
    )
    def test_an_operation_without_a_form_in_lanes_is_named(self, build, name):
        with self.assertRaises(NoLanes) as caught:
            Case(build=build)
        self.assertIn(name, caught.exception.what)

    def test_a_list_is_read_at_a_place_that_lanes_share(self):
        read = listed(lambda pair, place: pair.read(1) + pair.gather([0, 1])[0])
        self.assertEqual(Case(build=lambda: odd(read)).program.lanes, LANES)

    def test_an_optimizer_without_a_form_in_lanes_is_named(self):
        with self.assertRaisesRegex(NoLanes, "Qr|If"):
            Case(optimizer="soap")
