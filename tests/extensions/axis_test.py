"""A further axis takes a gin file and no change of the package."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import dps_tf
from dps_tf.analysis import report
from tests.analysis.few_sections import draw_only

FILE = Path(__file__).parent / "width_axis.gin"
WIDTH = "workload.network_arguments.width"
SMOOTHING = "workload.fixed.label_smoothing"


@pytest.mark.slow
def test_an_axis_goes_from_the_gin_file_to_the_report(tmp_path, monkeypatch, capsys):
    importlib.import_module("tests.extensions.width_axis")
    sweep = dps_tf.sweep(str(FILE))
    assert len(sweep.specification.studies) == 2 * 2
    sweep = dps_tf.sweep(str(FILE), values={"sweep.batch_sizes": (4,)})
    tables = dps_tf.run(sweep, tmp_path / "sweep")
    results = tables.results
    assert sorted(results[WIDTH]) == ["16", "4"]
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
    capsys.readouterr()
    dps_tf.run(sweep, tmp_path / "sweep")
    assert "nothing to do: all 2 cells are finished." in capsys.readouterr().out
