"""Optimizers are the published rules, which `rules` has in plain NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from optax.contrib import _muon

from dps_tf import optim
from dps_tf.optim.tensorwise import orthogonalized
from tests.optim import rules

ADAM = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-6}
DECAY = {"weight_decay": 0.1}
POINTS = {
    "adamw": {**ADAM, **DECAY},
    "lion": {"beta_1": 0.8, "beta_2": 0.95, **DECAY},
    "lars": {"momentum": 0.8, "trust_coefficient": 0.02, **DECAY},
    "lamb": {**ADAM, **DECAY},
    "muon": {"momentum": 0.8, **ADAM, **DECAY},
    "soap": {**ADAM, "beta_2": 0.9, "precondition_every": 3},
    "schedule_free_sgd": {"beta_1": 0.8, **DECAY},
    "schedule_free_adamw": {**ADAM, **DECAY},
}
UPDATES = 9
RATES = [0.05 * (1 - 0.9 * min(t, 5) / 5) for t in range(UPDATES)]
LINEAR = {"decay_steps": 5, "end_learning_rate_factor": 0.1}
SHAPES = {"vector": (3,), "matrix": (4, 4), "kernel": (2, 1, 2, 4)}


def built(name: str, variables, **point: float) -> optim.TensorOptimizer:
    """Returns an optimizer whose rates are RATES."""
    given = {"learning_rate": 0.05, **LINEAR}
    optimizer = optim.TensorOptimizer(name, "linear", {**given, **point})
    optimizer.set_metaparameters({**given, **point})
    optimizer.build(variables)
    return optimizer


def drawn(shape, seed: int = 0, updates: int = UPDATES) -> tuple[np.ndarray, ...]:
    """Returns initial weights and the gradients of all updates."""
    normal = np.random.default_rng(seed).normal
    return normal(size=shape), normal(size=(updates, *shape))


def updated(name: str, start, gradients, **point) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights that are trained and those that are evaluated."""
    variable = tf.Variable(start, dtype=tf.float32)
    optimizer = built(name, [variable], **point)

    @tf.function
    def step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    for gradient in gradients:
        step(tf.constant(gradient, tf.float32))
    trained = evaluated = variable.numpy()
    if optimizer.rule.averages_weights:
        evaluated = optimizer.averaged_weights()[0].numpy()
    return trained, evaluated


class PublishedRuleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(name=list(POINTS), shape=list(SHAPES))
    def test_equals_the_formula_in_numpy(self, name, shape):
        start, gradients = drawn(SHAPES[shape])
        trained, evaluated = updated(name, start, gradients, **POINTS[name])
        rule = getattr(rules, name)
        expected = rule(start, gradients, RATES, **POINTS[name])
        self.assertAllClose(trained, expected[0], rtol=1e-5, atol=2e-6)
        self.assertAllClose(evaluated, expected[1], rtol=1e-5, atol=2e-6)
        self.assertGreater(np.abs(expected[0] - start).max(), 1e-3)

    @parameterized.parameters("lars", "lamb")
    def test_a_ratio_of_zero_norms_is_one(self, name):
        point = {n: v for n, v in POINTS[name].items() if n != "weight_decay"}
        zero = np.zeros((2, 2))
        gradients = np.ones((1, 2, 2))
        trained, _ = updated(name, zero, gradients, **point, weight_decay=0.0)
        self.assertAllClose(trained, np.full((2, 2), -0.05), rtol=1e-4)
        still, _ = updated(name, np.ones((2, 2)), 0 * gradients, **POINTS[name])
        self.assertAllEqual(np.isfinite(still), np.ones((2, 2), bool))

    def test_embeddings_are_no_matrices_to_muon(self):
        point, (start, gradients) = POINTS["muon"], drawn((4, 4))
        table = tf.Variable(start, dtype=tf.float32, name="tokens/embeddings")
        optimizer = built("muon", [table], **point)
        for gradient in gradients:
            optimizer.apply_gradients([(tf.constant(gradient, tf.float32), table)])
        adamw = {n: v for n, v in point.items() if n != "momentum"}
        expected, _ = rules.adamw(start, gradients, RATES, **adamw)
        self.assertAllClose(table, expected, rtol=1e-5, atol=2e-6)

    def test_a_long_side_of_a_matrix_is_not_rotated_by_soap(self):
        tall = tf.Variable(tf.zeros([1025, 3]))
        optimizer = built("soap", [tall])
        shapes = [tuple(slot.shape) for slot in optimizer.slots]
        self.assertEqual(shapes, [(1025, 3), (1025, 3), (3, 3), (3, 3)])


FUSED = [name for name in optim.OPTIMIZERS.names() if optim.OPTIMIZERS[name].fused]


class FusedRuleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(name=FUSED, schedule=["constant", "linear"])
    def test_has_the_bits_of_the_rule(self, name, schedule):
        options = {}
        if schedule == "linear":
            options = {"weight_decay": 0.1, "averaging_decay": 0.8, **LINEAR}
        start, gradients = (tf.cast(a, tf.float32) for a in drawn((3, 41), updates=20))

        @tf.function(autograph=False)
        def weights(optimizer, rate):
            given = {"learning_rate": rate, **options}
            values = {n: tf.constant(v) for n, v in optimizer.values(given).items()}

            def update(step, weight, slots):
                named = optimizer.named(slots, [start])
                (weight,), named = optimizer.update(
                    [gradients[step] * weight], named, [weight], values, step
                )
                return step + 1, weight, optimizer.flat(named)

            slots = optimizer.flat(optimizer.init([start]))
            initial = (tf.constant(0, tf.int64), start, slots)
            return tf.while_loop(lambda n, *_: n < 20, update, initial)

        optimizer = optim.build(name, schedule, metaparameters=options)
        fused = dataclasses.replace(optimizer, is_fused=True)
        for rate in (0.03, 1.7):
            for one, other in zip(
                tf.nest.flatten(weights(optimizer, rate)),
                tf.nest.flatten(weights(fused, rate)),
                strict=True,
            ):
                self.assertAllEqual(one, other)
        self.assertNotAllClose(one, start)


class OptaxTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters((3, 7), (9, 2))
    def test_newton_schulz(self, rows, columns):
        matrix = np.random.default_rng(2).normal(size=(rows, columns))
        matrix = matrix.astype(np.float32)
        theirs = _muon.orthogonalize_via_newton_schulz(
            matrix,
            np.array([3.4445, -4.7750, 2.0315]),
            5,
            "frobenius",
            1e-7,
            _muon.MuonDimensionNumbers(),
        )
        ours = orthogonalized(tf.constant(matrix)).numpy()
        self.assertAllClose(ours, theirs, rtol=1e-3, atol=1e-4)
        values = np.linalg.svd(ours, compute_uv=False)
        self.assertBetween(values.min(), 0.3, 1.3)
        self.assertBetween(values.max(), 0.6, 1.3)
