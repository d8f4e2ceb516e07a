"""Noise scales in the geometry of optimizers, against closed forms and plain NumPy."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import sqrtm

from dps_tf import models, optim
from dps_tf.core import UserError, examples_at
from dps_tf.data import load
from dps_tf.models import initial_point
from dps_tf.objectives.losses import cross_entropy
from dps_tf.probing import QUANTITIES, ExampleGradients, noise
from dps_tf.probing.gradients import MeanGradient
from dps_tf.store import LocalFiles, SweepReader
from tests import interpreter
from tests.made_up import small_sweeps

ROOT = Path(__file__).parents[2]
SHAPES = ((3, 5), (4,), (6, 2), (2, 2, 3))


def drawn(seed, examples=12, shapes=SHAPES):
    """Returns gradients of single examples, [examples, *shape] for each shape."""
    draw = np.random.default_rng(seed)
    return [1 + draw.normal(size=(examples, *shape)) for shape in shapes]


def given(examples, batch_size=1):
    """Returns (the mean gradient, means of batches) of gradients of examples."""
    count = len(examples[0])
    batches = [
        [g[i : i + batch_size].mean(axis=0) for g in examples]
        for i in range(0, count, batch_size)
    ]
    square = np.mean([sum((part**2).sum() for part in batch) for batch in batches])
    mean = tuple(g.mean(axis=0) for g in examples)
    return MeanGradient(mean, count, batch_size, float(square)), batches


def pair(found):
    return np.array([found.gradient_square, found.noise_trace])


def test_preconditioned_noise_of_known_covariance_is_estimated_without_bias():
    draw = np.random.default_rng(0)
    mean, deviation = np.array([1.0, -0.5, 0.2]), np.array([1.0, 2.0, 0.5])
    p = np.array([0.5, 3.0, 10.0])
    pairs = [
        pair(
            noise.preconditioned(
                *given([mean + deviation * draw.normal(size=(40, 3))], 4),
                lambda gradient: [np.sqrt(p) * gradient[0]],
            )
        )
        for _ in range(4000)
    ]
    truth = np.array([(p * mean**2).sum(), (p * deviation**2).sum()])
    error = np.std(pairs, axis=0) / np.sqrt(len(pairs))
    assert (error < 0.02 * truth).all()  # tight enough to tell
    assert (np.abs(np.mean(pairs, axis=0) - truth) < 4 * error).all()


def test_scaling_p_changes_no_scale_and_the_identity_gives_the_euclidean_one():
    mean, batches = given(drawn(1), 3)
    weights = [np.random.default_rng(2).random(shape) for shape in SHAPES]
    roots = [
        lambda g, by=by: [by * w * part for w, part in zip(weights, g, strict=True)]
        for by in (1.0, 7.0)
    ]
    one, other = (noise.preconditioned(mean, batches, root) for root in roots)
    np.testing.assert_allclose(other.scale, one.scale)
    assert other.noise_trace > 40 * one.noise_trace
    same = noise.preconditioned(mean, batches, lambda gradient: gradient)
    np.testing.assert_allclose(pair(same), pair(noise.euclidean(mean)))


def test_sign_noise_is_that_of_single_examples():
    examples = drawn(3)
    deviation = sum(g.std(axis=0, ddof=1).sum() for g in examples)
    norm = sum(np.abs(g.mean(axis=0)).sum() for g in examples)
    found = noise.sign(*given(examples))
    np.testing.assert_allclose(pair(found), [norm**2, deviation**2])
    np.testing.assert_allclose(found.scale, (deviation / norm) ** 2)


def test_spectral_noise_is_that_of_single_examples_on_the_smaller_side():
    examples = drawn(4, shapes=((3, 5), (6, 2), (2, 2, 3)))
    trace = norm = 0.0
    for g in examples:
        matrices = g.reshape(len(g), -1, g.shape[-1])
        if matrices.shape[1] > matrices.shape[2]:
            matrices = matrices.transpose(0, 2, 1)
        away = matrices - matrices.mean(axis=0)
        covariance = sum(m @ m.T for m in away) / (len(away) - 1)
        trace += np.trace(sqrtm(covariance)).real
        norm += np.linalg.svd(matrices.mean(axis=0))[1].sum()
    found = noise.spectral(*given(examples))
    np.testing.assert_allclose(pair(found), [norm**2, trace**2])


def test_geometries_of_one_coordinate_agree():
    """Of one coordinate all norms are its size; a bias of |G|^2 is all that differs."""
    examples = drawn(5, 400, ((1, 1),))
    mean, batches = given(examples)
    plain = noise.euclidean(mean)
    for found in (noise.sign(mean, batches), noise.spectral(mean, batches)):
        np.testing.assert_allclose(found.noise_trace, plain.noise_trace)
        bias = plain.noise_trace / 400
        np.testing.assert_allclose(found.gradient_square, plain.gradient_square + bias)


@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "soap"])
def test_p_is_what_an_update_without_momentum_multiplies_its_gradient_by(name):
    point = {"learning_rate": 0.5, "beta_1": 0.0, "beta_2": 0.9}
    shape = (6,) if name == "lamb" else (4, 3)  # vectors have no trust ratio
    decay = {"weight_decay": 0.0} if name in ("adamw", "lamb") else {}
    optimizer = optim.TensorOptimizer(name, metaparameters=(*point, *decay))
    variable = tf.Variable(tf.zeros(shape))
    optimizer.build([variable])
    optimizer.set_metaparameters({**point, **decay})
    draw = np.random.default_rng(0)
    for step in range(13):  # SOAP renews its bases at steps 0 and 10
        gradient = np.float32(draw.normal(size=shape))
        start, before = variable.numpy(), [slot.numpy() for slot in optimizer.slots]
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        ends = before, [slot.numpy() for slot in optimizer.slots]
        slots = [optimizer.rule.named(end, [variable]) for end in ends]
        values = optimizer.rule.values({**point, **decay})
        root = noise.adam_root(optimizer.rule.rule, values, step, *slots)
        along = float(np.vdot(gradient, start - variable.numpy())) / 0.5
        [moved] = root([np.float64(gradient)])
        np.testing.assert_allclose((moved**2).sum(), along, rtol=1e-4)
        assert (along == 0) == (name == "soap" and step == 0)


def test_coordinate_without_a_gradient_so_far_is_left_out():
    slots = {"velocities": [np.array([0.0, 1.0, 1e-20])]}
    point = optim.build("adam").values({"learning_rate": 0.1})
    rule = optim.OPTIMIZERS["adam"]
    [moved] = noise.adam_root(rule, point, 0, slots, slots)([np.ones(3)])
    np.testing.assert_allclose(moved, [0, np.sqrt(np.sqrt(1 - 0.999)), 0], rtol=1e-4)


@pytest.mark.parametrize(("name", "workers"), [("lars", 1), ("adam", 2)])
def test_optimizer_without_a_scale_is_refused(name, workers):
    optimizer = optim.build(name, workers=workers)
    with pytest.raises(UserError, match=f"{workers} workers.*leave --optimizer_noise"):
        noise.of_optimizer(optimizer, {}, 0, {}, {}, *given(drawn(0)))


def test_batches_are_those_of_the_mean_square():
    data = load("synthetic", examples=80, classes=3, shape=(4,))
    build = functools.partial(models.build, "mlp", (4,), 3, widths=(5,))
    gradients = ExampleGradients(build, data.train, batch_size=25)  # 25, 25 and 10
    weights = initial_point(build(), 1)
    mean, batches = gradients.at(weights), list(gradients.batches(weights))
    assert len(batches) == 2
    squares = [sum((part**2).sum() for part in batch) for batch in batches]
    np.testing.assert_allclose(np.mean(squares), mean.batch_square, rtol=1e-6)


def trained(folder):
    """Returns the layout of a sweep of SGD, Adam and Muon, one trial each."""
    names = ("sgd", "adam", "muon")
    workloads = [f"{name}/workload.optimizer = '{name}'" for name in names]
    named = ", ".join(f"@{name}/workload()" for name in names)
    bindings = [*workloads, f"sweep.workloads = ({named},)", "workload.points = 1"]
    return small_sweeps.trained(folder, [*bindings, "goal.threshold = 1.0"])


def measured(layout, *flags):
    command = ["-m", "dps_tf.measure", f"--sweep_dir={layout.root}", "--steps=0,3"]
    done = interpreter.run([*command, "--trial=0", "--examples=60", *flags], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    table = SweepReader(LocalFiles(), layout.root).tables().measurements
    return table.pivot(index=["optimizer", "step"], columns="quantity", values="value")


@pytest.mark.slow
def test_command_measures_each_optimizer_in_its_own_geometry(tmp_path):
    sweep = trained(tmp_path)
    plain = measured(sweep)
    found = measured(sweep, "--optimizer_noise")
    assert set(plain) == set(QUANTITIES)
    assert found[list(plain)].equals(plain)
    for name in ("gradient_square", "noise_trace", "noise_scale"):
        assert found[f"optimizer_{name}"].notna().all()
        same = found[f"optimizer_{name}"] == found[name]
        assert list(same.groupby("optimizer").all()) == [False, False, True]
    study = SweepReader(LocalFiles(), sweep.root).study("blobs-muon-none-seed0-b8-s0.0")
    of_muon = found.loc["muon", 0]
    np.testing.assert_allclose(
        of_muon[["optimizer_gradient_square", "optimizer_noise_trace"]],
        at_the_initial_point(study.trial(0).initial_seed),
        rtol=1e-4,
    )


def at_the_initial_point(seed):
    """Returns squared nuclear norms, of the mean and of the noise of two halves."""
    train = load("synthetic", examples=96, classes=3).train
    network = models.build("mlp", train.inputs.shape[1:], 3, widths=(6,))
    network.set_weights(initial_point(network, seed))
    kernels = [v for v in network.trainable_variables if len(v.shape) == 2]
    halves = []
    for rows in examples_at(0, 1, 0, 60, 60).reshape(2, 30):
        with tf.GradientTape() as tape:
            logits = network(train.inputs[rows])
            each = cross_entropy(tf.constant(train.labels[rows]), logits, 0.05)
            loss = tf.reduce_mean(each)
        halves.append([np.float64(g) for g in tape.gradient(loss, kernels)])
    norm = noisy = 0.0
    for one, two in zip(*halves, strict=True):
        norm += np.linalg.svd((one + two) / 2)[1].sum()
        # Half the difference is the noise of each; its square has one freedom.
        noisy += np.sqrt(30 * 2) * np.linalg.svd((one - two) / 2)[1].sum()
    return norm**2, noisy**2
