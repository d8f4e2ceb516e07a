"""Keras `fit` on the same problem: default settings, tf.data input, no evaluation.

Its progress bar is one of the defaults, and dear at small batches: for it every step
waits for the loss of the one before. `silent` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from dps_tf import models
from dps_tf._keras import keras
from tests.benchmarks import problem


class KerasFit:
    """One trial, its threads left to TensorFlow."""

    slots = 1

    def __init__(self, batch_size: int, silent: bool = False):
        self._verbose = 0 if silent else "auto"
        inputs, labels = problem.examples()
        self._model = models.build("simple_cnn", problem.SHAPE, problem.CLASSES)
        self._model.compile(
            keras.optimizers.SGD(problem.LEARNING_RATE),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        self._steps = 4 * problem.steps_per_turn(batch_size)
        self._data = (
            tf.data.Dataset.from_tensor_slices((inputs, labels))
            .shuffle(10_000)
            .repeat()
            .batch(batch_size, drop_remainder=True)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _fit(self, steps: int) -> None:
        self._model.fit(self._data, steps_per_epoch=steps, verbose=self._verbose)

    def turns(self, slot: int, more: Callable[[], bool]) -> int:
        """Trains while there is `more` time; returns steps."""
        del slot
        done = 0
        while more():
            self._fit(self._steps)
            done += self._steps
        return done

    def warm_up(self) -> None:
        """Traces the training function."""
        self._fit(4)
