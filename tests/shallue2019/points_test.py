"""What panels show, against a plain search of the evaluations of made-up sweeps."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from dps_tf.analysis.loading import Tables, tables_of
from dps_tf.core import UserError
from dps_tf.store import StoredTables
from tests.made_up.sweeps import Sweep, make
from tests.shallue2019.script import figure_panels, figure_points

FIGURES = figure_panels.FIGURES
DIGITIZED, SWEEP = figure_points.DIGITIZED, figure_points.SWEEP
RESNET = "imagenet-resnet_50"
SIZES = (64, 256, 1024)
points, Sweeps = figure_points.points, figure_points.Sweeps


def made(mode: str, workload: str = RESNET, **changes) -> Tables:
    """Returns a sweep whose own goal is a little stricter than that of the panels."""
    sweep = Sweep(
        workload,
        ("nesterov",),
        sparsities=(0.0,),
        batch_sizes=SIZES,
        points=60,
        goal=0.2499,
        step_budget=2000,
        search_mode=mode,
        measured=False,
    )
    return make(replace(sweep, **changes))


def panel_of(figure, title: str):
    (panel,) = [panel for panel in figure.panels if panel.title == title]
    return panel


RESNET_PANEL = panel_of(FIGURES[0], "ResNet-50 on ImageNet")


def first_met(tables: Tables, size: int, goal) -> dict[int, int]:
    """Returns at which step each trial of a batch size met a goal first."""
    found: dict[int, int] = {}
    curves = tables.curves[tables.curves["batch_size"] == size]
    for row in curves.sort_values("step").to_dict("records"):
        if goal.reaches(row[goal.metric]):
            found.setdefault(row["trial"], row["step"])
    return found


def values(rows: pd.DataFrame) -> dict[int, float]:
    return dict(zip(rows["batch_size"], rows["value"], strict=True))


@pytest.mark.parametrize("mode", ["exhaustive", "race"])
def test_steps_are_those_of_the_trial_that_met_the_goal_first(mode):
    rows = points(RESNET_PANEL, Sweeps(made(mode)))
    goal = RESNET_PANEL.series[0].goal
    least = {
        size: min(first_met(made("exhaustive"), size, goal).values()) for size in SIZES
    }
    assert values(rows) == least
    assert set(rows["source"]) == {SWEEP}


@pytest.mark.slow
def test_each_goal_has_a_curve_and_looser_goals_are_met_before():
    panel = panel_of(FIGURES[1], "ResNet-50 on ImageNet")
    rows = points(panel, Sweeps(made("exhaustive")))
    for series in panel.series:
        own = values(rows[rows["series"] == series.label])
        for size in SIZES:
            assert own[size] == min(
                first_met(made("exhaustive"), size, series.goal).values()
            )
    assert len(panel.series) == 4


def test_a_race_gives_no_steps_for_a_goal_that_its_trials_could_not_answer():
    (series,) = RESNET_PANEL.series
    stricter = replace(series, goal=replace(series.goal, threshold=0.2))
    assert points(replace(RESNET_PANEL, series=(stricter,)), Sweeps(made("race"))).empty


@pytest.mark.slow
def test_evaluations_that_only_bound_a_metric_leave_steps_open():
    # Evaluations that miss the goal of the study stop there: they say nothing of looser
    # goals.
    race = made("race")
    errors = race.curves["validation/classification_error"]
    curves = race.curves.assign(
        is_bound=errors > 0.2499,
        **{"validation/classification_error": errors.clip(upper=0.24995)},
    )
    record = StoredTables(race.studies, race.trials, curves, race.measurements)
    panel = panel_of(FIGURES[1], "ResNet-50 on ImageNet")
    rows = points(panel, Sweeps(tables_of(record)))
    assert set(rows["source"]) == {DIGITIZED}


@pytest.mark.slow
def test_the_best_is_taken_of_as_many_trials_as_are_published_that_ran_on():
    (series,) = RESNET_PANEL.series
    of_fifty = replace(series, workload="lm1b-lstm")
    assert (series.trials, of_fifty.trials) == (100, 50)
    tables = made("exhaustive", "lm1b-lstm", points=128)
    ran_on = tables.trials[tables.trials["outcome"] != "infeasible"]
    for size, rows in Sweeps(tables).counted(of_fifty).groupby("batch_size"):
        every = ran_on[ran_on["batch_size"] == size]["trial"].tolist()
        assert len(every) > 50 and rows["trial"].tolist() == every[:50]


def test_ratios_are_to_the_batch_size_of_the_panel():
    panel = panel_of(FIGURES[2], "ResNet-50 and VGG-11 on ImageNet")
    rows = points(panel, Sweeps(made("exhaustive")))
    goal = panel.series[0].goal
    least = {
        size: min(first_met(made("exhaustive"), size, goal).values()) for size in SIZES
    }
    own = rows[rows["series"] == "ResNet-50"]
    assert values(own) == {size: least[size] / least[64] for size in SIZES}
    others = rows[rows["series"] == "VGG-11"]
    assert set(others["source"]) == {DIGITIZED} and values(others)[64] == 1.0
    # Without the batch size of the panel there is nothing to divide by.
    larger = made("exhaustive").where(made("exhaustive").studies["batch_size"] > 64)
    assert SWEEP not in set(points(panel, Sweeps(larger))["source"])


def test_rates_are_of_the_first_trial():
    (series,) = RESNET_PANEL.series
    panel = panel_of(FIGURES[7], "ResNet-50 on ImageNet")
    rates = values(points(panel, Sweeps(made("exhaustive"))))
    for size in SIZES:
        met = first_met(made("exhaustive"), size, series.goal)
        best = min(met, key=lambda trial: (met[trial], trial))
        trials = made("exhaustive").trials[
            made("exhaustive").trials["batch_size"] == size
        ]
        (row,) = trials[trials["trial"] == best].to_dict("records")
        assert rates[size] == row["learning_rate"] / (1 - row["momentum"])


def test_a_scatter_shows_what_became_of_each_trial_within_the_budget():
    (series,) = RESNET_PANEL.series
    met = first_met(made("exhaustive"), 256, series.goal)
    limit = sorted(met.values())[len(met) // 2]
    panel = replace(
        RESNET_PANEL, kind="scatter", batch_size=256, budgets=(float(limit),)
    )
    counts = points(panel, Sweeps(made("exhaustive")))["status"].value_counts()
    inside = sum(step <= limit for step in met.values())
    assert counts["best"] == 1 and counts["achieved"] == inside - 1
    trials = made("exhaustive").trials[made("exhaustive").trials["batch_size"] == 256]
    assert counts["infeasible"] == (trials["outcome"] == "infeasible").sum()
    assert counts.sum() == 60 and "stopped before" not in counts
    assert "stopped before" in set(points(panel, Sweeps(made("race")))["status"])
    # Trials of 2,000 steps cannot tell of 25,000.
    assert points(replace(panel, budgets=(25_000.0,)), Sweeps(made("exhaustive"))).empty


@pytest.mark.slow
def test_the_best_within_a_budget_is_that_of_trials_that_ran_on():
    tables = made("exhaustive", "lm1b-transformer_base")
    panel = panel_of(FIGURES[10], "Transformer (base) on LM1B (steps)")
    shorter = replace(panel, budgets=(500.0, 2000.0, 5000.0))
    rows = points(shorter, Sweeps(tables))
    # Beyond 2,000 steps nothing was trained.
    assert set(rows["x"]) == {500.0, 2000.0}
    for row in rows.to_dict("records"):
        curves = tables.curves[tables.curves["batch_size"] == row["batch_size"]]
        inside = curves[curves["step"] <= row["x"]]
        assert row["value"] == inside["validation/cross_entropy"].min()
    raced = Sweeps(made("race", "lm1b-transformer_base"))
    assert points(shorter, raced).empty


@pytest.mark.slow
def test_the_label_smoothing_of_each_trial_decides_its_curve():
    smoothing = made("exhaustive").trials["trial"] % 3 * 0.05
    trials = made("exhaustive").trials.assign(label_smoothing=smoothing)
    tables = made("exhaustive")
    record = StoredTables(tables.studies, trials, tables.curves, pd.DataFrame())
    best, steps = FIGURES[6].panels
    for panel in (best, steps):
        rows = points(panel, Sweeps(tables_of(record)))
        assert set(rows["series"]) == {"0", "0.1"}
    met = first_met(made("exhaustive"), 64, steps.series[0].goal)
    own = rows[(rows["series"] == "0.1") & (rows["batch_size"] == 64)]
    assert own["value"].item() == min(s for trial, s in met.items() if trial % 3 == 2)


def test_several_studies_of_a_batch_size_are_refused():
    twice = made("exhaustive", seeds=(0, 1), points=4)
    with pytest.raises(UserError, match="several studies of imagenet-resnet_50"):
        points(RESNET_PANEL, Sweeps(twice))


def test_without_sweeps_panels_show_the_digitized_values():
    table = pd.read_csv(figure_panels.FOLDER / "published.csv")
    own = table[table["curve"] == "imagenet-resnet_50-nesterov"]
    rows = points(RESNET_PANEL, Sweeps(None))
    assert values(rows) == values(own.rename(columns={"steps_to_result": "value"}))
    assert set(rows["source"]) == {DIGITIZED}
    counts = {
        figure.number: sum(not points(p, Sweeps(None)).empty for p in figure.panels)
        for figure in FIGURES
    }
    assert counts == {
        1: 9,
        2: 3,
        3: 5,
        4: 3,
        5: 3,
        6: 1,
        7: 0,
        8: 6,
        9: 0,
        10: 0,
        11: 0,
    }
