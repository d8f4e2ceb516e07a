"""A sparsity method takes a module and a gin file."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import data, models, sparsity
from dps_tf._keras import keras
from dps_tf.core import Pruning
from tests.extensions import lamp_method

FILE = Path(__file__).with_name("lamp_method.gin")


def test_scores_are_those_of_the_definition():
    generator = np.random.default_rng(0)
    theta = [generator.normal(size=(4, 3)), generator.normal(size=5)]
    found = lamp_method.lamp(SimpleNamespace(theta=theta), None)
    for weights, scores in zip(theta, found, strict=True):
        squares = weights**2
        for value, score in zip(squares.ravel(), scores.ravel(), strict=True):
            expected = value / squares[squares >= value].sum()
            np.testing.assert_allclose(score, expected)
        # The largest weight of a layer is never removed before all others.
        assert scores.max() == pytest.approx(1.0)


@pytest.mark.slow
def test_a_method_that_reads_data_has_the_gradient_of_its_examples():
    importlib.import_module("tests.extensions.gradient_method")
    found = data.load("synthetic", examples=400, shape=(5,))
    network = models.build("mlp", (5,), found.classes, widths=(6,))
    values = models.initial_point(network, 3)
    asked = []

    def progress(done, total):
        asked.append(total)

    what = "steepest", 0.5, Pruning(), {"initial_seed": 3}
    request = sparsity.MaskRequest(network, values, found, *what)
    masks = sparsity.masks_for(request, progress=progress)
    assert masks.examples == 200 and asked[-1] == 2
    network.set_weights(values)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    scores = [0.0] * len(network.trainable_variables)
    for start in (0, 100):
        rows = slice(start, start + 100)
        with tf.GradientTape() as tape:
            value = loss(found.train.labels[rows], network(found.train.inputs[rows]))
        gradients = tape.gradient(value, network.trainable_variables)
        scores = [a + b.numpy() for a, b in zip(scores, gradients, strict=True)]
    kernels = [np.abs(score) for score in scores if score.ndim == 2]
    threshold = np.median(np.concatenate([score.ravel() for score in kernels]))
    kept = [mask for mask in masks.masks if mask.ndim == 2]
    for score, mask in zip(kernels, kept, strict=True):
        np.testing.assert_array_equal(mask, score > threshold)


@pytest.mark.slow
def test_it_prunes_beside_a_shipped_method(tmp_path):
    trials = dps_tf.run(dps_tf.sweep(str(FILE)), tmp_path).trials
    assert sorted(set(trials["sparsity_method"])) == ["lamp", "magnitude"]
    assert not (trials["outcome"] == "failed").any()
    np.testing.assert_allclose(trials["realised_sparsity"], 0.5, atol=0.01)
