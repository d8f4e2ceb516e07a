"""A further axis takes a gin file and no change of the package."""

from __future__ import annotations

from pathlib import Path

from dps_tf.analysis import loading, report
from dps_tf.store.layout import SweepLayout
from dps_tf.tuning import launching
from dps_tf.workloads.reading import read_configuration
from tests.tuning.small_sweeps import launched

FILE = Path(__file__).parent / "width_axis.gin"
WIDTH = "workload.network_arguments.width"
SMOOTHING = "workload.fixed.label_smoothing"


def test_an_axis_goes_from_the_gin_file_to_the_report(tmp_path):
    sweep, _ = read_configuration([str(FILE)], [], ["tests.extensions.width_axis"])
    launching.check_names(sweep)
    assert len(sweep.studies) == 3 * 2 * 2
    launched(tmp_path / "sweep", sweep)
    tables = loading.load(tmp_path / "sweep")
    results = tables.results
    assert set(zip(results[WIDTH], results[SMOOTHING], strict=True)) == {
        (width, smoothing) for width in ("4", "16") for smoothing in ("0.0", "0.1")
    }
    assert (results["label_smoothing"] == results[SMOOTHING].astype(float)).all()
    # The networks had the widths: a state holds their kernels.
    for study in sweep.studies:
        folder = SweepLayout(str(tmp_path / "sweep")).cell(study.cell.name).root
        assert Path(folder).is_dir()
    report.write_report(tables, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "width 16" in page
    assert "label_smoothing 0.1" in page
    # Asked again, nothing is left to do: the cells are found by their names.
    again = launched(tmp_path / "sweep", sweep)
    assert not again.ran
    assert len(again.finished_before) == len(sweep.studies)
