"""A further axis takes a gin file and no change of the package."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dps_tf.analysis import loading, report
from tests.analysis.few_sections import draw_only
from tests.made_up.small_sweeps import configured, launched

FILE = Path(__file__).parent / "width_axis.gin"
WIDTH = "workload.network_arguments.width"
SMOOTHING = "workload.fixed.label_smoothing"


@pytest.mark.slow
def test_an_axis_goes_from_the_gin_file_to_the_report(tmp_path, monkeypatch):
    importlib.import_module("tests.extensions.width_axis")
    sweep = configured([], [str(FILE)])
    assert len(sweep.studies) == 2 * 2
    launched(tmp_path / "sweep", sweep)
    tables = loading.load(tmp_path / "sweep")
    results = tables.results
    assert sorted(results[WIDTH]) == ["16", "16", "4", "4"]
    assert set(results[SMOOTHING]) == {"0.1"}
    trained = tables.trials["outcome"] != "failed"
    assert trained.all()
    assert (tables.trials["label_smoothing"] == 0.1).all()
    draw_only(monkeypatch, "headline", "table")
    report.write_report(tables, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "width 16" in page
    assert "width 4" in page
    # Asked again, nothing is left to do: the cells are found by their names.
    again = launched(tmp_path / "sweep", sweep)
    assert not again.ran
    assert len(again.finished_before) == len(sweep.studies)
