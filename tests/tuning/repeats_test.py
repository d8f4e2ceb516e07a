"""Are the best points of a sweep trained again, under other seeds and once only?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import repeats
from dps_tf.analysis.loading import load
from dps_tf.core import Space, UserError, repeat_study
from dps_tf.store import LocalFiles, StudyReader
from tests.made_up.small_sweeps import BINDINGS, configured, launched, trained
from tests.made_up.specifications import specification

REPEATED = ("sweep.repeats = 3", "sweep.repeated_points = 2", "sweep.finishers = 2")


def points_of(study):
    return study.workload.draw(study.cell.seed, study.workload.points)


def test_repeats_have_the_points_of_the_study_and_other_seeds():
    study = specification(points=4, order="shared")
    best = [points_of(study)[2], points_of(study)[0]]
    again = repeat_study(study, best, 3)
    drawn = points_of(again)
    assert [point["learning_rate"] for point in drawn] == [
        point["learning_rate"] for point in best * 3
    ]
    assert again.rule.points == 6 and again.rule.exhaustive and again.rule.stop_at_goal
    assert again.goal == study.goal and again.workload.order == "per_trial"
    other = repeat_study(study, best[:1], 3)
    seeds = {study.cell.seed, again.cell.seed, other.cell.seed}
    assert len(seeds | {repeat_study(study, best, 2).cell.seed}) == 4


def test_each_point_is_repeated_with_the_names_that_it_has():
    points = ({"learning_rate": 0.1}, {"learning_rate": 0.2, "momentum": 0.9})
    study = specification(
        explicit_points=points, points=2, space=Space(()), fixed={"decay": 0.5}
    )
    # Rows of a table have all columns, with NaN for what a trial lacks.
    rows = [{"decay": 0.5, "momentum": np.nan, **point} for point in points]
    again = repeat_study(study, rows[::-1], 2)
    assert again.workload.explicit_points == points[::-1] * 2


@pytest.mark.parametrize("change", ["sweep.repeats = -1", "sweep.repeated_points = 0"])
def test_impossible_numbers_of_repeats_are_refused(change):
    with pytest.raises(UserError, match="it must be a whole number"):
        configured([*BINDINGS, change])


def test_most_that_a_sweep_may_cost_counts_its_repeats():
    plain, repeated = configured(BINDINGS), configured([*BINDINGS, *REPEATED])
    assert plain.max_trials == 3 and repeated.max_trials == 3 + 2 * 3
    assert repeated.max_steps == 3 * plain.max_steps


@pytest.mark.slow
def test_best_points_are_trained_again_and_a_second_run_does_nothing(tmp_path):
    trained(tmp_path)
    assert load(tmp_path).repeats.empty
    assert not LocalFiles().exists(f"{tmp_path}/repeats")

    layout = trained(tmp_path, REPEATED)
    tables = load(tmp_path)
    found = tables.repeats
    results = tables.results.iloc[0]
    assert len(tables.results) == 1 and len(tables.trials) == 3
    ranked = tables.trials.sort_values(["steps_to_result", "trial"])["trial"].to_list()
    assert set(found["trial"]) == set(ranked[:2])
    assert found.groupby("trial")["repeat"].apply(sorted).to_list() == [[0, 1, 2]] * 2
    assert (found["seed"] == 0).all() and found["latest"].notna().all()

    summarized = repeats.summary(found, tables.results)
    best = summarized.iloc[0]
    assert best["is_best"] and best["trial"] == results["best_trial"]
    mine = found[found["trial"] == best["trial"]]["latest"].to_numpy(float)
    assert best["median"] == np.median(mine)
    assert best["optimism"] == np.median(mine) / float(results["steps_to_result"])

    labelled = load(tmp_path, labels=["mine"]).repeats
    assert (labelled.pop("workload.label") == "mine").all()
    pd.testing.assert_frame_equal(labelled, found)

    again = launched(tmp_path, configured([*BINDINGS, *REPEATED]))
    assert not again.ran and len(again.finished_before) == 2
    names = LocalFiles().list_names(layout.repeats.cells)
    assert len(names) == 1
    trials = StudyReader(LocalFiles(), layout.repeats.cell(names[0])).closed()
    seeds = trials["trials"]["initial_seed"]
    assert seeds.nunique() == 6
    assert not set(seeds) & set(tables.trials["initial_seed"])


def test_an_oracle_that_learns_is_not_asked_again():
    study = specification(oracle="keras_tuner.oracles.RandomSearchOracle")
    again = repeat_study(study, [{"learning_rate": 0.1}], 2)
    assert not again.workload.is_adaptive
    assert dataclasses.replace(again.cell, seed=0) == study.cell
