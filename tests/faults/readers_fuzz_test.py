"""Whatever bytes a file of others holds, its reader refuses it or reads it rightly.

A refusal is one printable sentence. What is right is known from elsewhere: rows by
splitting lines at commas, event files by the checksum of each record.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.analysis.fit_table import curves_of_table, fit_table, read_table, text_of
from dps_tf.analysis.interchange.event_files import from_tensorboard
from dps_tf.analysis.interchange.optuna_studies import from_optuna, load_optuna
from dps_tf.analysis.interchange.run_tables import Runs, read_runs
from dps_tf.analysis.interchange.shallue2019 import write_archive
from dps_tf.analysis.interchange.sweep import write_runs
from dps_tf.analysis.loading import load
from dps_tf.core import UserError
from tests.faults.recorded_runs import (
    EDITS,
    ERRORS,
    EVALUATIONS,
    GOAL,
    METRIC,
    TRIALS,
    check_sentence,
    damaged,
    write_database,
    write_event_file,
    write_tables,
)
from tests.made_up.archives import write_study
from tests.made_up.specifications import ERROR

pytestmark = [pytest.mark.fault, pytest.mark.slow]
FEW = settings(max_examples=15)

ODD = st.sampled_from(["", " ", "nan", "inf", "1e400", "1.7", "9" * 20, "x", "-0"])
PLAIN = st.integers(1, 60).map(str)
ANY = ODD | st.floats().map(str)
NUMBERS = st.integers(0, 15).flatmap(lambda n: PLAIN if n else ANY)
"""Sixteen to one, so that most tables are read."""


def read_or_refused(read: Callable[[], Any]) -> Any:
    """Returns what a reader makes of a file, or None after one sentence."""
    try:
        return read()
    except UserError as error:
        check_sentence(error)
        return None


HEADER = "noise,batch_size,steps_to_result,bracket_low"


@given(
    rows=st.lists(st.tuples(*[NUMBERS] * 4) | st.lists(NUMBERS, min_size=1), max_size=5)
)
def test_a_table_of_results_is_read_as_its_lines_say(rows):
    lines = [",".join(row) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text("\n".join([HEADER, *lines]))
        table = read_or_refused(lambda: read_table(path))
    if table is None:
        return
    full = [line.split(",") for line in lines if line.strip()]
    expected = [[float(text) if text.strip() else np.nan for text in x] for x in full]
    np.testing.assert_array_equal(
        table.to_numpy(float), np.reshape(np.array(expected, float), (-1, 4))
    )


@given(data=st.binary(max_size=200), edits=EDITS)
def test_any_bytes_of_a_table_of_results(data, edits):
    good = "curve,batch_size,steps_to_result\na,1,100\na,2,60\na,4,30\nb,1,9\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        for content in (data, damaged(good.encode(), edits)):
            path.write_bytes(content)
            read_or_refused(lambda: curves_of_table(read_table(path)))


@settings(max_examples=8)
@given(row=st.integers(0, 4), column=st.integers(0, 3), odd=ANY)
def test_a_table_with_an_odd_number_is_refused_or_fitted(row, column, odd):
    rows = [["0.1", str(2**k), str(1000 // 2**k), str(900 // 2**k)] for k in range(5)]
    rows[row][column] = odd
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text("\n".join([HEADER, *map(",".join, rows)]))
        read_or_refused(lambda: text_of(fit_table(read_table(path))))


def check_runs(runs: Runs, folder: Path) -> None:
    """Writes runs as a sweep, and compares K* with a search through the rows."""
    write_runs(runs, folder / "sweep", GOAL)
    tables = load(folder / "sweep")
    # Of several values for one step the last counts; an empty cell is none.
    rows = runs.evaluations.dropna(subset=[METRIC])
    rows = rows.drop_duplicates(["trial", "step"], keep="last")
    met = rows[rows[METRIC] <= GOAL.threshold]
    sizes = runs.trials.set_index("trial")["batch_size"]
    least = met.groupby(met["trial"].map(sizes))["step"].min()
    best = tables.results.groupby("batch_size")["steps_high"].min().dropna()
    assert best.to_dict() == least.to_dict()


@FEW
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("01"), NUMBERS, st.sampled_from(["0.1", "0.5", ""])),
        min_size=1,
        max_size=5,
    ),
    rate=st.just("0.1") | NUMBERS,
    steps=st.just("99") | st.just("500") | NUMBERS,
)
def test_odd_steps_and_rates_are_refused_or_give_k_star(rows, rate, steps):
    trials = f"trial,workload,optimizer,batch_size,learning_rate,steps\n0,w,s,8,{rate},"
    trials += f"{steps}\n1,w,s,16,0.1,500\n"
    evaluations = "\n".join([EVALUATIONS.splitlines()[0], *map(",".join, rows)])
    with tempfile.TemporaryDirectory() as name:
        folder = write_tables(Path(name), trials, evaluations)
        read_or_refused(lambda: check_runs(read_runs(folder), folder))


@FEW
@given(edits=EDITS, name=st.sampled_from(["trials", "evaluations"]))
def test_any_bytes_of_two_tables(edits, name):
    with tempfile.TemporaryDirectory() as place:
        folder = write_tables(Path(place))
        path = folder / f"{name}.csv"
        path.write_bytes(damaged(path.read_bytes(), edits))
        sweep = folder / "sweep"
        read_or_refused(lambda: write_runs(read_runs(folder), sweep, GOAL))


@functools.cache
def parquet() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trials.parquet"
        folder = write_tables(Path(name))
        pd.read_csv(folder / "trials.csv").to_parquet(path)
        return path.read_bytes()


@given(edits=EDITS)
def test_any_bytes_of_a_parquet_file(edits):
    with tempfile.TemporaryDirectory() as name:
        folder = write_tables(Path(name), TRIALS)
        (folder / "trials.csv").unlink()
        (folder / "trials.parquet").write_bytes(damaged(parquet(), edits))
        read_or_refused(lambda: read_runs(folder).by_cell())


@given(edits=EDITS)
def test_a_damaged_event_file_gives_the_evaluations_before_the_damage(edits):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "events.out.tfevents.1"
        data = write_event_file(path)
        content = damaged(data, edits)
        path.write_bytes(content)
        try:
            runs = from_tensorboard(name, batch_size=8)
        except UserError as refusal:  # Without an evaluation there is no run.
            assert "has an evaluation" in str(refusal)
            return
    values = runs.evaluations.get(METRIC, pd.Series(dtype=float)).tolist()
    assert values == pytest.approx(ERRORS[: len(values)])
    # Of a file that ends between two records nobody can say that it is cut.
    whole = content == data[: len(content)] and not runs.notes
    assert (runs.trials["status"] == "INCOMPLETE").all() != whole


@functools.cache
def database() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        return write_database(Path(name) / "study.db")


@FEW
@given(edits=EDITS)
def test_any_bytes_of_a_database(edits):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "study.db"
        content = damaged(database(), edits)
        path.write_bytes(content)

        def read() -> None:
            study = load_optuna(path)
            options = {"steps_per_report": 1, "first_report": 1, "batch_size": 8}
            from_optuna(study, METRIC, **options).by_cell()

        read_or_refused(read)
        assert path.read_bytes() == content


@FEW
@given(
    edits=EDITS,
    name=st.sampled_from(["study.json", "1/metadata.json", "1/measurements.csv"]),
)
def test_any_bytes_of_an_archive(edits, name):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "archive")
        trials = [("COMPLETE", [0, 1000, 2000], [0.9, 0.3, 0.005])]
        study = write_study(root, "mnist", "simple_cnn_base", "sgd", 8, trials)
        path = study / name
        path.write_bytes(damaged(path.read_bytes(), edits))
        if read_or_refused(lambda: write_archive(root, f"{place}/sweep")):
            assert ERROR in load(f"{place}/sweep").results["goal"].iloc[0]
