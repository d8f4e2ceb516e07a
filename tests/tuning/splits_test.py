"""What is evaluated beside the validation split, in sweeps that are really trained."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.report import write_report
from dps_tf.cli import notebook
from dps_tf.core import Goal
from tests.analysis.few_sections import draw_only
from tests.made_up.small_sweeps import BINDINGS, configured, launched

ERROR = "classification_error"
CARVED = ("workload.test = 'carved'", "workload.test_examples = 20")
ALWAYS = "sweep.further_splits = {'test': 'always', 'train': 'always'}"
EXHAUSTIVE = ("sweep.search_mode = 'exhaustive'", "sweep.stop_at_goal = False")


def curves(directory, *bindings: str) -> pd.DataFrame:
    launched(directory, configured([*BINDINGS, *CARVED, *bindings]))
    return notebook.load(str(directory)).curves


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> pd.DataFrame:
    return curves(tmp_path_factory.mktemp("ends"))


@pytest.fixture(scope="module")
def always(tmp_path_factory) -> pd.DataFrame:
    return curves(tmp_path_factory.mktemp("always"), ALWAYS)


def test_test_and_train_are_known_where_the_goal_is_met_and_at_the_end(ends):
    met = ends[f"validation/{ERROR}"] <= 0.3
    expected = met | (ends["step"] == 40)
    assert met.any()
    assert not expected.all()
    for split in ("test", "train"):
        for metric in (ERROR, "cross_entropy", "accuracy"):
            known = ends[f"{split}/{metric}"].notna()
            assert known.tolist() == expected.tolist()


def test_always_adds_what_is_missing_and_changes_nothing_else(ends, always):
    columns = [name for name in ends if not str(name).startswith(("test/", "train/"))]
    pd.testing.assert_frame_equal(ends[columns], always[columns])
    further = [f"{split}/{ERROR}" for split in ("test", "train")]
    assert always[further].notna().all().all()
    known = ends[further[0]].notna()
    pd.testing.assert_frame_equal(ends[known][further], always[known][further])
    # Counts of 20 test examples, and of as many training as validation examples.
    counts = always[further[0]] * 20
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)


def test_columns_of_splits_stand_behind_those_that_there_were(ends):
    names = [str(name) for name in ends if "/" in str(name)]
    first = [f"validation/{m}" for m in (ERROR, "cross_entropy", "accuracy")]
    assert names[:4] == [*first, "train/loss"]
    assert names[4:] == sorted(names[4:])


def test_asking_for_more_steps_is_asking_at_once(tmp_path):
    exhaustive = [*CARVED, *EXHAUSTIVE, "goal.threshold = 0.01"]
    short = configured([*BINDINGS, *exhaustive, "workload.step_budget = 20"])
    launched(tmp_path / "grown", short)
    whole = configured([*BINDINGS, *exhaustive])
    launched(tmp_path / "grown", whole)
    launched(tmp_path / "at_once", whole)
    grown, at_once = (
        notebook.load(str(tmp_path / name)).curves for name in ("grown", "at_once")
    )
    pd.testing.assert_frame_equal(grown, at_once)
    known = grown[f"test/{ERROR}"].notna()
    assert grown[known]["step"].unique().tolist() == [40]


def test_goal_may_be_on_the_test_set(tmp_path):
    found = curves(tmp_path, ALWAYS, f"goal.metric = 'test/{ERROR}'")
    met = found[found[f"test/{ERROR}"] <= 0.3]
    last = found.groupby("trial")["step"].max()
    assert len(met)
    assert (met["step"] == last[met["trial"]].to_numpy()).all()


def test_report_shows_the_test_error_at_the_step_of_the_result(tmp_path, monkeypatch):
    draw_only(monkeypatch, "headline", "generalization")
    sizes = "sweep.batch_sizes = (8, 16)"
    found = curves(tmp_path / "sweep", sizes)
    tables = notebook.load(str(tmp_path / "sweep"))
    report = write_report(tables, tmp_path / "report")
    (section,) = (s for s in report.sections if s.name == "generalization")
    assert [item.name for item in section.illustrations] == [f"generalization_{ERROR}"]
    (table,) = section.tables
    for row in table.frame.to_dict("records"):
        cell = tables.results.set_index("batch_size").loc[row["batch_size"]]
        at = (
            (found["batch_size"] == row["batch_size"])
            & (found["trial"] == cell["best_trial"])
            & (found["step"] == cell["steps_to_result"])
        )
        for split in ("train", "validation", "test"):
            assert row[split] == found[at][f"{split}/{ERROR}"].item()


def test_goal_on_what_was_seldom_looked_at_is_a_bound(tmp_path):
    curves(tmp_path)
    goal = Goal(f"test/{ERROR}", 0.9)
    results = notebook.load(str(tmp_path), goal=goal).results
    # The first look was at the validation goal; before, it may have been met as well.
    assert (results["steps_bound"] != "").all()
