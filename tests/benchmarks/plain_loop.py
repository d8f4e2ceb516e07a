"""The ceiling: training loops of raw operations, without any framework.

Several trials side by side, gathering from the package's permutations. No masks, no
metaparameters as variables, no test for divergence, no state to save.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from dps_tf.core import examples_at
from tests.benchmarks import problem

Step = Callable[[tf.Tensor], tf.Tensor]


def _variables(generator: np.random.Generator) -> list[tf.Variable]:
    """Returns the six variables of simple-cnn on 28 x 28 x 1."""
    shapes = [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (1024, 10), (10,)]
    return [
        tf.Variable(generator.normal(0, 0.03, shape).astype(np.float32))
        for shape in shapes
    ]


def _logits(inputs: tf.Tensor, weights: list[tf.Variable]) -> tf.Tensor:
    x = inputs
    for kernel, bias in (weights[:2], weights[2:4]):
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "VALID"), bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [-1, 1024])
    return tf.nn.bias_add(tf.matmul(x, weights[4]), weights[5])


def _step(inputs: tf.Tensor, labels: tf.Tensor, seed: int, masked: bool) -> Step:
    """Returns a function of a batch's rows that makes one update of a new network."""
    weights = _variables(np.random.default_rng(seed))
    masks = [tf.Variable(tf.ones_like(w)) for w in weights] if masked else []

    def step(rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = _logits(tf.gather(inputs, rows), weights)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.gather(labels, rows), logits
                )
            )
        gradients = tape.gradient(loss, weights)
        if masked:
            gradients = [g * m for g, m in zip(gradients, masks, strict=True)]
        for gradient, variable in zip(gradients, weights, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=problem.LEARNING_RATE, delta=gradient
            )
        return loss

    return step


def _slice(steps: list[Step], scope: str, batch_size: int) -> Callable[..., tf.Tensor]:
    """Returns the compiled loop over batches [steps, trials, batch_size].

    `scope` keeps apart the temporary variables of loops that run at once.
    """

    @tf.function(
        input_signature=[tf.TensorSpec([None, len(steps), batch_size], tf.int32)],
        autograph=False,
    )
    def run(indices: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            del loss
            rows = indices[done]
            with tf.name_scope(scope):
                losses = [step(rows[i]) for i, step in enumerate(steps)]
            return done + 1, tf.add_n(losses) if len(losses) > 1 else losses[0]

        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(
            lambda done, loss: done < tf.shape(indices)[0],
            body,
            start,
            parallel_iterations=1,
        )[1]

    return run


class PlainLoop:
    """Trials side by side: `threads` loops at once, each with `unrolled` trials.

    `masked` multiplies gradients by masks of ones, to see what that costs.
    """

    def __init__(
        self, batch_size: int, threads: int, unrolled: int, masked: bool = False
    ):
        inputs, labels = (tf.constant(array) for array in problem.examples())
        self._threads = threads
        self._unrolled = unrolled
        self._batch_size = batch_size
        self._loops = [
            _slice(
                [
                    _step(inputs, labels, thread * unrolled + trial, masked)
                    for trial in range(unrolled)
                ],
                f"loop_{thread}",
                batch_size,
            )
            for thread in range(threads)
        ]
        self._indices = [self._order(thread) for thread in range(threads)]

    def _order(self, thread: int) -> tf.Tensor:
        steps = problem.steps_per_turn(self._batch_size)
        rows = [
            examples_at(
                0,
                steps,
                thread * self._unrolled + trial,
                problem.TRAIN_EXAMPLES,
                self._batch_size,
            )
            for trial in range(self._unrolled)
        ]
        return tf.constant(np.stack(rows, axis=1))

    def turns(self, slot: int, more: Callable[[], bool]) -> int:
        """Trains in one thread while there is `more` time; returns steps of trials."""
        done = 0
        while more():
            self._loops[slot](self._indices[slot]).numpy()
            done += self._indices[slot].shape[0] * self._unrolled
        return done

    @property
    def slots(self) -> int:
        """How many threads `turns` is called from at once."""
        return self._threads

    def warm_up(self) -> None:
        """Traces every loop and runs a few steps, all at once."""
        with ThreadPoolExecutor(self._threads) as pool:
            list(
                pool.map(
                    lambda slot: self._loops[slot](self._indices[slot][:3]).numpy(),
                    range(self._threads),
                )
            )
