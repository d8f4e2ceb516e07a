"""`dps_tf.load(...).compare(...)`: ratios of curves, and that all doors give the same.

The made-up sweeps have c1 = 24,000 (1 + 1.6 s^2) at sparsity s, and c2 = 260 for SGD.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t

from dps_tf.analysis import loading
from dps_tf.analysis.fit_table import fit_table
from dps_tf.analysis.law import Observations, compare
from dps_tf.analysis.report import curves, law
from tests.made_up.sweeps import Sweep, make
from tests.packaging.source_tree import SOURCE_TREE

pytestmark = pytest.mark.slow  # Joint fits take a second each.

# Of SGD no winner lies at an end of its range, and evaluations are many.
SWEEP = Sweep(
    sparsities=(0.0, 0.9),
    batch_sizes=(16, 64, 256, 1024, 4096),
    interval=20,
    step_budget=20_000,
)
DENSE = "sparsity_method none, sparsity 0.0"
SPARSE = "sparsity_method snip, sparsity 0.9"


@pytest.fixture(scope="module")
def both() -> loading.Tables:
    return make(SWEEP)


def least_squares(steps: dict[str, pd.DataFrame]) -> dict[str, np.ndarray]:
    """Returns log2 of the ratios of c1 and c2, with the ends of their t intervals.

    By least squares of log2 K* for each curve, with one residual variance: what a joint
    fit is where K* are exact.
    """
    fits, squares, freedom = [], 0.0, 0
    for rows in steps.values():
        b, k = (rows[n].to_numpy(float) for n in ("batch_size", "steps_to_result"))

        def model(b, one, two):
            return np.log2(2**one / b + 2**two)

        found, covariance = curve_fit(model, b, np.log2(k), [14.0, 8.0])
        rest = np.sum((np.log2(k) - model(b, *found)) ** 2)
        fits.append((found, covariance / (rest / (len(b) - 2))))
        squares, freedom = squares + rest, freedom + len(b) - 2
    middle = fits[1][0] - fits[0][0]
    error = np.sqrt(np.diag(fits[0][1] + fits[1][1]) * squares / freedom)
    width = t.ppf(0.975, freedom) * error
    ends = np.transpose([middle, middle - width, middle + width])
    return dict(zip(("c1", "c2"), ends, strict=True))


def test_ratios_are_those_that_were_put_in_and_those_of_least_squares(both):
    assert (both.results["at_boundary"] == "").all()
    found = both.compare(DENSE).set_index("quantity")
    true = {"c1": 1 + 1.6 * 0.81, "c2": 1.0, "critical_batch_size": 1 + 1.6 * 0.81}
    for name, ratio in true.items():
        assert found.loc[name, "low"] < ratio < found.loc[name, "high"]
    assert found.loc["c1", "verdict"] == "higher"
    by_curve = {s: rows for s, rows in both.results.groupby("sparsity")}
    for name, wanted in least_squares(by_curve).items():
        ends = np.log2(found.loc[name, ["ratio", "low", "high"]].to_numpy(float))
        np.testing.assert_allclose(ends, wanted, atol=0.15 * (wanted[2] - wanted[1]))


def test_the_margin_decides_what_is_equal(both):
    within = both.compare(DENSE).set_index("quantity").loc["c2", "within"]
    for factor, verdict in ((1.001, "equal within"), (0.999, "unresolved")):
        margin = within * factor
        found = both.compare(DENSE, margin=margin).set_index("quantity")
        assert found.loc["c2", "verdict"].startswith(verdict)


def of_intervals(dense: int, sparse: int) -> loading.Tables:
    pairs = ((0.0, dense), (0.9, sparse))
    return make(
        *(dataclasses.replace(SWEEP, sparsities=(s,), interval=i) for s, i in pairs)
    )


def test_unlike_intervals_are_refused():
    found = of_intervals(40, 60).compare(DENSE)
    assert set(found["verdict"]) == {
        "refused: evaluated every 60 and every 40 steps at batch size 16"
    }
    assert found["p_adjusted"].isna().all()


def test_what_data_do_not_refuse_is_never_concluded():
    steps = [4990, 2619, 1319, 620, 312, 165, 85, 47, 29, 19]
    dense = Observations.of(4 * 2 ** np.arange(10), steps)
    pruned = Observations.of([4, 8, 16, 32], [14086, 8482, 3988, 2003])
    for pair, open_end in ((("pruned", "dense"), 0.0), (("dense", "pruned"), np.inf)):
        curves = {"pruned": pruned, "dense": dense}
        [ratio] = compare(curves, pairs=[pair]).ratios
        assert open_end in (ratio.c2.low, ratio.c2.high)
        assert ratio.c2.verdict == "unresolved" and ratio.c1.verdict != "unresolved"


def test_report_fit_and_documents_give_the_same_table(tmp_path, monkeypatch):
    of = {"optimizers": ("sgd", "nesterov"), "sparsities": (0.0,)}
    tables = make(dataclasses.replace(SWEEP, **of))
    wanted = tables.compare("optimizer sgd")
    assert set(wanted["searches"]) == {
        "16 points in 2 dimensions against 16 points in 1 dimension"
    }
    of_fit = fit_table(tables.results, reference="optimizer sgd").comparison.to_frame()
    [of_report] = law.joint_fits(curves.curves_of(tables.results, tables.studies))
    numbers = ["ratio", "low", "high", "probability", "p_adjusted", "within"]
    for frame in (of_fit, of_report.to_frame()):
        np.testing.assert_allclose(frame[numbers], wanted[numbers], rtol=1e-9)
        assert list(frame["verdict"]) == list(wanted["verdict"])
        assert (frame["searches"].str.contains(" in 2 dim.* against .* in 1 ")).all()
    tables.results.to_csv(tmp_path / "study.csv", index=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(SOURCE_TREE / "docs")])
    records = importlib.import_module("records").Tables(tmp_path)
    pair = records.ratio("study", "optimizer nesterov", "optimizer sgd")
    for _, row in wanted.iterrows():
        of_documents = getattr(pair, row["quantity"])
        assert of_documents.value == pytest.approx(row["ratio"])
        assert of_documents.verdict == row["verdict"]
