from __future__ import annotations

import json

import numpy as np
import pytest

from dps_tf.analysis.interchange.shallue2019 import write_archive
from dps_tf.analysis.loading import load
from dps_tf.analysis.tables import metaparameter_names
from dps_tf.core import Goal, UserError
from dps_tf.store import LocalFiles, write_json
from tests.made_up.archives import write_study
from tests.made_up.specifications import ERROR

STEPS = [0, 1000, 2000, 3000]
GOAL = Goal(ERROR, 0.1, inclusive=False)
EASY = [0.9, 0.3, 0.1, 0.05]  # Equal to the goal at 2,000, below it at 3,000.
FAST = [0.9, 0.09, 0.08, 0.07]
SLOW = [0.9, 0.5, 0.4, 0.3]


def archive(root, trials, **fields):
    write_study(
        root, "mnist", "simple_cnn_base", "nesterov_momentum", 8, trials, **fields
    )
    return root


def read_archive(root, goal):
    """Returns the tables of all studies together, which are written beside the root."""
    sweep = str(root.with_name(f"{root.name}_sweep"))
    write_archive(root, sweep, goal)
    return load(sweep)


def test_statuses_are_mapped_for_a_goal(tmp_path):
    trials = [
        ("COMPLETE", STEPS, EASY),
        ("COMPLETE", STEPS, SLOW),
        ("INFEASIBLE", STEPS[:3], [0.9, 0.05, float("nan")]),
        ("INCOMPLETE", STEPS[:2], FAST[:2]),
    ]
    tables_ = read_archive(archive(tmp_path, trials), GOAL)
    assert tables_.trials["outcome"].tolist() == [
        "complete",
        "incomplete",
        "infeasible",
    ]
    row = tables_.results.iloc[0]
    # Strict: 0.1 at 2,000 does not meet the goal; the trial that diverged never counts.
    assert (row["steps_to_result"], row["bracket_low"]) == (3000, 2000)
    assert row["best_trial"] == 1 and row["steps_bound"] == ""
    assert row["optimizer"] == "nesterov"
    assert row["workload"] == "mnist-simple_cnn_base"


def test_the_space_is_translated(tmp_path):
    tables_ = read_archive(archive(tmp_path, [("COMPLETE", STEPS, EASY)]), GOAL)
    space = json.loads(tables_.studies["space"].iloc[0])
    assert space == {
        "learning_rate": ["log", 1e-4, 10.0],
        "momentum": ["reverse_log", 0.9, 0.9999],
        "learning_rate_decay_steps": ["integer", 300_000, 600_000],
        "label_smoothing": ["discrete", [0, 0.01, 0.1]],
    }
    assert set(metaparameter_names(tables_.trials)) == set(space)


def test_another_goal_needs_no_second_reading(tmp_path):
    trials = [("COMPLETE", STEPS, EASY), ("INFEASIBLE", STEPS[:2], [0.9, 0.0])]
    tables_ = read_archive(archive(tmp_path, trials), GOAL)
    looser = tables_.for_goal(Goal(ERROR, 0.35)).results.iloc[0]
    # The trial that diverged had met it first, and stays infeasible for every goal.
    assert looser["steps_to_result"] == 1000 and looser["best_trial"] == 1
    stricter = tables_.for_goal(Goal(ERROR, 0.01)).results.iloc[0]
    assert stricter["incomplete"] == 1 and stricter["steps_bound"] == "> 3000"


def test_a_time_budget_leaves_shorter_trials_censored(tmp_path):
    trials = [("COMPLETE", STEPS, EASY), ("COMPLETE", STEPS[:3], SLOW[:3])]
    tables_ = read_archive(archive(tmp_path, trials, train_steps=0), GOAL)
    assert tables_.trials["outcome"].tolist() == ["complete", "censored"]
    row = tables_.results.iloc[0]
    assert row["steps_to_result"] == 3000 and row["steps_low"] <= 3000


def test_uneven_evaluations_have_no_interval(tmp_path):
    uneven = [0, 1000, 2000, 4500]
    root = archive(tmp_path, [("COMPLETE", uneven, EASY)], train_steps=4500)
    tables_ = read_archive(root, GOAL)
    assert tables_.studies["evaluation_interval"].iloc[0] == 0
    row = tables_.results.iloc[0]
    assert (row["bracket_low"], row["steps_to_result"]) == (2000, 4500)
    assert np.isnan(row["interval_over_kstar"])


def test_data_set_sizes_are_those_that_are_published(tmp_path):
    trials = [("COMPLETE", STEPS, EASY)]
    for dataset in ("mnist_subsets/mnist_6875", "cifar_10", "lm1b"):
        write_study(tmp_path, dataset, "net", "sgd", 8, trials)
    studies = read_archive(tmp_path, GOAL).studies.set_index("workload")
    assert studies["training_examples"].to_dict() == {
        "mnist_subsets.mnist_6875-net": 6875,
        "cifar_10-net": 0,
        "lm1b-net": 30_301_028,
    }


def test_an_import_goes_on_and_notices_another_goal(tmp_path):
    root, out = tmp_path / "batch_science", str(tmp_path / "sweep")
    write_study(root, "mnist", "cnn", "sgd", 8, [("COMPLETE", STEPS, EASY)])
    assert list(write_archive(root, out, GOAL).values()) == [True]
    write_study(root, "mnist", "cnn", "sgd", 16, [("COMPLETE", STEPS, EASY)])
    assert sorted(write_archive(root, out, GOAL).values()) == [False, True]
    assert list(write_archive(root, out, Goal(ERROR, 0.35)).values()) == [True] * 2
    assert load(out).results["steps_to_result"].tolist() == [1000, 1000]


def test_a_study_that_was_half_written_is_read_again(tmp_path):
    root, out = tmp_path / "batch_science", tmp_path / "sweep"
    write_study(root, "mnist", "cnn", "sgd", 8, [("COMPLETE", STEPS, EASY)])
    [name] = write_archive(root, str(out), GOAL)
    for lost in ("closed.json", "study.json"):
        (out / "cells" / name / lost).unlink()
        assert write_archive(root, str(out), GOAL) == {name: True}


def test_an_import_leaves_other_directories_alone(tmp_path):
    root = tmp_path / "batch_science"
    write_study(root, "mnist", "cnn", "sgd", 8, [("COMPLETE", STEPS, EASY)])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"thesis\.tex and no sweep"):
        write_archive(root, str(tmp_path / "mine"), GOAL)
    trained = tmp_path / "trained"
    (trained / "cells").mkdir(parents=True)
    write_json(LocalFiles(), str(trained / ".dps_tf"), {"made_by": "dps_tf"})
    write_json(LocalFiles(), str(trained / "sweep.json"), {"cells": []})
    with pytest.raises(UserError, match="a sweep of its own"):
        write_archive(root, str(trained), GOAL)


def test_goals_are_the_published_ones(tmp_path):
    trials = [("COMPLETE", STEPS, [0.9, 0.3, 0.01, 0.005])]
    root, out = tmp_path / "batch_science", tmp_path / "sweep"
    write_study(root, "mnist", "simple_cnn_base", "sgd", 8, trials)
    write_study(root, "mnist", "odd", "sgd", 8, trials)
    lines = []
    write_archive(root, str(out), progress=lines.append)
    assert lines[0].startswith("left out without a goal: 1 of the studies, such as")
    assert "'mnist/odd/sgd/8'" in lines[0]
    # The published goal is strict: 0.01 does not meet it.
    assert load(out).results["steps_to_result"].tolist() == [3000]


def test_of_several_rows_for_a_step_the_last_counts(tmp_path):
    steps = [0, 1000, 2000, 1000, 2000, 3000]
    errors = [0.9, 0.3, 0.05, 0.4, 0.2, 0.05]
    tables_ = read_archive(archive(tmp_path, [("COMPLETE", steps, errors)]), GOAL)
    assert tables_.curves["step"].tolist() == [0, 1000, 2000, 3000]
    assert tables_.trials["steps_to_result"].tolist() == [3000]
