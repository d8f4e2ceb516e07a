"""Does a saved sparse model come back as it was, without this package?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.sparsity import prunable, save_sparse
from dps_tf.sparsity.selection import select
from dps_tf.sparsity.sparse_model import table
from tests.sparsity.data import ones_like


def sparse_model(sparsity=0.75):
    """A network with a batch norm whose kernels are pruned by magnitude."""
    network = models.build("mlp_batch_norm", (6,), 3, widths=(8,))
    initial = models.initial_point(network, 4)
    masks = ones_like(network.trainable_variables)
    kernels = [0, 3]
    values = [np.abs(network.trainable_variables[k].numpy()) for k in kernels]
    for place, mask in zip(kernels, select(values, sparsity), strict=True):
        masks[place] = mask
    network.set_weights(prunable.masked(network, initial, masks))
    return network, masks


def loaded(folder, network):
    """Puts saved weights into a network, by Keras; returns its masks, by NumPy."""
    network.load_weights(folder / "model.weights.h5")
    with np.load(folder / "masks.npz") as archive:
        return [archive[role.name] for role in prunable.roles(network)]


class SparseModelTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.get_temp_dir()) / "out"

    def test_weights_and_masks_come_back(self):
        network, masks = sparse_model()
        saved = save_sparse(network, masks, str(self.folder), about={"trial": 3})
        other = models.build("mlp_batch_norm", (6,), 3, widths=(8,))
        found = loaded(self.folder, other)
        for ours, theirs in zip(
            other.get_weights(), network.get_weights(), strict=True
        ):
            self.assertAllEqual(ours, theirs)
        for ours, theirs in zip(found, masks, strict=True):
            self.assertAllEqual(ours, theirs)
        record = json.loads((self.folder / "sparse_model.json").read_text())["content"]
        self.assertEqual(record["layers"], [dict(layer) for layer in saved.layers])
        self.assertEqual(record["about"], {"trial": 3})
        self.assertAllClose(record["realised_sparsity"], 0.75, atol=0.01)

    def test_masks_of_layers_and_variables_of_equal_names_come_back(self):
        x = inputs = keras.Input((4, 3))
        for name in ("first", "second"):
            x = keras.layers.MultiHeadAttention(2, 3, name=name)(x, x)
        network = keras.Model(inputs, keras.layers.Dense(3, name="last")(x))
        network.layers[-1].add_weight("kernel", [3, 2])
        names = {role.name: role.layer for role in prunable.roles(network)}
        self.assertContainsSubset({"second/query/kernel", "last/kernel_2"}, names)
        self.assertLen(set(names.values()), 9)
        draw = np.random.default_rng(0)
        masks = [np.float32(draw.random(v.shape) < 0.5) for v in network.weights]
        network.set_weights(prunable.masked(network, network.get_weights(), masks))
        save_sparse(network, masks, str(self.folder))
        found = loaded(self.folder, network)
        self.assertTrue(all(map(np.array_equal, found, masks)))

    def test_table_shows_every_layer_and_the_total(self):
        network, masks = sparse_model()
        found = save_sparse(network, masks, str(self.folder))
        lines = table(found).splitlines()
        self.assertEqual(
            [line.split()[0] for line in lines],
            ["variable", "dense1/kernel", "dense2/kernel", "all"],
        )
        self.assertEqual(lines[-1].split()[1:3], ["72", "18"])

    def test_weights_outside_of_the_masks_are_refused(self):
        network, masks = sparse_model()
        network.set_weights([np.ones_like(v) for v in network.get_weights()])
        with self.assertRaisesRegex(UserError, "dense1/kernel has .* not zero"):
            save_sparse(network, masks, str(self.folder))

    def test_a_folder_with_other_files_is_left_alone(self):
        network, masks = sparse_model()
        self.folder.mkdir()
        (self.folder / "thesis.tex").write_text("x")
        with self.assertRaisesRegex(UserError, "thesis.tex"):
            save_sparse(network, masks, str(self.folder))
        (self.folder / "thesis.tex").unlink()
        save_sparse(network, masks, str(self.folder))
        save_sparse(network, masks, str(self.folder))
