"""Updates are those of TensorFlow 1, whatever changes between steps."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import optim
from dps_tf._keras import keras
from dps_tf.core import UserError

POINTS = {
    "sgd": {"learning_rate": 0.05},
    "momentum": {"learning_rate": 0.05, "momentum": 0.8},
    "nesterov": {"learning_rate": 0.05, "momentum": 0.8},
    "adam": {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-6},
}
STOCK = tuple(POINTS)
"""Those that Keras has as well."""
POINTS |= {
    name: {"learning_rate": 0.05}
    for name in optim.OPTIMIZERS.names()
    if name not in STOCK
}
LINEAR = {"decay_steps": 5, "end_learning_rate_factor": 0.1}


def stock(name: str) -> keras.optimizers.Optimizer:
    if name == "adam":
        return keras.optimizers.Adam(**POINTS[name])
    return keras.optimizers.SGD(**POINTS[name], nesterov=name == "nesterov")


def ready(name: str, schedule: str = "constant", **point: float):
    optimizer = optim.TensorOptimizer(name, schedule)
    extra = LINEAR if schedule == "linear" else {}
    optimizer.set_metaparameters({**POINTS[name], **extra, **point})
    return optimizer


def rate_at(optimizer: optim.TensorOptimizer, step: int) -> tf.Tensor:
    """Returns the rate of the update from a step."""
    return optimizer.rule.rate(optimizer.metaparameters, tf.constant(step, tf.int64))


def trained(optimizer, steps: int = 12) -> list[np.ndarray]:
    """Weights after `steps` updates of a small regression, from one initial point."""
    generator = np.random.default_rng(0)
    inputs = tf.constant(generator.normal(size=(8, 3)), tf.float32)
    kernel = tf.Variable(generator.normal(size=(3, 2)), dtype=tf.float32)
    bias = tf.Variable(tf.zeros([2]))
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(inputs @ kernel + bias) - 0.3))
        gradients = tape.gradient(loss, [kernel, bias])
        optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))
    return [kernel.numpy(), bias.numpy()]


def naive_momentum(gradients, rates, momentum, nesterov) -> float:
    """TensorFlow 1 momentum of one number, from the formula, in float64."""
    x, v = 0.0, 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        v = momentum * v + gradient
        x -= rate * (gradient + momentum * v if nesterov else v)
    return x


class UpdateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*STOCK)
    def test_equals_stock_keras_at_constant_rate(self, name):
        self.assertAllClose(trained(ready(name)), trained(stock(name)), rtol=1e-6)

    def test_momentum_under_decay_is_tensorflow_1_and_not_keras(self):
        """papers.md example: f = x^2 / 2 from x = 1 gives 0.732, Keras's SGD 0.499."""

        def run(optimizer):
            x = tf.Variable(1.0)
            for rate in (0.1, 0.05, 0.02, 0.01):
                optimizer.learning_rate = rate
                optimizer.apply_gradients([(tf.identity(x), x)])
            return float(x)

        momentum = optim.TensorOptimizer("momentum")
        momentum.set_metaparameters({"learning_rate": 1.0})
        self.assertAlmostEqual(run(momentum), 0.732, places=3)
        self.assertAlmostEqual(run(keras.optimizers.SGD(1.0, 0.9)), 0.499, places=3)

    @parameterized.parameters("momentum", "nesterov")
    def test_momentum_under_linear_decay_equals_the_formula(self, name):
        gradients = np.random.default_rng(3).normal(size=9)
        optimizer, x = ready(name, "linear"), tf.Variable(0.0)
        for gradient in gradients:
            optimizer.apply_gradients([(tf.constant(gradient, tf.float32), x)])
        rates = [0.05 * (1 - 0.9 * min(t, 5) / 5) for t in range(9)]
        expected = naive_momentum(gradients, rates, 0.8, name == "nesterov")
        self.assertAllClose(float(x), expected, rtol=1e-6)

    def test_slots_come_slot_by_slot_and_start_at_zero(self):
        optimizer = ready("adam")
        variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
        self.assertEqual(optimizer.slots, [])
        optimizer.build(variables)
        self.assertEqual([tuple(s.shape) for s in optimizer.slots], [(2,), ()] * 2)
        optimizer.apply_gradients([(tf.ones([2]), variables[0])])
        first_moment, untouched, second_moment, _ = (s.numpy() for s in optimizer.slots)
        self.assertAllClose(first_moment, [0.2, 0.2])
        self.assertAllClose(second_moment, [0.05, 0.05])
        self.assertEqual(untouched, 0.0)

    def test_gradient_of_an_embedding_is_applied_as_a_dense_one(self):
        table = tf.Variable(tf.ones([4, 2]))
        dense = tf.Variable(tf.ones([4, 2]))
        one, other = ready("momentum"), ready("momentum")
        for rows in ([0, 0, 3], [1, 2, 3]):
            sparse = tf.IndexedSlices(tf.ones([3, 2]), tf.constant(rows), [4, 2])
            one.apply_gradients([(sparse, table)])
            other.apply_gradients([(tf.convert_to_tensor(sparse), dense)])
        self.assertAllEqual(table, dense)

    @parameterized.parameters(
        *((name, "constant") for name in optim.OPTIMIZERS.names()), ("sgd", "linear")
    )
    def test_new_metaparameters_do_not_trace_again(self, name, schedule):
        optimizer = ready(name, schedule)
        variable = tf.Variable([1.0, -2.0])
        optimizer.build([variable])
        traces = []

        @tf.function
        def step():
            traces.append(1)
            optimizer.apply_gradients([(2.0 * variable, variable)])

        moves = []
        for rate in (0.05, 0.1):
            optimizer.set_metaparameters(
                {
                    **POINTS[name],
                    "learning_rate": rate,
                    **(LINEAR if schedule == "linear" else {}),
                }
            )
            for state in (variable, optimizer.iterations, *optimizer.slots):
                state.assign(tf.ones_like(state) * (0 if state is not variable else 1))
            step()
            moves.append(1.0 - variable.numpy()[0])
        self.assertLen(traces, 1)
        self.assertAllClose(moves[1], 2 * moves[0], rtol=1e-5)

    @parameterized.parameters(*optim.OPTIMIZERS.names())
    def test_state_restored_from_a_checkpoint_continues_the_same(self, name):
        straight, first = ready(name, "linear"), ready(name, "linear")
        x, y = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
        for _ in range(6):
            straight.apply_gradients([(x**2, x)])
        for _ in range(3):
            first.apply_gradients([(y**2, y)])
        path = tf.train.Checkpoint(o=first, y=y).save(self.get_temp_dir() + "/c")
        second, z = optim.TensorOptimizer(name, "linear"), tf.Variable([0.0, 0.0])
        second.build([z])
        tf.train.Checkpoint(o=second, y=z).restore(path).assert_consumed()
        for _ in range(3):
            second.apply_gradients([(z**2, z)])
        self.assertAllEqual(x, z)


class ScheduleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters((5, 0.1), (1, 0.5), (40, 1e-4), (7, 1.0))
    def test_linear_decay_equals_the_formula_at_every_step(self, decay_steps, factor):
        optimizer = ready(
            "sgd", "linear", decay_steps=decay_steps, end_learning_rate_factor=factor
        )
        for step in range(decay_steps + 5):
            expected = 0.05 * factor
            if step < decay_steps:
                expected = 0.05 - (1 - factor) * 0.05 * step / decay_steps
            self.assertAllClose(rate_at(optimizer, step), expected, rtol=2e-6, msg=step)

    def test_constant_rate_stays_and_keras_sees_it(self):
        optimizer = ready("momentum")
        self.assertAllClose(rate_at(optimizer, 10**6), 0.05)
        self.assertAllClose(optimizer.learning_rate, 0.05)


class MetaparametersTest(tf.test.TestCase, parameterized.TestCase):
    def test_names_are_those_that_optimizer_and_schedule_read(self):
        self.assertEqual(
            list(optim.build("nesterov", "linear").reads),
            ["learning_rate", "decay_steps", "end_learning_rate_factor", "momentum"],
        )

    def test_left_out_default_returns_to_its_default(self):
        optimizer = ready("momentum", momentum=0.5)
        optimizer.set_metaparameters({"learning_rate": 0.1})
        self.assertAllClose(optimizer.metaparameters["momentum"], 0.9)

    @parameterized.parameters(
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9}, "nothing named 'momentum'"),
        ("momentum", {"momentun": 0.9, "learning_rate": 1}, "did you mean 'momentum'"),
        ("momentum", {"momentum": 0.9}, "needs learning_rate: got momentum"),
        ("momentum", {"learning_rate": 0.1, "momentum": 1.0}, r"\[0, 1\), not 1.0"),
        ("sgd", {"learning_rate": -0.1}, ">= 0, not -0.1"),
        ("sgd", {"learning_rate": float("nan")}, "not nan"),
        ("sgd", {"learning_rate": "fast"}, "not 'fast'"),
        ("adam", {"learning_rate": 0.1, "epsilon": 0}, "> 0, not 0"),
    )
    def test_point_that_makes_no_sense_is_refused_whole(self, name, point, message):
        optimizer = ready(name)
        before = {k: float(v) for k, v in optimizer.metaparameters.items()}
        with self.assertRaisesRegex(UserError, message):
            optimizer.set_metaparameters(point)
        after = {k: float(v) for k, v in optimizer.metaparameters.items()}
        self.assertEqual(before, after)

    def test_unset_metaparameters_cannot_pass_for_a_run(self):
        x = tf.Variable(1.0)
        optim.TensorOptimizer("sgd").apply_gradients([(tf.constant(1.0), x)])
        self.assertTrue(np.isnan(x.numpy()))

    @parameterized.parameters(lambda: keras.optimizers.SGD(0.1), keras.optimizers.Adam)
    def test_an_optimizer_of_keras_is_refused_by_name(self, make):
        theirs = make() if isinstance(make, FunctionType) else make
        with self.assertRaisesRegex(UserError, "'theirs' is a (SGD|Adam), and"):
            optim.register("theirs", theirs)

    def test_unknown_names_give_near_matches(self):
        with self.assertRaisesRegex(UserError, "did you mean 'nesterov'"):
            optim.build("nestorov")
        with self.assertRaisesRegex(UserError, "did you mean 'linear'"):
            optim.build("sgd", "liner")


class KerasTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("sgd", "soap", "schedule_free_adamw")
    def test_fit(self, name):
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
        model.compile(ready(name, "linear"), "mse")
        model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
        self.assertEqual(int(model.optimizer.iterations), 2)

    @parameterized.parameters(*optim.OPTIMIZERS.names())
    def test_serialization(self, name):
        optimizer = ready(name, "linear")
        again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        self.assertIs(type(again), type(optimizer))
        self.assertEqual(again.rule.rule, optimizer.rule.rule)
        self.assertEqual(again.rule.schedule, "linear")


class StrategyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("sgd", "adam", "muon", "soap", "schedule_free_adamw")
    def test_two_replicas_give_the_weights_of_one_device(self, name):
        devices = tf.config.list_logical_devices("CPU")
        if len(devices) < 2:
            self.skipTest("needs two virtual CPU devices")
        generator = np.random.default_rng(0)
        # Other examples at every step: where a gradient repeats itself, SOAP divides
        # rounding errors by their own size.
        inputs = generator.normal(size=(8, 8, 3)).astype(np.float32)
        start = generator.normal(size=(3, 3)).astype(np.float32)

        def weights(strategy):
            with strategy.scope():
                kernel = tf.Variable(start)
                optimizer = ready(name, "linear")
                optimizer.build([kernel])
            share = 8 // strategy.num_replicas_in_sync

            def replica(index, step):
                mine = tf.constant(inputs)[step, index * share : (index + 1) * share]
                with tf.GradientTape() as tape:
                    outputs = tf.tanh(mine @ kernel)
                    loss = tf.reduce_sum(tf.square(outputs - 0.3)) / 8
                gradients = tape.gradient(loss, [kernel])
                optimizer.apply_gradients(zip(gradients, [kernel], strict=True))

            @tf.function
            def train():
                for step in tf.range(8):
                    strategy.run(
                        replica,
                        [
                            strategy.experimental_distribute_values_from_function(
                                lambda c: tf.constant(c.replica_id_in_sync_group)
                            ),
                            step,
                        ],
                    )

            train()
            return kernel.numpy()

        mirrored = tf.distribute.MirroredStrategy([d.name for d in devices[:2]])
        self.assertAllClose(
            weights(mirrored),
            weights(tf.distribute.get_strategy()),
            # Eigenvectors and polynomials of matrices enlarge what rounding leaves.
            rtol=1e-6 if name in STOCK else 1e-4,
            atol=1e-6,
        )
