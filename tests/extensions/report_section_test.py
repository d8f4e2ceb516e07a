"""A section of the report takes a module."""

from __future__ import annotations

import importlib

from dps_tf.analysis import report
from dps_tf.analysis.loading import Record, tables_of
from dps_tf.analysis.report import assembly
from tests.analysis.synthetic_tables import Sweep, make


def test_a_section_is_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "SECTIONS", list(assembly.SECTIONS))
    made = make(Sweep(sparsities=(0.0,), batch_sizes=(8, 64, 256), points=4))
    record = Record(made.studies, made.trials, made.curves, made.measurements)
    importlib.import_module("tests.extensions.examples_section")
    found = report.write_report(tables_of(record), tmp_path)
    (table,) = next(s for s in found.sections if s.name == "examples_seen").tables
    results = found.results.dropna(subset=["steps_to_result"])
    expected = results["batch_size"] * results["steps_to_result"]
    assert table.frame["examples"].tolist() == expected.tolist()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The cost of a result in examples." in page
