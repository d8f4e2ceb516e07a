"""Data that are streamed give the results of data on the device."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.analysis.sweep_status import CellStatus
from dps_tf.core import Goal, Job, Pruning, TrialState, TurnReport
from dps_tf.data import Dataset, Examples, MappedRows
from dps_tf.probing import ExampleGradients
from dps_tf.sparsity import MaskRequest, masks_for
from dps_tf.store import StudyHistory, report_event
from dps_tf.training import (
    Program,
    StreamedData,
    TrainingRunner,
    device_data,
    evaluation,
    streamed_data,
)
from dps_tf.training.streamed_data import ExampleStream, data_wait
from tests.training import problems
from tests.training.noted_rows import NotedRows
from tests.training.problems import PROBLEMS, Problem, error_of, same_bits, shared

ERROR = "validation/classification_error"
GOAL = Goal(ERROR, 0.15)
MLP = PROBLEMS["mlp"]


def streamed(
    problem: Problem,
    strategy: tf.distribute.Strategy | None = None,
    piece_bytes: int = 2_000,
    **arguments,
) -> Program:
    """A program whose slices and evaluations take several pieces."""
    strategy = strategy or problems.one_device()
    with (
        mock.patch.object(streamed_data, "PIECE_BYTES", piece_bytes),
        mock.patch.object(device_data, "BATCH_SIZE", 8),
        mock.patch.object(evaluation, "GOAL_BATCH_SIZE", 9),
    ):
        data = StreamedData(problem.dataset, strategy)
        return Program(problem.task, data, problem.batch_size, **arguments)


def held(
    problem: Problem, strategy: tf.distribute.Strategy | None = None, **arguments
) -> Program:
    """The same on the device."""
    with (
        mock.patch.object(device_data, "BATCH_SIZE", 8),
        mock.patch.object(evaluation, "GOAL_BATCH_SIZE", 9),
    ):
        return problem.program(strategy, **arguments)


def trained(problem: Problem, program: Program) -> tuple:
    """Trains 26 steps, in slices of 13; evaluates before and between.

    Returns the first evaluation, losses, the other evaluations, and the last state.
    """
    problem.begin(program)
    return program.evaluate(), *problem.curve(program, 26, 13), program.read()


@functools.cache
def on_the_device(problem: Problem, **arguments) -> tuple:
    """Trained once for all that is compared with it."""
    return trained(problem, held(problem, **arguments))


@functools.cache
def on_pieces(name: str, piece_bytes: int = 2_000) -> Program:
    """Returns a program of streamed data that several tests share."""
    return streamed(PROBLEMS[name], piece_bytes=piece_bytes)


class BitsTestCase(tf.test.TestCase, parameterized.TestCase):
    def assert_same(self, problem: Problem, other: Program, **arguments) -> None:
        """Trains a program, and compares with data on the device."""
        *curve, state = on_the_device(problem, **arguments)
        *found, last = trained(problem, other)
        self.assertEqual(curve, found)
        self.assertTrue(same_bits(state, last))
        self.assertEqual(other.traces, 1)


class OneDeviceTest(BitsTestCase):
    @parameterized.parameters(
        *((name, 2_000) for name in PROBLEMS), ("mlp", 1), ("mlp", 1 << 24)
    )
    def test_bits_are_those_of_data_on_the_device(self, name, piece_bytes):
        self.assert_same(PROBLEMS[name], on_pieces(name, piece_bytes))

    @parameterized.parameters(
        ("mlp", GOAL), ("sequences", Goal("validation/accuracy", 0.5, "maximize"))
    )
    def test_bits_of_evaluations_that_stop_at_the_goal(self, name, goal):
        """Its state says what was wrong the last time, and decides what comes first."""
        problem = PROBLEMS[name]
        self.assert_same(problem, streamed(problem, goal=goal), goal=goal)
        first, _, others, _ = on_the_device(problem, goal=goal)
        self.assertEqual({e.is_bound for e in (first, *others)}, {False, True})

    def test_whole_slice_under_xla_in_few_shapes(self):
        """Of four pieces of two steps for five, the last only fills up."""
        arguments = {"jit_compile": True, "goal": GOAL}
        program = streamed(MLP, piece_bytes=8 * 576, **arguments)
        device, found = held(MLP, **arguments), []
        with mock.patch.object(program, "_run", wraps=program._run) as run:
            for each, slices in ((program, (5, 11)), (device, (5, 5, 6))):
                MLP.begin(each)
                advances, step = [], 0
                for steps in slices:
                    step += steps
                    rows = MLP.order(step - steps, steps)
                    advances.append(each.advance(rows, evaluates=step in (5, 16)))
                ends = advances[0], advances[-1]
                found.append([(at.loss, at.evaluation) for at in ends])
        self.assertEqual(*found)
        self.assertGreater(found[0][0][0], 0)
        self.assertTrue(same_bits(program.read(), device.read()))
        shapes = {call.args[-2].shape for call in run.call_args_list}
        self.assertEqual(shapes, {(2, 16, 8)})

    def test_stopped_in_the_middle_and_resumed_by_another_program(self):
        first, second = on_pieces("mlp"), on_pieces("mlp", 1)
        MLP.begin(first)
        first.advance(MLP.order(0, 10))
        second.load(first.read(), MLP.point)
        MLP.begin(first)
        first.advance(MLP.order(0, 33))
        for begin, steps in ((10, 1), (11, 5), (16, 17)):
            second.advance(MLP.order(begin, steps))
        self.assertTrue(same_bits(first.read(), second.read()))

    @parameterized.parameters(1, 2_000, 1 << 24)
    def test_loss_that_is_not_finite_ends_the_slice(self, piece_bytes):
        found = []
        for program in (shared(MLP), on_pieces("mlp", piece_bytes)):
            MLP.begin(program, learning_rate=1e12)
            advance = program.advance(MLP.order(0, 200))
            self.assertTrue(advance.diverged)
            found.append((advance.steps, program.read()))
        self.assertEqual(found[0][0], found[1][0])
        self.assertTrue(same_bits(found[0][1], found[1][1]))


def mapped(dataset: Dataset, folder: str) -> Dataset:
    """The same data set in files of another order, read by way of an index."""

    def through_file(array: np.ndarray, name: str) -> np.ndarray:
        order = np.random.default_rng(0).permutation(len(array))
        np.save(f"{folder}/{name}.npy", array[order] / 2)
        file = np.load(f"{folder}/{name}.npy", mmap_mode="r")
        return MappedRows(file, np.argsort(order), lambda rows: rows * 2)

    def split(examples: Examples, name: str) -> Examples:
        return Examples(through_file(examples.inputs, name), examples.labels)

    return dataclasses.replace(
        dataset,
        train=split(dataset.train, "train"),
        validation=split(dataset.validation, "validation"),
    )


class MappedTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.dataset = mapped(problems.BLOBS, self.get_temp_dir())

    def test_training_and_evaluation(self):
        problem = dataclasses.replace(MLP, dataset=self.dataset)
        found = []
        for program in (on_pieces("mlp"), held(problem), streamed(problem)):
            MLP.begin(program)
            found.append(MLP.curve(program, 10, 5))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])

    def test_gradients_that_are_measured(self):
        network = MLP.task.network
        weights = models.initial_point(network(), 3)
        one, other = (
            ExampleGradients(network, dataset.train, batch_size=40, threads=1).at(
                weights
            )
            for dataset in (problems.BLOBS, self.dataset)
        )
        self.assertEqual(one.batch_square, other.batch_square)
        for ours, theirs in zip(one.values, other.values, strict=True):
            self.assertAllEqual(ours, theirs)

    @parameterized.parameters(
        ("snip", 0), ("snip", 130), ("grasp", 80), ("iterative_snip", 70)
    )
    def test_scores_of_pruning(self, method, examples):
        network = MLP.task.network()
        initial = models.initial_point(network, 3)
        asked = method, 0.6, Pruning(examples=examples), {}
        one, other = (
            masks_for(MaskRequest(network, initial, data, *asked))
            for data in (problems.BLOBS, self.dataset)
        )
        self.assertEqual(one.examples, other.examples)
        for ours, theirs in zip(one.masks, other.masks, strict=True):
            self.assertAllEqual(ours, theirs)


class StreamTest(tf.test.TestCase, parameterized.TestCase):
    def test_pieces_follow_the_indices_and_padding_is_marked(self):
        examples = problems.BLOBS.train
        stream = ExampleStream(
            examples, problems.one_device(), 4, most_steps=3, with_valid=True
        )
        rows = np.random.default_rng(0).integers(-1, len(examples), (8, 4))
        found = list(stream.pieces(rows))
        self.assertEqual([steps for steps, _ in found], [3, 3, 2])
        inputs, labels, valid = (
            np.concatenate(parts)
            for parts in zip(*(values for _, values in found), strict=True)
        )
        self.assertAllEqual(valid, rows >= 0)
        self.assertAllEqual(inputs[valid], examples.inputs[rows[valid]])
        self.assertAllEqual(labels[valid], examples.labels[rows[valid]])

    @parameterized.parameters((1, 1), (575, 1), (576, 1), (1_152, 2), (9_999, 16))
    def test_piece_is_a_power_of_two_of_steps_within_its_bytes(self, limit, steps):
        # 16 examples of eight float32 and an int32 label are 576 bytes.
        with mock.patch.object(streamed_data, "PIECE_BYTES", limit):
            stream = ExampleStream(problems.BLOBS.train, problems.one_device(), 16)
        self.assertEqual(stream.most_steps, steps)

    def test_only_a_few_pieces_are_gathered_ahead(self):
        gathered = NotedRows(problems.BLOBS.train.inputs)
        examples = Examples(gathered, problems.BLOBS.train.labels)
        stream = ExampleStream(examples, problems.one_device(), 2, most_steps=1)
        pieces = stream.pieces(np.arange(200, dtype=np.int32).reshape(100, 2))
        for _ in range(10):
            next(pieces)
        for _ in range(1000):  # of 10 ms: threads gather while nothing is asked for
            if len(gathered.asked) > 10:
                break
            time.sleep(0.01)
        pieces.close()
        ahead = streamed_data.AHEAD + streamed_data.gathers()
        self.assertBetween(len(gathered.asked), 11, 10 + ahead + 1)


class WaitingTest(tf.test.TestCase):
    @staticmethod
    @functools.cache
    def slow(split: str, **arguments) -> Program:
        """A program, begun, that reads each piece of a split in 0.2 s or more."""

        class Slow(NotedRows):
            def __getitem__(self, rows):
                time.sleep(0.2)
                return super().__getitem__(rows)

        examples = getattr(MLP.dataset, split)
        examples = Examples(Slow(examples.inputs), examples.labels)
        dataset = dataclasses.replace(MLP.dataset, **{split: examples})
        program = streamed(
            dataclasses.replace(MLP, dataset=dataset), piece_bytes=1, **arguments
        )
        MLP.begin(program)
        return program

    def waited(self, do: Callable[[], object], pieces: int) -> None:
        do()  # traces
        begun, before = time.perf_counter(), data_wait()
        do()
        seconds, waited = time.perf_counter() - begun, data_wait() - before
        # As many pieces are read at a time as there are threads.
        least = 0.2 * -(-pieces // streamed_data.gathers())
        self.assertBetween(waited, 0.8 * least, seconds)

    def test_training_waits_for_data_that_are_slow_to_read(self):
        program = self.slow("train")
        # Each step is a piece.
        self.waited(lambda: program.advance(MLP.order(2, 8)), 8)

    def test_evaluation_waits_for_data_that_are_slow_to_read(self):
        count = len(MLP.dataset.validation)
        self.waited(self.slow("validation").evaluate, -(-count // 8))

    def test_evaluation_up_to_a_goal_waits_too(self):
        # It looks at one batch of nine before all is wrong that may be.
        goal = Goal(ERROR, 0.0)
        self.waited(self.slow("validation", goal=goal).evaluate, 1)

    def test_waiting_is_told_of_the_turn_and_not_of_other_threads(self):
        program, before = self.slow("train"), data_wait()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(program.advance, MLP.order(0, 2)).result()
            self.assertGreater(pool.submit(data_wait).result(), 0.15)
        self.assertEqual(data_wait(), before)

    def test_a_turn_reports_its_own_waiting(self):
        runner = TrainingRunner([self.slow("train")], 11)
        job = Job(trial=0, point=MLP.point, state=None, until=2)
        runner.run(0, [job], lambda: False)
        (report,) = runner.run(0, [job], lambda: False)
        self.assertBetween(report.data_wait, 0.15, report.seconds)

    def test_data_on_the_device_are_never_waited_for(self):
        program = shared(MLP)
        MLP.begin(program)
        before = data_wait()
        program.advance(MLP.order(0, 3))
        program.evaluate()
        self.assertEqual(data_wait(), before)

    def test_the_share_goes_from_turns_to_the_log_and_the_status(self):
        history = StudyHistory()
        self.assertEqual(history.data_wait, 0.0)
        for trial, (seconds, wait) in enumerate(((3.0, 1.5), (1.0, 0.5), (4.0, 0.0))):
            state = TrialState(1, ())
            report = TurnReport(trial, state, 1, seconds=seconds, data_wait=wait)
            event = report_event(report)
            # Logs of data on the device are as they were before there was such a field.
            self.assertEqual("data_wait" in event, wait > 0)
            history.add(event)
        self.assertEqual(history.data_wait, 0.25)
        line = CellStatus("cell", outcomes={"running": 1}, data_wait=0.25).line
        self.assertIn("25% of the time waiting for data", line)


class SharesTest(tf.test.TestCase):
    @pytest.mark.multi_device
    def test_replicas_read_what_they_read_of_data_on_the_device(self):
        strategy = problems.mirrored(2)
        stream = ExampleStream(problems.BLOBS.train, strategy, 3)
        rows = np.arange(12, dtype=np.int32).reshape(2, 6)
        read = 0
        # A slice is cut into pieces, so that training waits for the first of them only.
        for steps, (inputs, labels) in stream.pieces(rows):
            piece = rows[read : read + steps]
            for k, (found, found_labels) in enumerate(
                zip(inputs.values, labels.values, strict=True)
            ):
                mine = piece[:, 3 * k : 3 * k + 3]
                self.assertIn(f"CPU:{k}", found.device)
                self.assertAllEqual(found, problems.BLOBS.train.inputs[mine])
                self.assertAllEqual(found_labels, problems.BLOBS.train.labels[mine])
            read += steps
        self.assertEqual(read, 2)


@pytest.mark.multi_device
class MirroredTest(BitsTestCase):
    def test_bits_are_those_of_data_on_the_same_devices(self):
        """Up to a goal, in batches that replicas share unevenly."""
        strategy = problems.mirrored(2)
        program = streamed(MLP, strategy, goal=GOAL)
        self.assert_same(MLP, program, strategy=strategy, goal=GOAL)
        first, _, others, state = on_the_device(MLP, goal=GOAL)
        of_two, _, more, last = on_the_device(MLP, strategy=strategy, goal=GOAL)
        for found, evenly in zip((first, *others), (of_two, *more), strict=True):
            self.assertEqual(error_of(found), error_of(evenly))
            self.assertEqual(found.is_bound, evenly.is_bound)
        self.assertAllEqual(state.arrays[-1], last.arrays[-1])
