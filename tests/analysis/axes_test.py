"""A further axis of cells goes through tables, curves, fits and report."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.analysis import fit_table, loading, report
from dps_tf.analysis.report.curves import comparable, curves_of, effects
from dps_tf.analysis.report.terminal import terminal_table
from dps_tf.analysis.tables import study_key
from tests.analysis.few_sections import draw_only
from tests.made_up.sweeps import Sweep, write_sweep

WIDTH = "workload.network_arguments.width"
PLAIN = Sweep(sparsities=(0.0,), batch_sizes=(64, 256, 1024), points=8)
NARROW = dataclasses.replace(PLAIN, axes=((WIDTH, "8"),))
WIDE = dataclasses.replace(PLAIN, axes=((WIDTH, "16"),), optimizers=("sgd", "momentum"))
TABLES = ("studies", "trials", "curves", "measurements", "results", "bounded")


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("axes") / "sweep"
    for sweep in (WIDE, NARROW, PLAIN):
        write_sweep(folder, sweep)
    return folder


@pytest.fixture(scope="module")
def tables(sweep_dir) -> loading.Tables:
    return loading.load(sweep_dir)


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    keys = [*study_key(frame), "trial", "step", "quantity"]
    found = frame.sort_values([name for name in keys if name in frame])
    return found.reset_index(drop=True)


def test_cells_of_every_value_are_what_they_are_alone(tables, tmp_path):
    for number, sweep in enumerate((NARROW, WIDE, PLAIN)):
        alone = loading.load(write_sweep(tmp_path / str(number), sweep))
        value = dict(sweep.axes).get(WIDTH, "")
        for name in TABLES:
            both = getattr(tables, name)
            mine = both[both[WIDTH] == value]
            expected = getattr(alone, name)
            pd.testing.assert_frame_equal(
                ordered(mine[list(expected.columns)]).dropna(axis=1, how="all"),
                ordered(expected).dropna(axis=1, how="all"),
            )
    assert list(tables.results.columns)[:8] == study_key(tables.results)
    assert len(tables.results) == 3 * 4


def test_sweeps_with_and_without_an_axis_are_read_together(tables, tmp_path):
    folders = [
        write_sweep(tmp_path / str(number), sweep)
        for number, sweep in enumerate((WIDE, NARROW, PLAIN))
    ]
    apart = loading.load(*folders)
    for name in TABLES:
        pd.testing.assert_frame_equal(
            ordered(getattr(apart, name)), ordered(getattr(tables, name))
        )


def test_a_curve_is_equal_in_all_but_the_batch_size(tables):
    curves = curves_of(tables.results, tables.studies)
    names = list(dict.fromkeys(curves.cells["curve"]))
    assert names == ["sgd", "sgd, width 8", "sgd, width 16", "momentum, width 16"]
    assert set(map(curves.title, curves.fits)) == set(names)
    sizes = curves.cells.groupby("curve")["batch_size"].agg(list)
    assert all(each == [64, 256, 1024] for each in sizes)


def test_an_effect_is_a_pair_of_curves_that_differ_in_one_axis(tables):
    curves = curves_of(tables.results)
    [keys] = comparable(curves)
    pairs = [tuple(map(curves.title, pair)) for pair in effects(keys)]
    assert pairs == [
        ("momentum, width 16", "sgd, width 16"),
        ("sgd, width 8", "sgd"),
        ("sgd, width 16", "sgd"),
    ]


def test_the_fit_of_a_results_table_has_a_curve_for_every_value(tables, tmp_path):
    path = tmp_path / "results.csv"
    tables.results.to_csv(path, index=False)
    found = fit_table.fit_table(fit_table.read_table(path))
    names = {curve.curve for curve in found.curves}
    assert names == {
        f"optimizer sgd, {WIDTH} 8",
        f"optimizer sgd, {WIDTH} 16",
        f"optimizer momentum, {WIDTH} 16",
        f"optimizer sgd, {WIDTH} ",
    }
    assert found.comparison is not None


def test_the_report_and_the_terminal_tell_the_axis(tables, tmp_path, monkeypatch):
    draw_only(monkeypatch, "headline", "table", "law")
    report.write_report(tables, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "sgd, width 16" in page
    assert "sgd, width 8" in page
    assert WIDTH in (tmp_path / "results.csv").read_text().split("\n")[0].split(",")
    lines = terminal_table(tables.results).splitlines()
    assert WIDTH in lines[1].split()
    assert lines[2:] == sorted(lines[2:], key=lambda line: "momentum" not in line)
