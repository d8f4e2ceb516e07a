from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.core import TrialState, TurnReport, UserError
from dps_tf.store import (
    MEASUREMENTS,
    SCHEMAS,
    LocalFiles,
    OtherFormatError,
    StudyReader,
    SweepLayout,
    SweepReader,
    close_study,
    empty_frame,
    encode_event,
    open_study,
    read_json,
    session_event,
    write_json,
    write_table,
)
from dps_tf.store.layout import segments
from tests.made_up import specifications
from tests.made_up.sweeps import closing
from tests.store.object_store import MemoryFiles
from tests.store.records_test import of_format

MEASURED = {
    "trial": 0,
    "step": 100,
    "quantity": "smoothness",
    "value": 3.25,
    "examples": 1000,
}


def _close(files, sweep, batch_size, **metaparameters):
    cell = sweep.cell(f"b{batch_size}")
    tables = closing(batch_size=batch_size)
    tables["trials"] = tables["trials"].assign(**metaparameters)
    close_study(files, cell.root, **tables)
    return cell


def _sweep(files=None, root="gs://b/s"):
    files = files or MemoryFiles()
    sweep = SweepLayout(root)
    for batch_size in (512, 8, 64):
        _close(files, sweep, batch_size)
    write_json(files, sweep.marker, {})
    write_json(files, sweep.sweep, {"cells": ["b8", "b64", "b512", "b1024"]})
    return files, sweep


def test_closed_cells_are_joined_in_the_order_of_their_identity():
    files, sweep = _sweep()
    tables = SweepReader(files, sweep.root).tables()
    assert tables.studies["batch_size"].tolist() == [8, 64, 512]
    assert tables.trials["batch_size"].unique().tolist() == [8, 64, 512]
    assert tables.trials["trial"].tolist() == [0, 1, 2] * 3
    assert tables.curves["trial"].tolist() == [*[0] * 7, *[1] * 6, *[2] * 3] * 3
    assert len(tables.work) == 3 * 21
    assert len(tables.measurements) == 0 and tables.problems == ()
    assert tables.studies["closed"].all()


def test_metaparameters_that_a_cell_lacks_are_missing_numbers():
    files, sweep = _sweep()
    _close(files, sweep, 16, momentum=0.9)
    trials = SweepReader(files, sweep.root).tables().trials
    assert list(trials.columns[-2:]) == ["learning_rate", "momentum"]
    assert trials["momentum"].isna().sum() == 9
    assert trials["momentum"].dtype == "float64"
    assert str(trials["steps_to_result"].dtype) == "Int64"


def test_an_empty_sweep_gives_empty_tables_with_all_columns():
    files = MemoryFiles()
    files.write_atomic("s/.dps_tf", b"{}")
    files.objects["/abs"] = (b"", 0.0)
    root = SweepLayout("gs://b/s")
    files.write_atomic(root.marker, b"{}")
    tables = SweepReader(files, root.root).tables()
    for name in SCHEMAS:
        pd.testing.assert_frame_equal(getattr(tables, name), empty_frame(SCHEMAS[name]))


def test_a_directory_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no sweep"):
        SweepReader(LocalFiles(), str(tmp_path))
    with pytest.raises(UserError, match="holds no sweep"):
        SweepReader(LocalFiles(), f"{tmp_path}/missing")


def _open(files, sweep, batch_size):
    """Begins a study of three trials, of which the first reaches the goal."""
    study = specifications.specification(batch_size, points=3)
    inputs = {"training_examples": 100, "validation_examples": 20}
    layout = sweep.cell(study.cell.name)
    record = open_study(files, layout, study, {"tensorflow": "1"}, inputs)
    interval = study.evaluations.interval
    for place, error in enumerate((0.5, 0.0)):
        step = interval * (place + 1)
        metrics = {study.goal.metric: error}
        state = TrialState(step, (np.zeros(1),))
        record.add_report(TurnReport(0, state, step, metrics, False, None, interval, 1))
    record.snapshot(force=True)
    return layout


def test_open_cells_are_read_from_their_logs():
    files, sweep = _sweep()
    layout = _open(files, sweep, 1024)
    files.write_atomic(sweep.cell("b2048").study, b"")
    before = dict(files.objects)
    reader = SweepReader(files, sweep.root)
    tables = reader.tables()
    assert tables.studies["closed"].tolist() == [True, True, True, False]
    first = tables.trials[tables.trials["batch_size"] == 1024].iloc[0]
    assert first["outcome"] == "complete"
    assert (tables.curves["batch_size"] == 1024).sum() == 2
    assert len(tables.problems) == 1 and "b2048" in tables.problems[0]
    study = reader.study(layout.root.rpartition("/")[2])
    assert study.result().finishers[0] == (first["steps_to_result"], 0)
    assert study.states.trials() == [0] and study.closed() is None
    assert files.objects == before, "reading changed something"


def test_an_unknown_cell_is_told_with_those_that_are_near():
    files, sweep = _sweep()
    with pytest.raises(UserError, match="'b65' is unknown: did you mean 'b64'"):
        SweepReader(files, sweep.root).study("b65")


def test_measurements_are_read_from_open_and_closed_cells():
    files, sweep = _sweep()
    for batch_size in (64, 1024):
        path = sweep.cell(f"b{batch_size}").measurements
        cell = specifications.specification(batch_size).cell.to_json()
        measured = pd.DataFrame([{**cell, **MEASURED}])
        write_table(files, path, measured, MEASUREMENTS)
    files.write_atomic(sweep.cell("b8").measurements, b"junk")
    tables = SweepReader(files, sweep.root).tables()
    assert tables.measurements["batch_size"].tolist() == [64, 1024]
    assert len(tables.problems) == 1
    assert len(StudyReader(files, sweep.cell("b64")).measurements()) == 1
    assert len(StudyReader(files, sweep.cell("b512")).measurements()) == 0


def test_only_the_wanted_tables_are_read():
    files, sweep = _sweep()
    for name in ("curves", "work"):
        files.remove(sweep.cell("b8").table(name))
    tables = SweepReader(files, sweep.root).tables(["trials"])
    assert len(tables.trials) == 9 and len(tables.curves) == 0
    assert tables.problems == ()


@pytest.mark.parametrize("left", ["marker", "sweep", "study", "closed", "log"])
def test_what_has_the_form_of_before_is_refused_and_stays_as_it_is(left):
    files, sweep = _sweep()
    layout = _open(files, sweep, 16)
    paths = {
        "marker": sweep.marker,
        "sweep": sweep.sweep,
        "study": layout.study,
        "closed": sweep.cell("b64").closed,
    }
    if left == "log":
        log = layout.log("main")
        session = {"kind": "session", "slots": 1, "fingerprint": "c0ffee"}
        files.write_atomic(f"{segments(log)}/00000001", encode_event(session))
        paths[left] = log
    else:
        files.write_atomic(paths[left], of_format(read_json(files, paths[left]), None))
    before = dict(files.objects)
    told = f"^{paths[left]} was written before formats had numbers, .* commit 31a3605"
    with pytest.raises(OtherFormatError, match=told):
        reader = SweepReader(files, sweep.root)
        reader.tables()
        assert reader.planned
    assert files.objects == before


def test_what_is_no_cell_is_named_and_passed_over(tmp_path):
    files, sweep = _sweep(LocalFiles(), str(tmp_path / "s"))
    own = _open(files, sweep, 16)
    expected = SweepReader(files, sweep.root).tables()
    assert expected.problems == ()
    copy = Path(f"{own.root}-copy")
    shutil.copytree(own.root, copy)
    shutil.copytree(own.root, f"{own.root} (1)")
    for name in ("lost+found", "mine"):
        Path(sweep.cells, name).mkdir()
    for name in (".DS_Store", "notes.txt"):
        Path(sweep.cells, name).write_text("mine")
    reader = SweepReader(files, sweep.root)
    found = reader.tables()
    for name in SCHEMAS:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name))
    passed = [text for text in found.problems if "is skipped" in text]
    assert len(passed) == len(found.problems) == 6
    cell = own.root.rpartition("/")[2]
    assert f"{copy} is skipped: it is a copy of {cell}." in passed
    assert f"{sweep.cells}/.DS_Store is skipped: it holds no study." in passed


def test_what_the_directory_lacks_is_told(tmp_path):
    files, sweep = _sweep(LocalFiles(), str(tmp_path / "s"))
    for path in (sweep.marker, sweep.sweep):
        data = files.read_bytes(path)
        files.remove(path)
        tables = SweepReader(files, sweep.root).tables()
        assert tables.studies["closed"].tolist() == [True] * 3
        [problem] = tables.problems
        assert problem == (f"{path} is missing: running the sweep again restores it.")
        files.write_atomic(path, data[:-9])
        if path == sweep.sweep:
            reader = SweepReader(files, sweep.root)
            assert reader.planned == ()
            [problem] = reader.problems
            assert path in problem and "damaged" in problem
        files.write_atomic(path, data)


@pytest.mark.parametrize("change", ["renamed", "missing", "unknown", "value"])
def test_a_specification_of_another_version_is_refused_and_nothing_written(change):
    files, sweep = _sweep()
    layout = _open(files, sweep, 16)
    asked = specifications.specification(16, points=3)
    content = read_json(files, layout.study)
    stored = content["specification"]
    if change in ("renamed", "missing"):
        mode = stored.pop("search_mode")
    if change == "renamed":
        stored["schedule"] = mode
    if change == "unknown":
        stored["workload"]["of_tomorrow"] = 1
    if change == "value":
        stored["precision"] = "float8"
    write_json(files, layout.study, content)
    session = session_event(2, asked)
    session["versions"] = {"dps_tf": "0.0.7"}
    files.write_atomic(
        segments(layout.log("main")) + "/00000001", encode_event(session)
    )
    before = dict(files.objects)
    unlike = {"renamed": "schedule, search_mode", "missing": "search_mode"}
    names = {**unlike, "unknown": "of_tomorrow", "value": ""}[change]
    with pytest.raises(OtherFormatError) as refused:
        SweepReader(files, sweep.root)
    with pytest.raises(OtherFormatError) as again:
        open_study(files, layout, asked, {"tensorflow": "1"}, {})
    said = f" in {names}" if names else ""
    assert str(refused.value) == str(again.value)
    assert str(refused.value) == (
        f"{layout.study} was written by another version of dps_tf (0.0.7), whose "
        f"specification differs from this version's{said}: use that version, or choose "
        "another directory."
    )
    assert files.objects == before


def test_a_closed_study_with_other_columns_is_of_another_version():
    files, sweep = _sweep()
    closed = sweep.cell("b64").closed
    content = read_json(files, closed)
    content["study"]["schedule"] = content["study"].pop("search_mode")
    write_json(files, closed, content)
    with pytest.raises(OtherFormatError, match=f"^{closed} was written by another ver"):
        SweepReader(files, sweep.root).tables()


def test_curves_have_the_metric_of_the_goal_before_any_evaluation():
    files, sweep = MemoryFiles(), SweepLayout("gs://b/s")
    study = specifications.specification(16, points=3)
    inputs = {"training_examples": 100, "validation_examples": 20}
    layout = sweep.cell(study.cell.name)
    open_study(files, layout, study, {"tensorflow": "1"}, inputs).snapshot(force=True)
    tables = SweepReader(files, sweep.root).tables()
    assert len(tables.studies) == 1 and len(tables.curves) == 0
    assert tables.curves[study.goal.metric].dtype == "float64"
    assert list(tables.curves.columns)[-2:] == ["is_bound", study.goal.metric]
