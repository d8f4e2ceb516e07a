"""Runs of a batch size, many curves in one table, and the figures of both."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import dps_tf
from dps_tf.analysis.fit_table import fit_table, read_table, text_of
from dps_tf.analysis.fit_table import median_of_runs as medians
from dps_tf.core import UserError
from tests import interpreter

B = 4.0 ** np.arange(5)


def runs(seed=0, number=20, spread=0.1, c1=1e5, c2=400.0, every=None, **columns):
    """Returns runs of a curve whose steps scatter by `spread` octaves."""
    draws = np.random.default_rng(seed).normal(0, spread, (number, len(B)))
    steps = (c1 / B + c2) * 2**draws
    table = pd.DataFrame(
        {
            "batch_size": np.tile(B, number),
            "run": np.repeat(np.arange(number), len(B)),
            "steps_to_result": steps.ravel(),
            **columns,
        }
    )
    if every:
        table["steps_to_result"] = np.ceil(table["steps_to_result"] / every) * every
        table["bracket_low"] = table["steps_to_result"] - every
    return table


def exact(c1, c2, **columns):
    return pd.DataFrame({"batch_size": B, "steps_to_result": c1 / B + c2, **columns})


def test_runs_are_their_median_in_its_bracket():
    table = runs(every=50)
    found = medians(table).set_index("batch_size")
    for size, rows in table.groupby("batch_size"):
        k = np.sort(rows["steps_to_result"])
        assert found["steps_to_result"][size] == (k[9] + k[10]) / 2
        assert found["bracket_low"][size] == (k[9] + k[10]) / 2 - 50
        assert found["runs"][size] == 20
    [curve] = fit_table(table).curves
    assert curve.runs == (20, 20) and curve.left_out == 0
    assert "medians of 20 to 20 runs" in text_of(fit_table(table))


@pytest.mark.parametrize("number", [6, 60])
def test_noise_is_the_standard_error_of_a_median(number):
    draws = [medians(runs(seed, number)) for seed in range(120)]
    spread = np.std([np.log2(d["steps_to_result"]) for d in draws], axis=0)
    stated = np.sqrt(np.mean([d["noise"] ** 2 for d in draws], axis=0))
    assert stated.mean() == pytest.approx(spread.mean(), rel=0.2)


def test_a_run_that_did_not_end_is_as_long_as_any():
    table = runs(number=5).assign(bracket_low=lambda t: t["steps_to_result"] - 1)
    last = table["run"] > 2
    longest = table["steps_to_result"].max()
    table.loc[last, ["steps_to_result", "bracket_low"]] = np.nan, longest
    found = medians(table)
    rest = table[~last].groupby("batch_size")["steps_to_result"].max()
    assert found["steps_to_result"].tolist() == rest.tolist()
    table.loc[table["run"] > 1, "steps_to_result"] = np.nan
    table.loc[table["run"] > 1, "bracket_low"] = longest
    assert medians(table)["steps_to_result"].isna().all()
    assert (medians(table)["bracket_low"] == longest).all()


def test_the_noise_of_one_run_is_kept_and_of_several_added():
    one = medians(runs(number=1, noise=0.3))
    assert one["noise"].tolist() == [0.3] * len(B)
    bare, more = medians(runs()), medians(runs(noise=0.3))
    assert more["noise"].tolist() == np.hypot(bare["noise"], 0.3).tolist()


def test_a_run_that_comes_twice_and_two_units_are_refused():
    with pytest.raises(UserError, match="run 0 of batch size 1 comes twice"):
        fit_table(pd.concat([runs(), runs()]))
    units = ["images"] * 99 + ["tokens"]
    with pytest.raises(UserError, match="'all' has the units images and tokens"):
        fit_table(runs(unit=units))


@pytest.mark.slow
def test_intervals_of_medians_hold_the_truth():
    held = 0
    for seed in range(40):
        table = runs(seed, every=40, spread=0.15)
        # A batch size has a deviation of its own, as its metaparameters have.
        own = np.random.default_rng(1000 + seed).normal(0, 0.08, len(B))
        factor = table["batch_size"].map(dict(zip(B, 2**own, strict=True)))
        table[["steps_to_result", "bracket_low"]] *= factor.to_numpy()[:, None]
        [curve] = fit_table(table).curves
        critical = curve.fit.critical_batch_size
        held += critical.low < 250 < critical.high
    assert held >= 35


@pytest.fixture(scope="module")
def several():
    long = "a name of several words that is longer than there is room for in the table"
    parts = [runs(k, c1=4.0**k * 1e4, curve=f"curve {k}") for k in range(3)]
    parts += [exact(1e5, 0.0, curve="no plateau", run=0), exact(1e5, 9.0, curve=long)]
    table = pd.concat([*parts, exact(10, 1, curve="short")[:2]]).assign(run=0)
    return table.assign(run=table.groupby(["curve", "batch_size"]).cumcount())


def test_many_curves_are_one_table(several, tmp_path):
    several.assign(unit="images").to_csv(tmp_path / "table.csv", index=False)
    fitted = fit_table(read_table(tmp_path / "table.csv"))
    text = text_of(fitted)
    assert max(map(len, text.splitlines())) <= 100
    for curve in fitted.curves:
        assert all(word in text for word in curve.curve.split())
    [line] = [line for line in text.splitlines() if line.startswith("curve 2")]
    assert line.split()[2:4] == ["5", "20"]
    assert "c1 in images" in text and "for a fit: short." in text
    assert "Ratios:" not in text and "comparison" not in vars(fitted)
    named = text_of(fitted, ["curve 1"])
    assert named.startswith("curve 1: K* = c1/B + c2") and "curve 2" not in named
    with pytest.raises(UserError, match="--curve 'curve1' is unknown"):
        text_of(fitted, ["curve1"])
    other = fit_table(several.assign(unit=several["curve"].str[:1]), None, "curve 0")
    assert "curve 1 / curve 0" in text_of(other)
    assert text_of(other).splitlines()[0].split()[:2] == ["curve", "unit"]


def test_rows_are_the_fits_and_pairs_are_compared_alone(several):
    fitted = fit_table(several)
    rows = fitted.to_frame().set_index("curve")
    for curve in fitted.curves:
        row, fit = rows.loc[curve.curve], curve.fit
        assert row["critical"] == fit.critical_batch_size.value
        assert row["c2_high"] == fit.c2.high and row["exponent_low"] == fit.exponent.low
    assert rows.loc["no plateau", "critical_high"] == np.inf
    assert rows.loc["curve 0", ["smallest", "largest", "runs_most"]].tolist() == [
        *(1, 256, 20)
    ]
    pairs = fitted.compare([("curve 2", "curve 1")])
    [ratio] = pairs.ratios
    assert list(pairs.fits) == ["curve 2", "curve 1"]
    assert ratio.c1.low < 4 < ratio.c1.high and ratio.c2.verdict != "higher"


def lines_of(axis):
    return [line for line in axis.get_lines() if line.get_marker() not in ("None", "")]


def test_curves_collapse_on_the_law():
    scales = [(1e5, 400.0), (3e4, 900.0), (1e3, 7.0)]
    table = pd.concat(exact(*c, curve=str(k)) for k, c in enumerate(scales))
    [axis] = dps_tf.plot_collapsed(dps_tf.fit_table(table)).axes
    drawn = [line.get_xydata() for line in lines_of(axis)]
    assert len(drawn) == 3
    for points in drawn:
        np.testing.assert_allclose(points[:, 1], 1 + 1 / points[:, 0], rtol=0.05)
    bars = [np.diff(s[:, 1]) for c in axis.collections for s in c.get_segments()]
    assert not np.any(bars)


def test_a_curve_whose_end_is_a_bound_has_no_place(several):
    fitted = dps_tf.fit_table(several)
    bounds = [curve.curve for curve in fitted.curves if curve.fit.unresolved]
    assert "no plateau" in bounds
    figure = dps_tf.plot_collapsed(fitted)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(lines_of(figure.axes[0])) == len(fitted.curves) - len(bounds)
    assert not set(names) & set(bounds)
    assert names[-1] == f"{len(bounds)} left out: c1/c2 is a bound"
    alone = dps_tf.fit_table(several[several["curve"] == "no plateau"])
    [axis] = dps_tf.plot_collapsed(alone).axes
    assert not lines_of(axis)


def test_bars_are_brackets_and_noise():
    fitted = dps_tf.fit_table(runs(every=100))
    [axis] = dps_tf.plot_collapsed(fitted).axes
    [bars], points = axis.collections, fitted.curves[0].fit.observations
    c2 = fitted.curves[0].fit.c2.value
    for bar, low, high, noise in zip(
        bars.get_segments(), points.low, points.high, points.noise, strict=True
    ):
        assert bar[0, 1] == pytest.approx(low / 4**noise / c2)
        assert bar[1, 1] == pytest.approx(high * 4**noise / c2)


def test_critical_batch_sizes_stand_in_their_order(several):
    fitted = dps_tf.fit_table(several)
    [axis] = dps_tf.plot_critical(fitted, {"curve 0": "one"}).axes
    drawn = lines_of(axis)
    values = [float(line.get_xdata()[0]) for line in drawn]
    assert values == sorted(values) and len(values) == 5
    names = [text.get_text() for text in axis.get_yticklabels()]
    hollow = {n for n, line in zip(names, drawn, strict=True) if white(line)}
    assert "no plateau" in hollow and "curve 0" not in hollow
    [legend] = axis.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "other"]


def white(line):
    return line.get_markerfacecolor() == "white"


def test_the_command_prints_a_curve_by_name(several, tmp_path):
    several.to_csv(tmp_path / "table.csv", index=False)
    words = ["-m", "dps_tf.fit", f"--csv={tmp_path / 'table.csv'}"]
    done = interpreter.run(words, modules=interpreter.TABLES)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) < 20
    done = interpreter.run([*words, "--curve=curve 1"], modules=interpreter.TABLES)
    assert done.stdout.startswith("curve 1: K* = c1/B + c2"), done.stderr
