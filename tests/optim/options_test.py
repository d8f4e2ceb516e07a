"""Options of all: decay, clipping, averages, warm-up, shares of the step budget."""

from __future__ import annotations

import numpy as np
import optax
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import optim
from dps_tf.core import Space, UserError
from tests.made_up.specifications import workload
from tests.optim.rules_test import drawn

NAMES = optim.OPTIMIZERS.names()
RATE = {"learning_rate": 0.05}


def run(name: str, gradients, start, **point: float):
    """Returns (optimizer, list of the weights after every update)."""
    given = {**RATE, **point}
    optimizer = optim.TensorOptimizer(name, "constant", given, 100)
    optimizer.set_metaparameters(given)
    variables = [tf.Variable(w, dtype=tf.float32) for w in start]
    optimizer.build(variables)
    seen = []
    for each in zip(*gradients, strict=True):
        pairs = zip((tf.constant(g, tf.float32) for g in each), variables, strict=True)
        optimizer.apply_gradients(list(pairs))
        seen.append([v.numpy() for v in variables])
    return optimizer, seen


class WeightDecayTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("sgd", "momentum", "nesterov", "adam", "soap")
    def test_is_decoupled_and_uses_the_rate_of_the_step(self, name):
        """Without gradients the weights shrink by 1 - rate decay at every update."""
        start, gradients = drawn((2, 3))
        _, seen = run(name, [0 * gradients], [start], weight_decay=0.3)
        factor = (1 - 0.05 * 0.3) ** len(seen)
        self.assertAllClose(seen[-1][0], start * factor, rtol=1e-5)

    @parameterized.parameters(*NAMES)
    def test_of_zero_changes_nothing(self, name):
        start, gradients = drawn((2, 3))
        _, without = run(name, [gradients], [start], **self.zero(name))
        _, with_zero = run(name, [gradients], [start], weight_decay=0.0)
        self.assertAllClose(without[-1][0], with_zero[-1][0], rtol=1e-6)

    def zero(self, name):
        own = optim.OPTIMIZERS[name].reads
        return {"weight_decay": 0.0} if "weight_decay" in own else {}


class ClippingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*NAMES)
    def test_scales_all_gradients_together(self, name):
        (kernel, one), (bias, other) = drawn((2, 3)), drawn((3,), seed=1)
        clip, clipped = optax.clip_by_global_norm(1.5), []
        for pair in zip(one, other, strict=True):
            each = tuple(gradient.astype(np.float32) for gradient in pair)
            clipped.append(clip.update(each, clip.init(each))[0])
        theirs = [np.stack(column) for column in zip(*clipped, strict=True)]
        _, expected = run(name, theirs, [kernel, bias])
        _, seen = run(name, [one, other], [kernel, bias], clip_norm=1.5)
        for mine, wanted in zip(seen[-1], expected[-1], strict=True):
            self.assertAllClose(mine, wanted, rtol=1e-4, atol=1e-6)

    def test_leaves_short_gradients_alone(self):
        start, gradients = drawn((2, 3))
        _, free = run("sgd", [gradients], [start])
        _, bounded = run("sgd", [gradients], [start], clip_norm=1e6)
        self.assertAllEqual(free[-1][0], bounded[-1][0])


class AveragesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *(n for n in NAMES if "averages" not in optim.OPTIMIZERS[n].slots)
    )
    def test_are_those_of_the_weights_so_far(self, name):
        start, gradients = drawn((2, 3))
        optimizer, seen = run(name, [gradients], [start], averaging_decay=0.7)
        _, plain = run(name, [gradients], [start])
        self.assertAllEqual(seen[-1][0], plain[-1][0])
        weights = 0.3 * 0.7 ** np.arange(len(seen))[::-1]
        mean = np.einsum("t,tij->ij", weights, [w for (w,) in seen]) / weights.sum()
        self.assertAllClose(optimizer.averaged_weights()[0], mean, rtol=1e-5, atol=1e-6)

    @parameterized.parameters("schedule_free_sgd", "schedule_free_adamw")
    def test_of_averages_are_refused(self, name):
        with self.assertRaisesRegex(UserError, "nothing named 'averaging_decay'"):
            run(name, [np.zeros((1, 2))], [np.zeros(2)], averaging_decay=0.9)

    def test_an_option_that_no_point_names_costs_no_slot(self):
        optimizer, _ = run("sgd", [np.zeros((1, 2))], [np.zeros(2)])
        self.assertEqual(optimizer.slots, [])
        self.assertFalse(optimizer.rule.averages_weights)
        self.assertEqual(list(optimizer.metaparameters), ["learning_rate"])


class DelayTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(name=["sgd", "momentum", "lamb", "muon"], delay=[1, 3])
    def test_applies_the_gradients_of_so_many_updates_before(self, name, delay):
        start, gradients = drawn((2, 3))
        late = np.concatenate([np.zeros((delay, 2, 3)), gradients[:-delay]])
        _, expected = run(name, [late], [start])
        given = {**RATE, "delay": delay}
        optimizer = optim.TensorOptimizer(name, "constant", given, delay=delay)
        optimizer.set_metaparameters(given)
        variable = tf.Variable(start, dtype=tf.float32)
        optimizer.build([variable])
        for gradient, wanted in zip(gradients, expected, strict=True):
            optimizer.apply_gradients([(tf.constant(gradient, tf.float32), variable)])
            self.assertAllClose(variable, wanted[0], rtol=1e-6)

    def test_on_a_quadratic_is_the_recursion_of_stich(self):
        """x(t + 1) = x(t) - rate x(t - tau), no step before the first is known."""
        tau, rate, found = 2, 0.3, [1.0]
        for t in range(12):
            found.append(found[-1] - (rate * found[t - tau] if t >= tau else 0.0))
        optimizer = optim.TensorOptimizer("sgd", "constant", ["delay"], delay=tau)
        optimizer.set_metaparameters({"learning_rate": rate, "delay": tau})
        x = tf.Variable(1.0)
        optimizer.build([x])
        for wanted in found[1:]:
            optimizer.apply_gradients([(tf.identity(x), x)])
            self.assertAllClose(x, wanted, rtol=1e-5, atol=1e-6)

    def test_another_delay_than_it_was_built_for_is_refused(self):
        optimizer = optim.build("sgd", "constant", ["delay"], delay=2)
        with self.assertRaisesRegex(UserError, "was built for 2: fix it"):
            optimizer.values({"learning_rate": 0.1, "delay": 3})


def rates(schedule: str, steps: int, budget: int | None = None, **point: float):
    given = {"learning_rate": 0.4, **point}
    optimizer = optim.build("sgd", schedule, given, budget)
    values = {k: tf.constant(v) for k, v in optimizer.values(given).items()}
    each = (tf.constant(step, tf.int64) for step in range(steps))
    return [float(optimizer.rate(values, step)) for step in each]


class ScheduleTest(tf.test.TestCase, parameterized.TestCase):
    def test_cosine_equals_optax(self):
        theirs = optax.cosine_decay_schedule(0.4, 20, 0.1)
        ours = rates("cosine", 30, decay_steps=20, end_learning_rate_factor=0.1)
        self.assertAllClose(ours, [theirs(t) for t in range(30)], rtol=1e-5)

    @parameterized.parameters("constant", "cosine", "linear")
    def test_warm_up_comes_before_the_schedule(self, schedule):
        decay = {}
        if schedule != "constant":
            decay = {"decay_steps": 20, "end_learning_rate_factor": 0.1}
        ours = rates(schedule, 40, warmup_steps=8, **decay)
        plain = rates(schedule, 40, **decay)
        ramp = [0.4 * (t + 1) / 8 for t in range(8)]
        self.assertAllClose(ours, [*ramp, *plain[:32]], rtol=1e-6)

    def test_warm_up_of_no_steps_is_none(self):
        self.assertAllClose(rates("constant", 5, warmup_steps=0), [0.4] * 5)

    def test_inverse_square_root_is_that_of_vaswani(self):
        ours = rates("inverse_square_root", 60, warmup_steps=16)
        steps = np.arange(1, 61)
        expected = np.minimum(steps**-0.5, steps * 16**-1.5) * 0.4 * 4
        self.assertAllClose(ours, expected, rtol=1e-5)
        self.assertAllClose(max(ours), 0.4, rtol=1e-6)

    def test_warm_up_stable_decay_has_three_parts(self):
        ours = rates(
            "warmup_stable_decay", 40, warmup_steps=4, stable_steps=10, decay_steps=20
        )
        expected = [0.1, 0.2, 0.3, 0.4, *[0.4] * 10]
        expected += [0.4 * (1 - t / 20) for t in range(20)] + [0.0] * 6
        self.assertAllClose(ours, expected, rtol=1e-5, atol=1e-7)

    def test_lengths_may_be_shares_of_the_budget(self):
        ours = rates("cosine", 60, 50, decay_share=0.6, warmup_share=0.1)
        self.assertAllClose(ours, rates("cosine", 60, decay_steps=30, warmup_steps=5))

    @parameterized.parameters(
        ({"decay_share": 1.5}, 50, r"decay_share of .* must be a number in \[0, 1\]"),
        ({"decay_share": 0.5}, None, "a share of a step budget, and none is given"),
        ({"decay_share": 0.5, "decay_steps": 3}, 50, "give one of them"),
        ({}, 50, "needs decay_steps"),
        ({"decay_steps": 5, "stable_share": 0.1}, 50, "nothing named 'stable_share'"),
    )
    def test_lengths_without_meaning_are_refused(self, point, budget, message):
        with self.assertRaisesRegex(UserError, message):
            rates("cosine", 1, budget, **point)


class DefaultSpaceTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*NAMES)
    def test_is_read_by_its_optimizer(self, name):
        space = Space.from_dict(optim.default_space(name))
        found = workload(optimizer=name, space=space)
        found.check_metaparameters(optim.reads(name))
        optimizer = optim.build(name, "constant", space.names)
        for u in (0.0, 0.5, 1.0):
            optimizer.values(space.from_unit([u] * len(space.names)))

    def test_an_optimizer_without_one_is_refused(self):
        optim.register("no_space_for_test", optim.OPTIMIZERS["sgd"])
        with self.assertRaisesRegex(UserError, "bind workload.space"):
            optim.default_space("no_space_for_test")
