from __future__ import annotations

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import Pruning, UserError
from dps_tf.sparsity import (
    SPARSITY_METHODS,
    MaskRequest,
    OneShot,
    ScoreCache,
    check_pruning,
    masks_for,
    prunable,
    register_sparsity_method,
    request,
    scores,
)
from dps_tf.sparsity.request import balanced, window
from dps_tf.sparsity.score_gradients import program_of
from tests.sparsity import data

AT_START = [
    name
    for name in SPARSITY_METHODS.names()
    if not SPARSITY_METHODS[name].prunes_while_training
]
ONE_SHOT = [name for name in AT_START if isinstance(SPARSITY_METHODS[name], OneShot)]
KEY = {"network": "test", "initial_seed": 0}


def small():
    return models.build("mlp", (6, 6), 10, widths=(24, 16))


def kept(found):
    return sum(row["kept"] for row in found.layers)


def ravel(found):
    return np.concatenate([np.ravel(mask) for mask in found.masks])


class MasksTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.network = small()
        cls.initial = models.initial_point(cls.network, 0)
        cls.dataset = data.gaussian((6, 6), 120, 10)

    def masks(self, method, sparsity, cache=None, initial=None, **pruning):
        asked = MaskRequest(
            self.network,
            self.initial if initial is None else initial,
            self.dataset,
            method,
            sparsity,
            Pruning(**pruning),
            KEY,
        )
        return masks_for(asked, cache)

    @parameterized.parameters(
        ("snip", 0, 2),  # All 120 examples, in batches of 100.
        ("grasp", 0, 2),  # 100 examples, gradient and Hessian.
        ("grasp", 120, 4),
        ("iterative_snip", 0, None),
        ("synflow", 0, 100),
        ("random", 0, 0),
    )
    def test_progress_counts_up_to_its_total(self, method, examples, total):
        seen = []
        asked = method, 0.9, Pruning(examples=examples), KEY
        masks_for(
            MaskRequest(self.network, self.initial, self.dataset, *asked),
            progress=lambda *counts: seen.append(counts),
        )
        if total is None:
            total = len(seen)
            self.assertGreater(total, 1)
        self.assertEqual(seen, [(done + 1, total) for done in range(total)])

    @parameterized.product(
        method=AT_START, prunable_set=("kernels", "kernels_and_biases")
    )
    def test_exact_count_of_the_prunable_set_is_kept(self, method, prunable_set):
        found = self.masks(method, 0.83, prunable=prunable_set)
        parameters = sum(row["parameters"] for row in found.layers)
        self.assertEqual(kept(found), round(parameters * (1 - 0.83)))
        self.assertAllClose(found.realised_sparsity, 1 - kept(found) / parameters)
        self.assertAllInSet(ravel(found), [0.0, 1.0])
        for mask, value in zip(found.masks, self.network.get_weights(), strict=True):
            self.assertEqual((mask.shape, mask.dtype), (value.shape, bool))
            if value.ndim == 1 and prunable_set == "kernels":
                self.assertAllEqual(mask, np.ones_like(mask))
        rows = 3 if prunable_set == "kernels" else 6
        self.assertLen(found.layers, rows)

    @parameterized.parameters(*AT_START)
    def test_layers_are_pruned_alike_if_asked(self, method):
        found = self.masks(method, 0.7, scope="layer")
        for row in found.layers:
            self.assertEqual(row["kept"], round(row["parameters"] * (1 - 0.7)))

    @parameterized.parameters("snip", "grasp", "force", "iterative_snip")
    def test_the_same_arguments_give_the_same_masks(self, method):
        one, other = self.masks(method, 0.9), self.masks(method, 0.9)
        self.assertAllEqual(ravel(one), ravel(other))

    def test_sparsity_zero_keeps_everything_and_computes_nothing(self):
        with mock.patch.object(program_of(self.network), "set_point") as used:
            found = self.masks("snip", 0.0)
            self.masks("none", 0.0)
        used.assert_not_called()
        self.assertAllInSet(ravel(found), [1.0])
        self.assertEqual(found.realised_sparsity, 0.0)

    @parameterized.parameters("synflow", "magnitude", "random")
    def test_methods_without_data_do_not_depend_on_it(self, method):
        before = self.masks(method, 0.9)
        other = data.gaussian((6, 6), 50, 10, seed=9)
        with mock.patch.object(self, "dataset", other):
            after = self.masks(method, 0.9)
        self.assertAllEqual(ravel(before), ravel(after))
        self.assertEqual(before.examples, 0)

    def test_what_iterative_snip_prunes_stays_out_and_force_lets_it_return(self):
        for method, returns in (("iterative_snip", False), ("force", True)):
            seen = []
            choose = request.choose

            def recorded(*arguments, seen=seen, choose=choose):
                seen.append(choose(*arguments))
                return seen[-1]

            with mock.patch.object(request, "choose", recorded):
                self.masks(method, 0.95, examples=40)
            steps = [np.concatenate([np.ravel(m) for m in masks]) for masks in seen]
            back = [
                np.count_nonzero(after > before)
                for before, after in zip(steps, steps[1:], strict=False)
            ]
            self.assertEqual(any(back), returns, (method, back))

    def test_rounds_of_the_papers(self):
        self.assertAllClose(
            scores.halving(0.9), [0.5, 0.7, 0.8, 0.85, 0.875, 0.8875, 0.9]
        )
        self.assertAllClose(scores.halving(0.4, 1), [0.2, 0.3, 0.4])
        hundred = scores.exponential(0.99, 100)
        self.assertLen(hundred, 100)
        self.assertAllClose(1 - hundred[49], 0.1)
        self.assertEqual(hundred[-1], 0.99)

    def test_synflow_empties_no_layer_where_snip_may(self):
        found = self.masks("synflow", 0.97)
        self.assertFalse(any(row["emptied"] for row in found.layers))

    @parameterized.parameters(
        ("snip", {}, 120),
        ("snip", {"examples": 30}, 30),
        ("grasp", {}, 100),
        ("grasp", {"examples": 45}, 40),
        ("grasp", {"arguments": {"per_class": 3}}, 30),
        ("grasp", {"arguments": {"grasp": {"per_class": 3}, "force": {"a": 1}}}, 30),
        ("force", {}, 120),
        ("iterative_snip", {"examples": 50}, 50),
    )
    def test_examples_are_reported(self, method, pruning, examples):
        self.assertEqual(self.masks(method, 0.5, **pruning).examples, examples)

    @parameterized.parameters(
        ("grasp", {"arguments": {"gasp": {}}}, "did you mean 'grasp'"),
        ("grasp", {"examples": 5}, "fewer than the 10 classes"),
        ("grasp", {"arguments": {"per_class": 50}}, "class 0 has 12 training"),
        ("snip", {"examples": 500}, "there are 120"),
        ("tfmot_constant", {}, "prunes during training"),
        ("none", {}, "sparsity method 'none' is unknown"),
        (
            "snip",
            {"scope": "n_of_m", "arguments": {"n_of_m": {"m": 3}}},
            "0.5 cannot be reached: choose among 0.3333, 0.6667, or",
        ),
        (
            "snip",
            {"scope": "n_of_m", "prunable": "kernels_and_biases"},
            "no meaning for dense1/bias",
        ),
        ("snip", {"scope": "n_of_m", "arguments": {"n_of_m": {"m": 1}}}, "m of selec"),
    )
    def test_mistakes_are_named(self, method, pruning, text):
        with self.assertRaisesRegex(UserError, text):
            self.masks(method, 0.5, **pruning)

    @parameterized.parameters(
        ({"scope": "everywhere"}, "selection 'everywhere' is unknown"),
        ({"arguments": {"layer": {"m": 4}}, "scope": "layer"}, "nothing named 'm'"),
        ({"arguments": {"rounds": 4}}, "nothing named 'rounds'"),
    )
    def test_mistakes_are_named_before_anything_is_trained(self, pruning, text):
        with self.assertRaisesRegex(UserError, text):
            check_pruning("snip", 0.5, Pruning(**pruning), 100)

    def test_selections_choose_by_the_scores_of_any_one_shot_method(self):
        for method in ONE_SHOT:
            found = self.masks(method, 0.5, scope="n_of_m")
            for mask in found.masks[::2]:  # kernels; 36, 24 and 16 inputs
                sums = mask.reshape(-1, 4, mask.shape[-1]).sum(axis=1)
                self.assertAllInSet(sums, [2.0])
            self.assertEqual(found.realised_sparsity, 0.5)
            found = self.masks(method, 0.75, scope="filters")
            for mask in found.masks[:4:2]:
                self.assertAllInSet(mask.mean(axis=0), [0.0, 1.0])
            self.assertAllInSet(found.masks[4], [1.0])
            self.assertAllClose(found.realised_sparsity, 0.75, atol=0.02)

    def test_method_of_the_user_is_served_like_the_shipped_ones(self):
        smallest = OneShot(lambda request, progress: [-abs(t) for t in request.theta])
        register_sparsity_method("smallest", smallest)
        found = ravel(self.masks("smallest", 0.5))
        largest = ravel(self.masks("magnitude", 0.5))
        kernels = ravel(self.masks("none", 0.0))[: found.size]
        prunable = np.concatenate([np.full(v.size, v.ndim > 1) for v in self.initial])
        self.assertAllEqual((found + largest)[prunable], kernels[prunable])

    def test_a_network_without_prunable_variables_is_refused(self):
        network = keras.Sequential([keras.layers.Flatten(input_shape=(4,))])
        with self.assertRaisesRegex(UserError, "no variable in the prunable set"):
            asked = "magnitude", 0.5, Pruning(), KEY
            masks_for(MaskRequest(network, [], self.dataset, *asked))

    def test_masked_point_is_in_the_order_of_the_weights(self):
        network = models.build("mlp_batch_norm", (3,), 2, widths=(4,))
        values = [np.ones(v.shape, np.float32) for v in network.weights]
        roles = prunable.roles(network)
        masks = [np.zeros(v.shape, np.float32) for v in network.trainable_variables]
        found = prunable.masked(network, values, masks)
        zero = [v.name for v, x in zip(network.weights, found, strict=True) if x.any()]
        self.assertEqual(zero, [v.name for v in network.weights if "moving" in v.name])
        self.assertEqual(
            [(role.name, role.role) for role in roles],
            [
                ("dense1/kernel", "kernel"),
                ("norm1/gamma", "other"),
                ("norm1/beta", "other"),
                ("dense2/kernel", "kernel"),
                ("dense2/bias", "bias"),
            ],
        )


class LeeTest(tf.test.TestCase, parameterized.TestCase):
    """Zero-initialized biases under a ranking of all parameters."""

    @parameterized.parameters(
        ("simple_cnn", (28, 28, 1), 62_346, {0.0: 106, 0.001: 44, 0.5: 0, 0.9: 0}),
        ("resnet8", (32, 32, 3), 75_050, {0.0: 250, 0.001: 175, 0.5: 0, 0.9: 0}),
    )
    def test_biases_go_first(self, name, shape, parameters, biases):
        network = models.build(name, shape, 10)
        initial = models.initial_point(network, 1)
        dataset = data.gaussian(shape, 100, 10)
        cache = ScoreCache(self.get_temp_dir())
        for sparsity, expected in biases.items():
            pruning = Pruning(prunable="kernels_and_biases")
            asked = "snip", sparsity, pruning, KEY
            found = masks_for(MaskRequest(network, initial, dataset, *asked), cache)
            rows = {"kernel": 0, "bias": 0}
            for row in found.layers:
                rows[row["role"]] += row["kept"]
            self.assertEqual(rows["bias"], expected)
            self.assertEqual(sum(rows.values()), round(parameters * (1 - sparsity)))
            if sparsity == 0.9:
                self.assertIn(rows["kernel"], (6_235, 7_505))
            self.assertFalse(any(r["emptied"] for r in found.layers))


class ExamplesTest(tf.test.TestCase):
    def test_rounds_read_one_stretch_after_the_other_and_start_again(self):
        places = np.arange(5)
        self.assertAllEqual(places[window(5, 2, 0)], [0, 1])
        self.assertAllEqual(places[window(5, 2, 2)], [4, 0])
        self.assertAllEqual(places[window(5, 5, 3)], [0, 1, 2, 3, 4])
        self.assertAllEqual(places[window(5, 3, 0)], [0, 1, 2])

    def test_balanced_takes_the_first_of_each_class(self):
        labels = np.array([1, 0, 1, 1, 0, 0])
        self.assertAllEqual(balanced(labels, 2, 2), [1, 4, 0, 2])
