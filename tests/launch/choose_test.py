"""The replays of the choice of batch sizes: posterior, truth and order."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from dps_tf.analysis.law import Estimate, Observations, compare, posteriors
from dps_tf.analysis.plan import CRITICAL, losses, recommended, steps_posterior, value
from dps_tf.core import NoisyQuadratic
from tests.core.quadratic_search import steps_to_loss
from tests.packaging.source_tree import SOURCE_TREE


@functools.cache
def replay_script() -> ModuleType:
    """Returns launch/choose as a module."""
    path = str(SOURCE_TREE / "launch" / "choose")
    loader = importlib.machinery.SourceFileLoader("launch_choose", path)
    spec = importlib.util.spec_from_loader("launch_choose", loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["launch_choose"] = module
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="script")
def _script() -> ModuleType:
    return replay_script()


def points() -> Observations:
    """Returns a curve of ten batch sizes with scatter and brackets."""
    sizes = 2.0 ** np.arange(3, 13)
    scatter = np.random.default_rng(0).normal(0, 0.15, len(sizes))
    steps = (40_000 / sizes + 80) * 2**scatter
    return Observations.of(sizes, steps * 1.02, steps * 0.98)


@pytest.mark.parametrize("places", [list(range(10)), [0, 2, 4, 5, 6, 8]])
def test_the_lattice_gives_the_intervals_of_the_law(script, places):
    lattice, part = script.Lattice(points()), script.part(points(), places)
    for asked in script.ASKED:
        found = lattice.estimate(places, asked)
        law = Estimate.of(getattr(posteriors([part])[0], asked))
        ends = np.log2([found.low / law.low, found.high / law.high])
        assert np.abs(ends).max() < 0.05


def test_the_truth_of_the_quadratic_is_that_of_a_search_of_its_steps(script):
    model = NoisyQuadratic(dimensions=100, bins=20)
    rates = script.RATES[::6]
    each = [steps_to_loss(model, "sgd", rate, 0.0, 64) for rate in rates]
    best = min(steps for steps in each if steps is not None)
    assert script.first_step(model, 64, 0.01, rates) == best


def of_one_curve(script: ModuleType, asked: str) -> list[int]:
    """Returns the places of a curve in the order of the choice."""
    return [place for _, place in script.chosen([points()], asked, 256.0)]


def test_each_cell_is_chosen_once_and_the_costly_ends_come_late(script):
    order = of_one_curve(script, "critical_batch_size")
    assert sorted(order) == list(range(10))
    assert order[0] == 5 and 0 not in order[:4]
    # The plateau tells of c2 first and of c1 late.
    of = {asked: of_one_curve(script, asked) for asked in ("c1", "c2")}
    assert of["c2"][1:4] == [7, 8, 9]
    assert of["c1"].index(9) > 6 and of["c1"][1] == 3


def test_a_recommendation_is_that_of_the_law_with_its_loss(script):
    # Time is least at sqrt(knee c1/c2), here 256 x 500 and thus about 358.
    curve, knee = points(), 256.0
    lattice, places = script.Lattice(curve), list(range(10))
    axis, weights = lattice.critical(places)
    loss = losses(np.exp2(axis), curve.batch_size, 1 + curve.batch_size / knee)
    best, most = recommended(loss, weights.sum(axis=0))
    assert curve.batch_size[best] in (256, 512)
    few = lattice.critical(places[:3])[1].sum(axis=0)
    assert 1 <= most < recommended(loss, few)[1]
    sizes = np.array([256.0, 357.77, 512.0])
    exact = losses(np.array([500.0]), sizes, 1 + sizes / knee)[0]
    assert exact[1] == 1 and exact[0] == pytest.approx(exact[2], rel=0.02)


def test_a_ratio_of_two_curves_is_that_of_their_joint_fit(script):
    one = points()
    steps = 120_000 / one.batch_size + 400
    two = Observations.of(one.batch_size, steps * 1.02, steps * 0.98)
    lattices = script.Lattice(one), script.Lattice(two)
    places = list(range(10))
    found = script.ratio_of(lattices, (places, places))
    joint = compare({"one": one, "two": two}, "two").ratios[0].critical_batch_size
    ends = np.log2([found.low / joint.low, found.high / joint.high])
    assert np.abs(ends).max() < 0.02  # with a scale for each curve it is 0.04
    order = list(script.chosen([one, two], "critical_batch_size", 256.0))
    assert sorted(order) == [(curve, place) for curve in (0, 1) for place in places]


@pytest.mark.parametrize("others", [0.0, 0.3])
def test_the_worth_of_a_cell_is_that_of_a_normal_posterior_after_it(script, others):
    fits = steps_posterior(np.zeros(3, int), [8, 64, 512], [5_000, 700, 150])
    assert sum(each.weight for each in fits) == pytest.approx(1)
    fit, size = replace(fits[0], weight=1.0), 128.0

    def log2_steps(values: np.ndarray) -> float:
        c1, ratio = values[:2] + values[2:]
        return float(np.log2(2 ** (c1 - np.log2(size)) + 2 ** (c1 - ratio)))

    slope = approx_fprime(fit.mean, log2_steps, 1e-6)
    before, noise = fit.covariance, fit.noise**2
    gain = np.outer(before @ slope, slope @ before) / (slope @ before @ slope + noise)
    asked = np.array([0.0, 1.0, 0.0, 1.0])  # log2 c1/c2
    assert script.variance([fit], CRITICAL) == asked @ before @ asked
    narrower = (asked @ (before - gain) @ asked + others) / (
        asked @ before @ asked + others
    )
    gain, steps = value([fit], np.array([size]), CRITICAL, others)
    assert gain == pytest.approx(-np.log2(narrower) / 2, rel=1e-4)
    assert steps == pytest.approx(2 ** log2_steps(fit.mean), rel=1e-6)
