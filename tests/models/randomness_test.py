"""Random numbers of a step are a function of seed, step, example and layer."""

from __future__ import annotations

import zlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import stats

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models import StepDraws, check_graph, draws_at_random, seed_layers

layers = keras.layers


def draws(seed=7, step=3, first=0, examples=8) -> StepDraws:
    return StepDraws(
        tf.constant(seed, tf.int64), tf.constant(step, tf.int64), first, examples
    )


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32 with ten rounds, written from the paper (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        one, two = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (two >> 32) ^ c[1] ^ k[0],
            two & 0xFFFFFFFF,
            (one >> 32) ^ c[3] ^ k[1],
            one & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class DrawsTest(tf.test.TestCase, parameterized.TestCase):
    def test_bits_are_those_of_the_published_generator(self):
        """Seed is the key; counts are blocks, then the step, then the draw's name."""
        seed, step = (5 << 32) + 11, 9
        purpose = zlib.crc32(b"layer 0/0") >> 1
        found = draws(seed, step, first=2, examples=2).bits("layer 0", [2, 6])
        for row, example in enumerate((2, 3)):
            expected = []
            for block in range(2):  # six words of an example take two blocks
                count = [example * 2 + block, 0, step, purpose]
                expected += philox(count, [11, 5])
            self.assertAllEqual(
                found[row], np.uint32(expected[:6]).astype(np.int64).astype(np.int32)
            )

    @parameterized.parameters(
        *(
            (shape, width, (i + j) % 2 == 0)
            for i, shape in enumerate([(), (1,), (3,), (5, 2), (4, 4)])
            for j, width in enumerate([8, 16, 32])
        )
    )
    def test_replicas_draw_their_part_of_the_batch(self, shape, width, static):
        def draw(first: int, examples: int):
            asked = [examples, *shape]
            if not static:
                asked = tf.shape(tf.zeros(asked))
            return draws(first=first, examples=examples).bits("x", asked, width)

        whole = tf.function(draw)(0, 8)
        for replicas in (2, 4, 8):
            share = 8 // replicas
            parts = [draw(share * replica, share) for replica in range(replicas)]
            self.assertAllEqual(whole, tf.concat(parts, 0))

    def test_positions_of_sequences_belong_to_their_example(self):
        """As inside TimeDistributed, which folds time into the batch."""
        whole = draws().bits("x", [8 * 3, 5])
        parts = [draws(first=f, examples=4).bits("x", [4 * 3, 5]) for f in (0, 4)]
        self.assertAllEqual(whole, tf.concat(parts, 0))

    @parameterized.parameters(([],), ([3],), ([1, 5],))
    def test_what_has_no_example_is_shared(self, shape):
        one, other = (draws(first=f, examples=4).bits("x", shape) for f in (0, 4))
        self.assertAllEqual(one, other)

    def test_every_argument_decides(self):
        def first(name="x", shape=(8, 64), **changes):
            return draws(**changes).bits(name, shape).numpy()

        found = [
            first(),
            first(seed=8),
            first(seed=7 + (1 << 40)),
            first(step=4),
            first(name="y"),
            first(first=8),
        ]
        twice = draws()
        twice.bits("x", (8, 64))
        found.append(twice.bits("x", (8, 64)).numpy())
        for i, one in enumerate(found):
            for other in found[:i]:
                self.assertLess(np.mean(one == other), 0.01)
        self.assertAllEqual(found[0], first())

    def test_values_are_distributed_as_they_say(self):
        many = draws(examples=1000)
        uniform = many.uniform("u", [1000, 20], -1.0, 3.0).numpy().ravel()
        normal = many.normal("n", [1000, 20]).numpy().ravel()
        cut = many.normal("t", [1000, 20], bound=2.0).numpy().ravel()
        for values, law in (
            (uniform, stats.uniform(-1, 4)),
            (normal, stats.norm()),
            (cut, stats.truncnorm(-2, 2)),
        ):
            self.assertGreater(stats.kstest(values, law.cdf).pvalue, 0.01)
        whole = many.integers("i", [1000, 20], -2, 5).numpy().ravel()
        counts = np.bincount(whole + 2, minlength=7)
        self.assertLen(counts, 7)
        self.assertGreater(stats.chisquare(counts).pvalue, 0.01)

    def test_dropped_share_and_mean(self):
        kept = draws(examples=500).drop("d", tf.ones([500, 40]), 0.3, None, False)
        self.assertAllClose(np.mean(kept == 0), 0.3, atol=0.01)
        self.assertAllClose(np.unique(kept), [0, 1 / 0.7], atol=1e-4)


def network(*stack) -> keras.Model:
    inputs = keras.Input([8, 8, 3])
    x = inputs
    for layer in stack:
        x = layer(x)
    return keras.Model(inputs, x, name="net")


STOCK = {
    "dropout": lambda: layers.Dropout(0.5),
    "dropout_of_rows": lambda: layers.Dropout(0.5, noise_shape=[None, 8, 1, 1]),
    "dropout_of_the_batch": lambda: layers.Dropout(0.5, noise_shape=[1, 8, 8, 1]),
    "spatial": lambda: layers.SpatialDropout2D(0.5),
    "gaussian_noise": lambda: layers.GaussianNoise(0.1),
    "gaussian_dropout": lambda: layers.GaussianDropout(0.3),
    "alpha": lambda: layers.AlphaDropout(0.3),
    "crop": lambda: layers.RandomCrop(6, 6),
    "flip": lambda: layers.RandomFlip(),
    "translation": lambda: layers.RandomTranslation(0.2, 0.2),
    "rotation": lambda: layers.RandomRotation(0.2),
    "zoom": lambda: layers.RandomZoom(0.3, 0.3),
    "contrast": lambda: layers.RandomContrast(0.5),
    "brightness": lambda: layers.RandomBrightness(0.5, value_range=(0, 1)),
    "lstm": lambda: keras.Sequential(
        [layers.Reshape([8, 24]), layers.LSTM(5, dropout=0.3, recurrent_dropout=0.3)]
    ),
    "time_distributed": lambda: layers.TimeDistributed(layers.Dropout(0.5)),
}


class AttentionBlock(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4, dropout=0.4)

    def call(self, inputs):
        x = tf.reshape(inputs, [-1, 64, 3])
        return self.attention(x, x)


class LayersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*STOCK, "attention")
    def test_stock_layer_draws_by_place_in_the_batch(self, name):
        layer = AttentionBlock() if name == "attention" else STOCK[name]()
        model = network(layer)
        self.assertTrue(draws_at_random(model))
        seed_layers(model)
        images = np.random.default_rng(0).random((8, 8, 8, 3), np.float32)

        @tf.function(autograph=False)
        def step(images, seed, number, first):
            of_step = StepDraws(seed, number, first, images.shape[0])
            with of_step.active():
                return model(images, training=True)

        def run(part, first, seed=5, number=2):
            seed, number = (tf.constant(v, tf.int64) for v in (seed, number))
            return step(part, seed, number, tf.constant(first, tf.int64)).numpy()

        whole = run(images, 0)
        parts = [run(images[f : f + 4], f) for f in (0, 4)]
        self.assertAllClose(whole, np.concatenate(parts), atol=1e-6)
        self.assertAllEqual(whole, run(images, 0))
        self.assertNotAllClose(whole, run(images, 0, number=3))
        self.assertNotAllClose(whole, run(images, 0, seed=6))
        check_graph(
            step.get_concrete_function(
                *(
                    tf.TensorSpec(s, t)
                    for s, t in (([8, 8, 8, 3], tf.float32), *[([], tf.int64)] * 3)
                )
            ).graph,
            model,
        )
        # Evaluation is what it is without a generator.
        self.assertAllEqual(
            model(images, training=False), model(images, training=False)
        )

    def test_examples_differ(self):
        model = network(layers.RandomFlip("horizontal"))
        seed_layers(model)
        image = np.random.default_rng(0).random((1, 8, 8, 3), np.float32)
        with draws(examples=64).active():
            found = model(np.repeat(image, 64, 0), training=True).numpy()
        mirrored = [np.array_equal(one, image[0, :, ::-1]) for one in found]
        same = [np.array_equal(one, image[0]) for one in found]
        self.assertTrue(np.all(np.logical_xor(mirrored, same)))
        self.assertBetween(sum(mirrored), 16, 48)

    def test_names_that_the_process_gave_do_not_decide(self):
        found = []
        for _ in range(2):
            model = network(layers.Dropout(0.5), layers.Dropout(0.5))
            seed_layers(model)
            with draws().active():
                found.append(model(tf.ones([8, 8, 8, 3]), training=True))
        self.assertAllEqual(*found)
        # Two layers do not drop the same places.
        self.assertAllClose(np.mean(found[0] == 0), 0.75, atol=0.05)

    def test_layer_that_draws_in_evaluation_is_refused(self):
        class Always(layers.Dropout):
            def call(self, inputs, training=None):
                return super().call(inputs, training=True)

        model = network(Always(0.5, name="restless"))
        seed_layers(model)
        with self.assertRaisesRegex(UserError, "'restless' draws .* outside"):
            model(tf.ones([8, 8, 8, 3]), training=False)


class CheckTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (lambda x: tf.nn.dropout(x, 0.5), "RandomUniform"),
        (lambda x: x + tf.random.normal(tf.shape(x)), "RandomStandardNormal"),
        (lambda x: tf.random.shuffle(x), "RandomShuffle"),
        (
            lambda x: x + tf.random.get_global_generator().normal(tf.shape(x)),
            "RngReadAndSkip|StatefulStandardNormal",
        ),
    )
    def test_whatever_else_draws_is_refused_by_name(self, draw, operation):
        class Own(layers.Layer):
            def call(self, inputs):
                return tf.while_loop(
                    lambda i, x: i < 2, lambda i, x: (i + 1, draw(x)), (0, inputs)
                )[1]

        model = network(Own(name="mine"))
        step = tf.function(lambda x: model(x, training=True), autograph=False)
        graph = step.get_concrete_function(tf.TensorSpec([8, 8, 8, 3])).graph
        with self.assertRaisesRegex(
            UserError, rf"layer 'mine' \(Own\) of model 'net' draws .*({operation})"
        ):
            check_graph(graph, model)
