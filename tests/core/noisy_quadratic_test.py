from __future__ import annotations

import numpy as np
import pytest

from dps_tf.core import NoisyQuadratic, UserError

SMALL = NoisyQuadratic(dimensions=20, bins=20)


def recursion(problem, optimizer, rate, m, batch_size, steps):
    """The published recursions, step by step."""
    h = problem.curvature
    step = rate * h**-problem.preconditioner_power
    x, n = step * h, step**2 * h / batch_size
    a = np.ones_like(h)
    b = np.zeros_like(h) if optimizer != "ema" else a / (1 - m) ** 2
    c = np.zeros_like(h) if optimizer != "ema" else a / (1 - m)
    losses = []
    for _ in range(steps + 1):
        moment = (1 - m) ** 2 * b if optimizer == "ema" else a
        losses.append(0.5 * np.sum(h * problem.counts * moment))
        if optimizer == "sgd":
            a = (1 - x) ** 2 * a + n
        elif optimizer == "momentum":
            a, b, c = (
                (1 - x) ** 2 * a + m**2 * b + 2 * (1 - x) * m * c + n,
                x**2 * a + m**2 * b - 2 * x * m * c + n,
                -x * (1 - x) * a + m**2 * b + (1 - 2 * x) * m * c + n,
            )
        else:
            a, b, c = (
                (1 - x) ** 2 * a + n,
                m**2 * b + (1 - x) ** 2 * a + 2 * m * (1 - x) * c + n,
                (1 - x) ** 2 * a + m * (1 - x) * c + n,
            )
    return np.array(losses)


CASES = [
    ("sgd", 0.3, 0.0, 0.0),
    ("sgd", 1.0, 0.0, 0.5),
    ("sgd", 2.0, 0.0, 0.0),
    ("momentum", 0.1, 0.9, 0.0),
    ("momentum", 1.5, 0.95, 0.25),
    # (1 - x + m)^2 = 4 m at h = 1: eigenvalues meet and eigenvectors are missing.
    ("momentum", (1 - np.sqrt(0.81)) ** 2, 0.81, 0.0),
    ("ema", 0.5, 0.99, 0.0),
    ("ema", 0.5, 0.0, 0.5),
]


@pytest.mark.parametrize("optimizer,rate,momentum,power", CASES)
def test_closed_forms_are_the_recursions(optimizer, rate, momentum, power):
    problem = NoisyQuadratic(preconditioner_power=power)
    wanted = recursion(problem, optimizer, rate, momentum, 64, 300)
    found = problem.loss(optimizer, rate, momentum, 64, np.arange(301))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "ema"])
def test_expected_loss_is_the_mean_of_simulated_runs(optimizer):
    rng = np.random.default_rng(0)
    runs, rate, m, batch = 40_000, 0.2, 0.8, 4
    h = SMALL.curvature[None, :]
    theta = rng.standard_normal((runs, 20))
    velocity, total = np.zeros_like(theta), theta / (1 - m)
    for _ in range(15):
        noise = rate * np.sqrt(h / batch) * rng.standard_normal(theta.shape)
        if optimizer == "momentum":
            velocity = m * velocity - rate * h * theta + noise
            theta = theta + velocity
        else:
            theta = theta - rate * h * theta + noise
            total = m * total + theta
    weights = (1 - m) * total if optimizer == "ema" else theta
    losses = 0.5 * (h * SMALL.counts * weights**2).sum(axis=1)
    found = SMALL.loss(optimizer, rate, m, batch, [15])[0]
    error = losses.std() / np.sqrt(runs)
    assert abs(found - losses.mean()) < 4 * error


def test_bins_count_every_curvature_where_the_published_code_does():
    problem = NoisyQuadratic()
    counts, bin_, i = np.zeros(100), 0, 0
    exact = 1.0 / np.arange(1, 10_001)
    while i < 10_000:
        while i < 10_000 and exact[i] >= problem.curvature[bin_]:
            counts[bin_] += 1
            i += 1
        bin_ += 1
    np.testing.assert_array_equal(problem.counts, counts)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "ema"])
def test_divergence_is_infinite_and_never_a_result(optimizer):
    loss = SMALL.loss(optimizer, 9.0, 0.5, 4, [0, 10, 10**6])
    assert np.isfinite(loss[0]) and loss[2] == np.inf


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: SMALL.loss("adam", 0.1, 0.0, 1, [1]), "known: ema, momentum, sgd"),
        (lambda: SMALL.loss("sgd", 0.0, 0.0, 1, [1]), "learning_rate is 0.0"),
        (lambda: SMALL.loss("momentum", 0.1, 1.0, 1, [1]), "momentum is 1.0"),
        (lambda: SMALL.loss("sgd", 0.1, 0.0, 0, [1]), "batch_size is 0"),
        (lambda: SMALL.loss("sgd", 0.1, 0.0, 1, [-1]), "steps is -1"),
        (lambda: NoisyQuadratic(dimensions=5, bins=9), "bins is 9"),
        (lambda: NoisyQuadratic(preconditioner_power=2), "preconditioner_power is 2"),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
