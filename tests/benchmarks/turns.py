"""Microseconds of a turn: `python -m tests.benchmarks.turns [--seconds=3]`.

A turn is one step and an evaluation of 297 examples, as in the quickstart, or a step of
a long slice. Beside it stands a trial's share of a turn of fifteen lanes, and what the
same arithmetic costs in a compiled loop of raw operations, and for the MLP in NumPy.
Candidates take turns, round after round. `turns.csv` beside it is what came out on two
cores of a virtual machine.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import app, flags

from dps_tf import data, models, optim
from dps_tf.core import Job
from dps_tf.training import DeviceData, Program, Task, TrainingRunner
from dps_tf.training import strategy as strategies

_SECONDS = flags.DEFINE_float("seconds", 3.0, "Seconds of a candidate.")
_RATE, _WIDTH = 0.1, 64
_LONG = 32  # steps of a long slice
_LANES = 15
_NETWORKS = {
    "mlp": ("digits", {"widths": (_WIDTH,)}, (8, 64, 512)),
    "mlp_batch_norm": ("digits", {}, (8, 64, 512)),
    "simple_cnn": ("images", {}, (8, 64)),
}


def _images() -> data.Dataset:
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((1200, 28, 28, 1), np.float32)
    labels = generator.integers(0, 10, 1200).astype(np.int32)
    train = data.Examples(inputs[:1000], labels[:1000])
    held = data.Examples(inputs[1000:], labels[1000:])
    return data.Dataset("images", train, held, 10, "", "none")


def _program(network: str, batch_size: int, lanes: int = 1) -> Program:
    name, arguments, _ = _NETWORKS[network]
    dataset = data.load(name) if name == "digits" else _images()
    build = functools.partial(models.build, network, dataset.input_shape, 10)
    task = Task(
        functools.partial(build, **arguments), lambda: optim.build("sgd"), dataset
    )
    placed = DeviceData(dataset, strategies.build("one_device"))
    return Program(task, placed, batch_size, lanes=lanes)


def _turns(network: str, batch_size: int, lanes: int = 1) -> Callable[[], None]:
    """Returns a turn of one of eight groups of trials, as the driver asks for it."""
    runner = TrainingRunner([_program(network, batch_size, lanes)], 0)
    groups = itertools.cycle([range(i * lanes, (i + 1) * lanes) for i in range(8)])
    states: dict = {}

    def turn() -> None:
        jobs = []
        for trial in next(groups):
            state = states.get(trial)
            step = 0 if state is None else state.step
            jobs.append(Job(trial, {"learning_rate": 1e-3}, state, step + 1))
        for report in runner.run(0, jobs, lambda: False):
            states[report.trial] = report.state

    return turn


def _long_slice(network: str, batch_size: int) -> Callable[[], None]:
    program = _program(network, batch_size)
    initial = models.initial_point(program.network, 0)
    program.load(program.fresh_state(initial), {"learning_rate": 1e-3})
    rows = _rows(_LONG, batch_size)
    return lambda: program.advance(rows)


def _rows(steps: int, batch_size: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 1000, (steps, batch_size), np.int32)


def _mlp() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Returns (inputs, labels, weights) of the quickstart's network."""
    train, generator = data.load("digits").train, np.random.default_rng(0)
    inputs = train.inputs.reshape(len(train), -1)
    shapes = [(inputs.shape[1], _WIDTH), (_WIDTH,), (_WIDTH, 10), (10,)]
    weights = [generator.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
    return inputs, train.labels, weights


def _numpy(batch_size: int) -> Callable[[], None]:
    inputs, labels, (w1, b1, w2, b2) = _mlp()
    rows = _rows(_LONG, batch_size)

    def steps() -> None:
        nonlocal w1, b1, w2, b2
        for row in rows:
            x, own = inputs[row], np.arange(batch_size)
            hidden = np.maximum(x @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            exps = np.exp(logits - logits.max(1, keepdims=True))
            error = exps / exps.sum(1, keepdims=True)
            error[own, labels[row]] -= 1
            error /= batch_size
            back = (error @ w2.T) * (hidden > 0)
            w2, b2 = w2 - _RATE * hidden.T @ error, b2 - _RATE * error.sum(0)
            w1, b1 = w1 - _RATE * x.T @ back, b1 - _RATE * back.sum(0)

    return steps


def _raw(batch_size: int) -> Callable[[], None]:
    inputs, labels, initial = _mlp()
    inputs, labels = tf.constant(inputs), tf.constant(labels)

    @tf.function(autograph=False)
    def steps(rows: tf.Tensor, weights: list[tf.Tensor]) -> list[tf.Tensor]:
        def step(i: tf.Tensor, weights: list[tf.Tensor]) -> tuple:
            x, y = tf.gather(inputs, rows[i]), tf.gather(labels, rows[i])
            w1, b1, w2, b2 = weights
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits = tf.nn.relu(x @ w1 + b1) @ w2 + b2
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, weights)
            pairs = zip(weights, gradients, strict=True)
            return i + 1, [w - _RATE * g for w, g in pairs]

        return tf.while_loop(
            lambda i, _: i < _LONG, step, (tf.constant(0), list(weights))
        )[1]

    rows, weights = (
        tf.constant(_rows(_LONG, batch_size)),
        list(map(tf.constant, initial)),
    )
    return lambda: steps(rows, weights)


def _microseconds(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median of each candidate, which take turns of ten calls.

    The first two are not counted: caches still hold the data of other candidates.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + _SECONDS.value * len(candidates)
    while time.perf_counter() < end:
        for name, run in candidates.items():
            own = []
            for _ in range(10):
                begun = time.perf_counter()
                run()
                own.append(time.perf_counter() - begun)
            times[name] += own[2:]
    return {name: 1e6 * statistics.median(own) for name, own in times.items()}


def main(_: list[str]) -> None:
    strategies.configure_threads(1, 2)
    shares = {"turn": 1, "lanes": _LANES, "step": _LONG, "raw": _LONG, "numpy": _LONG}
    print("network,batch_size,turn,turn_in_15_lanes,step_of_32,raw_loop,numpy")
    for network, (_, _, batch_sizes) in _NETWORKS.items():
        for batch_size in batch_sizes:
            own = (network, batch_size)
            candidates = {"turn": _turns(*own), "step": _long_slice(*own)}
            if network != "simple_cnn":
                candidates["lanes"] = _turns(*own, _LANES)
            if network == "mlp":
                candidates["raw"] = _raw(batch_size)
                candidates["numpy"] = _numpy(batch_size)
            for run in candidates.values():
                run()  # traced here
            found = _microseconds(candidates)
            cells = [
                f"{found[name] / share:.0f}" if name in found else ""
                for name, share in shares.items()
            ]
            print(",".join(map(str, [*own, *cells])), flush=True)


if __name__ == "__main__":
    app.run(main)
