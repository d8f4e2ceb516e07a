from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from dps_tf.analysis.tables import (
    belongs,
    cell_codes,
    cell_name,
    curve_key,
    curve_label,
    has_rows,
    metaparameter_names,
    metric_names,
    require,
    study_key,
    trial_codes,
)
from dps_tf.core import CELL_KEY, Cell, UserError
from tests.made_up.specifications import ERROR
from tests.made_up.sweeps import Sweep, make


def some():
    made = make(Sweep(batch_sizes=(8, 16), interval=200, measured=False))
    return made.studies, made.trials, made.curves


def test_rows_find_their_cell_and_trial_as_a_join_would():
    studies, trials, curves = some()
    codes = cell_codes(trials, studies)
    found = studies[study_key(studies)].iloc[codes].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, trials[study_key(trials)])
    rows = trial_codes(curves, trials)
    keys = [*study_key(trials), "trial"]
    found = trials[keys].iloc[rows].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, curves[keys], check_dtype=False)


def test_rows_of_no_trial_are_marked():
    _, trials, curves = some()
    curves.loc[3, "trial"] = 99
    assert trial_codes(curves, trials)[3] == -1
    assert (trial_codes(curves, trials.iloc[:0]) == -1).all()


def test_values_that_occur_apart_do_not_make_a_cell():
    studies, trials, _ = some()
    # Batch size 8 and sparsity 0.9 both occur, and the cell of the two is taken out.
    gone = (studies["batch_size"] == 8) & (studies["sparsity"] == 0.9)
    with pytest.raises(UserError, match=r"batch_size=8, sparsity=0\.9"):
        cell_codes(trials, studies[~gone])
    assert has_rows(studies, trials[trials["batch_size"] == 8]).sum() == 2


def test_names_of_columns():
    _, trials, curves = some()
    assert metaparameter_names(trials) == ["learning_rate"]
    others = ["validation/cross_entropy", "train/loss"]
    assert metric_names(curves) == [ERROR, *others]
    with pytest.raises(UserError, match="did you mean 'learning_rate'"):
        require(trials, ["learning_rat"], "trials")


def test_a_curve_is_told_by_what_varies():
    row = pd.Series({"sparsity": 0.9, "optimizer": "sgd"})
    assert curve_label(row, ["optimizer", "sparsity"]) == "optimizer sgd, sparsity 0.9"
    assert curve_label(row, []) == "all"


def test_rows_belong_to_their_cells_however_many_they_are():
    studies, trials, _ = some()
    half = studies[studies["batch_size"] == 8]
    assert belongs(trials, half).tolist() == (trials["batch_size"] == 8).tolist()
    assert not belongs(trials, half.iloc[:0]).any()


def test_a_cell_has_one_key_in_memory_and_in_tables():
    cell = Cell("mnist", "sgd", "none", 0, 64, 0.0)
    assert tuple(cell.to_json()) == CELL_KEY
    axis = "workload.order"
    wider = replace(cell, axes=((axis, "shared"),))
    row = pd.DataFrame([{**wider.to_json(), "precision": "float32", "trial": 3}])
    assert study_key(row) == [*CELL_KEY, axis, "precision"]
    assert curve_key(row) == [n for n in study_key(row) if n != "batch_size"]
    [values] = row.astype(object).to_dict("records")
    assert cell_name(values) == wider.name
    assert cell_name({**values, axis: ""}) == cell.name
