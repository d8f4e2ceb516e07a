"""How noise scale and c1/c2 go together, against scipy and closed forms."""

from __future__ import annotations

import importlib
import runpy
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dps_tf.analysis.fit_table import observations_by_curve
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import Distribution, fit_law, joint_fit
from dps_tf.analysis.tables import study_key
from tests.packaging.source_tree import SOURCE_TREE


@pytest.fixture(scope="module")
def docs():
    folder = str(SOURCE_TREE / "docs")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("noise_scales")


def test_the_figure_has_the_tables_of_the_documents(docs):
    folder = SOURCE_TREE / "gin_configs"
    script = runpy.run_path(str(folder / "optimizers" / "noise_scales.py"))
    shown = {path.relative_to(folder).as_posix() for path in script["TABLES"]}
    assert shown == set(docs.TABLES) and len(script["TABLES"]) == len(docs.TABLES)


def curve(docs, noise, critical, spread=0.0, workload="a"):
    """Returns a curve; log2 c1/c2 is normal with a spread in octaves."""
    octaves = np.log2(critical) + spread * stats.norm.ppf((np.arange(999) + 0.5) / 999)
    return docs.MeasuredCurve(
        (workload,), noise, Distribution.of(octaves, 0.0, np.ones(999))
    )


def interval(replicates):
    return np.quantile(replicates, [0.025, 0.975])


def test_values_of_one_workload_are_those_of_scipy(docs):
    draw = np.random.default_rng(0)
    noise, critical = np.exp2(draw.normal(size=(2, 12)))
    noise[3] = noise[4]  # a tie
    found = docs.associated(
        [curve(docs, *each) for each in zip(noise, critical, strict=True)]
    )
    logs = np.log2(noise), np.log2(critical)
    rank = stats.spearmanr(noise, critical).statistic
    np.testing.assert_allclose(found["rank"][0], rank, atol=1e-3)
    slope = stats.linregress(*logs).slope
    np.testing.assert_allclose(found["slope"][0], slope, atol=1e-3)
    # The bootstrap of pairs, another one: their intervals agree.
    other = stats.bootstrap(
        logs,
        lambda x, y: stats.linregress(x, y).slope,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    np.testing.assert_allclose(interval(found["slope"][1]), other, atol=0.08)


def test_statistics_of_each_row_are_those_of_scipy(docs):
    x, y = np.random.default_rng(2).integers(0, 5, (2, 30, 8)).astype(float)
    found, rows = docs.statistics([(x, y)]), list(zip(x, y, strict=True))
    ranks = [stats.spearmanr(*row).statistic for row in rows]
    np.testing.assert_allclose(found["rank"], ranks, atol=1e-12)
    slopes = [stats.linregress(*row).slope for row in rows]
    np.testing.assert_allclose(found["slope"], slopes, atol=1e-12)


def test_a_factor_of_a_workload_changes_nothing(docs):
    """Within each, c1/c2 is 3 or 300 times the square of the noise scale."""
    noise = np.array([10.0, 30.0, 40.0, 90.0, 200.0])
    curves = [
        curve(docs, factor * n, by * n**2, workload=name)
        for name, factor, by in (("a", 1, 300), ("b", 50, 3))
        for n in noise
    ]
    found = docs.associated(curves)
    for name, truth in (("rank", 1.0), ("slope", 2.0)):
        value, replicates = found[name]
        np.testing.assert_allclose(value, truth, atol=1e-3)
        np.testing.assert_allclose(interval(replicates), truth, atol=1e-2)
    noise, by = np.concatenate([noise, 50 * noise]), np.repeat([300, 3 / 50**2], 5)
    truth = stats.spearmanr(noise, by * noise**2).statistic
    assert docs.associated(curves, across=True)["rank"][0] == pytest.approx(truth)


def test_posterior_of_c1_c2_widens_the_slope_as_theory_has_it(docs):
    """Medians on a line, many curves: draws and bootstrap give s^2 / sum x^2 each."""
    octaves = np.linspace(-3, 3, 200)
    curves = [curve(docs, 2.0**x, 2.0**x, spread=0.5) for x in octaves]
    _, replicates = docs.associated(curves)["slope"]
    truth = 0.5 * np.sqrt(2 / (octaves**2).sum())
    np.testing.assert_allclose(replicates.std(), truth, rtol=0.05)
    np.testing.assert_allclose(replicates.mean(), 1, atol=4 * truth / np.sqrt(8000))


def test_intervals_cover_what_is_true_and_noise_is_not_told_apart(docs):
    draw = np.random.default_rng(3)
    covered = told = 0
    for _ in range(60):
        x = draw.normal(size=15)
        y = x + 0.7 * draw.normal(size=15)
        curves = [curve(docs, 2.0**a, 2.0**b) for a, b in zip(x, y, strict=True)]
        low, high = interval(docs.associated(curves)["slope"][1])
        covered += low <= 1 <= high
        of_noise = [curve(docs, 2.0**a, 2.0**b) for a, b in zip(x, y - x, strict=True)]
        told += docs.order("rank", ["a/b"], of_noise, "noise scale").p < 0.05
    assert covered >= 48  # a bootstrap of 15 curves: about 0.9 of 60
    assert told <= 9


def test_evidence_has_the_value_and_says_of_what(docs):
    curves = [curve(docs, n, n, 0.3) for n in (10, 20, 40, 80, 160, 320, 640)]
    found = docs.order("rank", ["optimizers/x"], curves, "Euclidean noise scale")
    assert found.value == pytest.approx(1) and found.high == pytest.approx(1)
    assert found.null == 0 and found.p < 0.01 and found.within <= 1
    assert "rank correlation of Euclidean noise scale and c1/c2 over 7" in found.about
    with pytest.raises(ValueError, match="a: 2 curves, of 3 at least"):
        docs.order("rank", ["a"], curves[:2], "noise scale")
    # Across workloads one that has a single curve takes part.
    alone = curve(docs, 1280, 1280, 0.3, workload="b")
    both = docs.order("rank", ["a", "b"], [*curves, alone], "noise scale", across=True)
    assert both.value == pytest.approx(1) and "over 8 curves across" in both.about


def test_noise_of_a_curve_averages_parts_over_steps_and_cells(docs):
    """By the trapezoidal rule up to K*, then the geometric mean over batch sizes."""
    path = SOURCE_TREE / "gin_configs" / "optimizers" / "fashion_mnist_fc.csv"
    cells = read_csv(path).query("optimizer == 'sgd'")
    names = [*study_key(cells), "best_trial", "steps_to_result"]
    rows, scales = [], []
    for cell, scale in zip(cells[names].to_dict("records")[:2], (10, 40), strict=True):
        k, about = cell.pop("steps_to_result"), {**cell, "trial": cell["best_trial"]}
        for step, square in ((1, 4.0), (3, 2.0), (k, 1.0), (k + 5, 99.0)):
            trace = scale * square * (1 if step > 1 else 5)
            rows += [
                {**about, "step": step, "quantity": f"optimizer_{name}", "value": value}
                for name, value in (("gradient_square", square), ("noise_trace", trace))
            ]
        rest = (k - 3) * 1.5
        scales.append(scale * (2 * (20 + 2) / 2 + rest) / (2 * (4 + 2) / 2 + rest))
    [found] = docs.measured_curves("s", cells, pd.DataFrame(rows), "optimizer_")
    assert found.noise == pytest.approx(np.sqrt(np.prod(scales)))
    assert docs.measured_curves("s", cells, pd.DataFrame(rows), "") == []


def test_a_curve_that_is_too_short_alone_has_the_joint_fit(docs):
    path = SOURCE_TREE / "gin_configs" / "optimizers" / "fashion_mnist_fc.csv"
    cells = read_csv(path).query("seed == 0 and optimizer in ('sgd', 'lamb')")
    few = cells.query("optimizer == 'lamb'")["batch_size"].iloc[:2]
    cells = cells[(cells["optimizer"] == "sgd") | cells["batch_size"].isin(few)]
    rows = [
        {**cell, "trial": trial, "step": 1, "quantity": name, "value": value}
        for cell, trial in zip(
            cells[study_key(cells)].to_dict("records"), cells["best_trial"], strict=True
        )
        for name, value in (
            ("gradient_square", 1.0),
            ("noise_trace", 5.0 if cell["optimizer"] == "sgd" else 7.0),
        )
    ]
    found = docs.measured_curves("s", cells, pd.DataFrame(rows), "")
    points = observations_by_curve(cells)
    joint = joint_fit(points)
    sgd, lamb = "optimizer sgd", "optimizer lamb"
    truths = {5.0: fit_law(points[sgd]), 7.0: joint[lamb]}
    assert joint[sgd].critical_batch_size != truths[5.0].critical_batch_size
    assert sorted(each.noise for each in found) == pytest.approx([5, 7])
    for each in found:
        truth = truths[round(each.noise)].posterior.critical_batch_size
        np.testing.assert_array_equal(each.critical.masses, truth.masses)
