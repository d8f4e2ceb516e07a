"""Trains the network of a reference file as the file says, by a plain loop.

The package's models, losses, optimizers and schedules; nothing else of its training.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dps_tf import models, optim
from dps_tf.objectives import losses
from tests.parity.golden import Golden


class Replay:
    """A masked network and its optimizer, at the point that a file starts from.

    The variables hold masked tensors and gradients are masked too, so an update equals
    that of the unmasked tensors through the mask; `unmasked()` gives those back.
    """

    def __init__(self, truth: Golden):
        self.truth = truth
        self.masks = [tf.constant(m, tf.float32) for m in truth.tensors("mask")]
        self.model = models.build(truth.network, truth.inputs.shape[1:], truth.classes)
        self.variables = self.model.trainable_variables
        self.set_unmasked(truth.tensors("init"))
        self.optimizer = self._optimizer()
        self.update = tf.function(self._update)
        self.loss_and_gradients = tf.function(self._loss_and_gradients)

    def _optimizer(self) -> optim.TensorOptimizer:
        config = self.truth.config
        optimizer = optim.TensorOptimizer(config["optimizer"], config["decay"])
        read = [name for name in optimizer.metaparameters if name in config]
        optimizer.set_metaparameters({name: float(config[name]) for name in read})
        optimizer.build(self.variables)
        return optimizer

    def set_unmasked(self, tensors: list[np.ndarray]) -> None:
        """Makes `tensors` the unmasked ones."""
        self._pruned = []
        for variable, mask, value in zip(
            self.variables, self.masks, tensors, strict=True
        ):
            variable.assign(value * mask)
            self._pruned.append(value * (1.0 - mask))

    def unmasked(self) -> list[np.ndarray]:
        """Returns the unmasked tensors: where the mask is zero, those set before."""
        return [
            (variable + pruned).numpy()
            for variable, pruned in zip(self.variables, self._pruned, strict=True)
        ]

    def _loss_and_gradients(self, inputs: tf.Tensor, labels: tf.Tensor):
        with tf.GradientTape() as tape:
            logits = self.model(inputs, training=True)
            loss = tf.reduce_mean(losses.cross_entropy(labels, logits))
        gradients = tape.gradient(loss, self.variables)
        return loss, [g * m for g, m in zip(gradients, self.masks, strict=True)]

    def _update(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = self._loss_and_gradients(inputs, labels)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def train(self, steps: int) -> list[float]:
        """Returns the loss of each of the next `steps` batches before its update."""
        size, count = int(self.truth.config["batch"]), len(self.truth.labels)
        found = []
        for _ in range(steps):
            step = int(self.optimizer.iterations)
            rows = np.arange(step * size, (step + 1) * size) % count
            batch = self.truth.inputs[rows], self.truth.labels[rows]
            found.append(float(self.update(*map(tf.constant, batch))))
        return found

    def evaluate(self, inputs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Returns mean cross-entropy and accuracy."""
        logits = self.model(inputs, training=False)
        loss = tf.reduce_mean(losses.cross_entropy(labels, logits))
        right = tf.logical_not(losses.wrong(labels, logits))
        return float(loss), float(np.mean(right))
