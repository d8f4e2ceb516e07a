"""`dps_tf.load`: the tables of sweeps, closed and open, one and several."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.analysis import loading
from dps_tf.analysis.report.curves import curves_of
from dps_tf.core import UserError
from dps_tf.store import StoredTables
from tests.made_up.specifications import ENVIRONMENT, ERROR
from tests.made_up.studies import GIN
from tests.made_up.sweeps import Sweep, make, write_open_study, write_sweep

SMALL = Sweep(batch_sizes=(32, 64), points=8)


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep") / "s", SMALL)


def test_tables_are_of_every_cell_and_trial(sweep_dir):
    tables = loading.load(sweep_dir)
    assert len(tables.results) == 4
    assert tables.results["trials"].eq(8).all()
    met = tables.curves[tables.curves[ERROR] <= SMALL.goal]
    cells = ["sparsity", "batch_size"]
    first = tables.results.set_index(cells)["steps_to_result"]
    assert first.to_dict() == met.groupby(cells)["step"].min().to_dict()


def test_configuration_and_environment_come_along(sweep_dir):
    (record,) = loading.load(sweep_dir).sweeps
    assert record.gin == GIN
    assert record.environments == (ENVIRONMENT,)


def test_several_sweeps_are_one_table(sweep_dir, tmp_path):
    other = dataclasses.replace(SMALL, name="fashion", optimizers=("nesterov",))
    tables = loading.load(sweep_dir, write_sweep(tmp_path, other))
    assert len(tables.results) == 8
    # A name that only one of the sweeps tunes is missing in the other.
    sgd = tables.results["optimizer"] == "sgd"
    assert tables.results.loc[sgd, "momentum"].isna().all()
    assert tables.results.loc[~sgd, "momentum"].notna().any()


def test_the_same_cell_in_two_sweeps_is_refused(sweep_dir, tmp_path):
    twin = write_sweep(tmp_path / "twin", SMALL)
    with pytest.raises(UserError, match=r"twin hold the same cell .*batch_size=32"):
        loading.load(sweep_dir, twin)


HALF = "mixed_bfloat16"


def test_the_same_cells_in_another_precision_are_cells_of_their_own(
    sweep_dir, tmp_path
):
    other = dataclasses.replace(SMALL, precision=HALF, points=16)
    twin = write_sweep(tmp_path / "twin", other)
    both = loading.load(sweep_dir, twin)
    names = ["results", "trials", "curves", "measurements", "bounded"]
    for precision, directory in (("float32", sweep_dir), (HALF, twin)):
        alone = loading.load(directory)
        for name in names:
            table = getattr(both, name)
            mine = table[table["precision"] == precision].reset_index(drop=True)
            assert len(mine)
            pd.testing.assert_frame_equal(mine, getattr(alone, name), check_dtype=False)
    with pytest.raises(UserError, match=rf"the same cell .*precision={HALF}"):
        loading.load(twin, write_sweep(tmp_path / "third", other))


def test_one_sweep_may_hold_cells_of_several_precisions(tmp_path):
    write_sweep(tmp_path, dataclasses.replace(SMALL, batch_sizes=(32,)))
    other = dataclasses.replace(SMALL, batch_sizes=(64,), precision=HALF)
    tables = loading.load(write_sweep(tmp_path, other))
    for name in ("studies", "trials", "curves", "measurements", "results"):
        table = getattr(tables, name)
        expected = table["batch_size"].map({32: "float32", 64: HALF})
        assert table["precision"].tolist() == expected.tolist()
    names = curves_of(tables.results).cells
    assert dict(zip(names["curve"], names["batch_size"], strict=True)) == {
        "sparsity 0, float32": 32,
        f"sparsity 0, {HALF}": 64,
        "sparsity 0.9, float32": 32,
        f"sparsity 0.9, {HALF}": 64,
    }


def test_tables_under_another_goal_are_those_that_are_loaded_for_it(sweep_dir):
    loaded = loading.load(sweep_dir, goal=0.05)
    asked = loading.load(sweep_dir).for_goal(0.05)
    assert asked.goals == loaded.goals
    for name in ("results", "bounded", "trials"):
        pd.testing.assert_frame_equal(getattr(asked, name), getattr(loaded, name))


def test_tables_of_some_studies_are_those_of_a_sweep_of_them_alone(sweep_dir, tmp_path):
    tables = loading.load(sweep_dir)
    some = tables.where(tables.studies["batch_size"] == 32)
    alone = dataclasses.replace(SMALL, batch_sizes=(32,))
    expected = loading.load(write_sweep(tmp_path, alone))
    assert some.goals == expected.goals
    for name in ("studies", "trials", "curves", "measurements", "results", "bounded"):
        pd.testing.assert_frame_equal(getattr(some, name), getattr(expected, name))


def test_threshold_applies_to_the_metric_of_each_study():
    first, second = make(SMALL), make(dataclasses.replace(SMALL, name="other"))
    metric = "validation/cross_entropy"
    studies = second.studies.assign(
        goal_metric=metric, goal_threshold=0.12, goal=f"{metric} <= 0.12"
    )
    record = StoredTables(
        pd.concat([first.studies, studies], ignore_index=True),
        pd.concat([first.trials, second.trials], ignore_index=True),
        pd.concat([first.curves, second.curves], ignore_index=True),
        first.measurements,
    )
    tables = loading.tables_of(record, 0.06)
    goals = tables.results.groupby("workload")["goal"].unique().map(list)
    assert goals["mnist_simple_cnn"] == [f"{ERROR} <= 0.06"]
    assert goals["other"] == [f"{metric} <= 0.06"]
    assert [goal.threshold for goal in tables.goals] == [0.06] * 8
    mixed = dataclasses.replace(record, studies=record.studies.iloc[[0, 4, 1, 5]])
    order = loading.tables_of(mixed, 0.06).results["workload"]
    assert order.tolist() == mixed.studies["workload"].tolist()


def test_open_study_is_read_from_its_logs(tmp_path):
    tables = loading.load(write_open_study(tmp_path))
    (row,) = tables.results.to_dict("records")
    assert not row["closed"]
    assert row["steps_to_result"] == 300
    assert (row["trials"], row["complete"], row["infeasible"]) == (4, 1, 1)
    # Trial 2 has got to step 100 only, and trial 3 has not begun: nothing is known of
    # what comes before 300 but that it was not reached yet.
    assert row["censored"] == 2
    assert row["steps_bound"] == ">= 100, <= 300"
    assert len(tables.curves) == 4


@pytest.mark.parametrize("name", ["missing", "file", "empty"])
def test_what_is_no_sweep_is_refused_in_one_sentence(tmp_path, name):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="--sweep_dir") as error:
        loading.load(tmp_path / name)
    assert "\n" not in str(error.value)


def test_sweep_without_any_study_is_refused(tmp_path):
    (tmp_path / ".dps_tf").write_text("{}")
    with pytest.raises(UserError, match="no study has begun"):
        loading.load(tmp_path)
