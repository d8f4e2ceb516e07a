"""Figures of Shallue et al. 2019, on a made-up archive with known curves."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dps_tf.analysis.interchange.sweep import convert
from dps_tf.analysis.loading import Tables, load
from dps_tf.analysis.published import METRICS
from dps_tf.analysis.report import shallue2019_figures
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.shallue2019_figures import figures_report, figures_text
from dps_tf.analysis.report.shallue2019_panels import FIGURES, FURTHER
from dps_tf.analysis.report.shallue2019_points import (
    DIGITIZED,
    SWEEP,
    points,
)
from dps_tf.analysis.report.shallue2019_runs import Runs, Series
from dps_tf.core import Goal, UserError
from tests.analysis.archive_files import write_study

# The archive takes half a minute to write and read.
pytestmark = pytest.mark.slow
C1, C2 = 6400.0, 100.0
SIZES = (64, 128, 1024, 8192)
STEPS = np.arange(0, 401, 10)


def steps_to(batch_size: int) -> int:
    """Returns the law that the archive obeys, rounded up to an evaluation."""
    return int(10 * np.ceil((C1 / batch_size + C2) / 10))


def ranked(series: list[Series]) -> list[Goal]:
    """Returns the goals of a workload, the strictest first."""
    goals = {each.goal.threshold: each.goal for each in series}
    upwards = series[0].goal.direction == "minimize"
    return [goals[level] for level in sorted(goals, reverse=not upwards)]


def curve(reaches_at: float, goals: list[Goal]) -> np.ndarray:
    """Returns values that meet the strictest goal at a step, and looser ones before.

    Each one an evaluation before the next stricter one.
    """
    worst = 9.0 if goals[0].direction == "minimize" else 0.0
    values = np.full(len(STEPS), worst)
    for rank, goal in reversed(list(enumerate(goals))):
        inside = 0.999 if goal.direction == "minimize" else 1.001
        values[reaches_at - 10 * rank <= STEPS] = goal.threshold * inside
    return values


def finishes(workload: str, batch_size: int) -> list[int]:
    """Returns when trials meet the goal, the first by the law, others later."""
    first = steps_to(batch_size)
    if workload == "imagenet-vgg_11":
        # Of thirty, those behind the budget of 400 steps never do.
        return [first + 20 * late for late in range(30)]
    if workload == "lm1b-lstm":
        # The published K* is the best of the first fifty.
        return [first, *[2 * first] * 49, first - 20]
    return [first, 2 * first]


def write_archive(root: Path, goals: Mapping[tuple[str, str], list[Goal]]) -> None:
    """Writes studies in the published layout, of good, late and diverged trials."""
    for (workload, optimizer), levels in goals.items():
        dataset, _, model = workload.partition("-")
        column = next(n for n in METRICS if METRICS[n] == levels[0].metric)
        spelled = "nesterov_momentum" if optimizer == "nesterov" else optimizer
        for size in SIZES:
            trials = [
                ("COMPLETE", STEPS, curve(step, levels))
                for step in finishes(workload, size)
            ]
            trials.append(("INFEASIBLE", STEPS[:3], curve(0, levels)[:3]))
            folder = write_study(
                root,
                dataset.replace(".", "/"),
                model,
                spelled,
                size,
                trials,
                train_steps=400,
            )
            for file in folder.glob("*/measurements.csv"):
                table = pd.read_csv(file)
                values = table.pop("val/classification_error")
                # In training the goal is met in half of the steps.
                ahead = np.minimum(2 * np.arange(len(values)), len(values) - 1)
                trained = column.replace("val/", "train/")
                table[trained] = values.to_numpy()[ahead]
                table.assign(**{column: values}).to_csv(file, index=False)


LEFT_OUT = ("mnist", "solution_quality", "lm1b-transformer_wide")
LEFT_OUT += ("lm1b-transformer_narrow_and_shallow",)
ALL = [s for figure in FIGURES for panel in figure.panels for s in panel.series]
GOALS_OF = {
    (s.workload, s.optimizer): ranked(
        [t for t in ALL if (t.workload, t.optimizer) == (s.workload, s.optimizer)]
    )
    for s in ALL
    # An archive of all takes a minute; these are not in the one that is made up here.
    if not s.workload.startswith(LEFT_OUT)
}


def steps_of(series: Series, batch_size: int) -> int:
    """Returns K* that the archive obeys: looser goals are met before."""
    goals = GOALS_OF[series.workload, series.optimizer]
    levels = [goal.threshold for goal in goals]
    return steps_to(batch_size) - 10 * levels.index(series.goal.threshold)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Tables:
    """An archive of the published workloads, without goals, once it was read."""
    root = tmp_path_factory.mktemp("archive")
    write_archive(root / "batch_science", GOALS_OF)
    convert(root / "batch_science", str(root / "sweep"))
    return load(root / "sweep")


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    """What is drawn, by name, once there is `drawn`."""
    return {}


@pytest.fixture(scope="module")
def drawn(tables, figures):
    def kept(figure: Figure, text: FigureText) -> Illustration:
        figures[text.name] = figure
        return illustration(figure, text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shallue2019_figures, "illustration", kept)
        return figures_report(tables)


def rows_of(table: pd.DataFrame, number: int, panel: str) -> pd.DataFrame:
    return table[(table["figure"] == number) & (table["panel"] == panel)]


@pytest.mark.parametrize("panel", ["ResNet-50 on ImageNet", "VGG-11 on ImageNet"])
def test_steps_are_the_first_of_the_best_feasible_trial(drawn, panel):
    rows = rows_of(drawn[1], 1, panel)
    assert dict(zip(rows["batch_size"], rows["value"], strict=True)) == {
        size: steps_to(size) for size in SIZES
    }
    assert set(rows["source"]) == {SWEEP}


@pytest.mark.parametrize("number", [1, 2, 4])
def test_steps_are_those_to_the_goal_of_each_curve(drawn, number):
    checked = 0
    for panel in FIGURES[number - 1].panels:
        rows = rows_of(drawn[1], number, panel.title)
        for series in panel.series:
            if (series.workload, series.optimizer) not in GOALS_OF:
                continue
            own = rows[rows["series"] == series.label]
            found = dict(zip(own["batch_size"], own["value"], strict=True))
            assert found == {size: steps_of(series, size) for size in SIZES}
            checked += 1
    assert checked >= 5


def test_ratios_are_to_the_batch_size_of_the_panel(drawn):
    for number, title, first in (
        (3, "ResNet-50 and VGG-11 on ImageNet", 64),
        (5, "ResNet-50", 128),
        (6, "ResNet-50 on subsets of ImageNet", 64),
    ):
        rows = rows_of(drawn[1], number, title)
        (panel,) = [p for p in FIGURES[number - 1].panels if p.title == title]
        series = {each.label: each for each in panel.series}
        assert set(rows["series"]) == set(series)
        assert set(rows["source"]) == {SWEEP}
        for row in rows.to_dict("records"):
            own = series[row["series"]]
            expected = steps_of(own, row["batch_size"]) / steps_of(own, first)
            assert row["value"] == pytest.approx(expected)


def test_curves_without_the_reference_batch_size_are_the_digitized_ones(drawn):
    rows = rows_of(drawn[1], 3, "Transformer and LSTM on LM1B")
    assert set(rows["source"]) == {DIGITIZED}
    assert set(rows["series"]) == {"Transformer", "LSTM"}


def test_goals_that_are_stricter_than_the_record_are_met_where_all_ran_on(drawn):
    rows = rows_of(drawn[1], 2, "Transformer on LM1B")
    # The strictest goal of the archive is 3.8; all trials ran to their end.
    assert set(rows["series"]) == {"3.8", "3.85", "3.9", "3.95", "4", "4.05"}


def test_label_smoothing_of_each_trial_decides_its_curve(drawn):
    rows = rows_of(drawn[1], 7, "Steps to 0.25")
    assert set(rows["series"]) == {"0.01"}
    assert set(rows["batch_size"]) == set(SIZES)
    best = rows_of(drawn[1], 7, "Best validation error")
    np.testing.assert_allclose(best["value"], 0.25 * 0.999)


def test_effective_rate_is_that_of_the_best_trial(drawn):
    rows = rows_of(drawn[1], 8, "ResNet-50 on ImageNet")
    np.testing.assert_allclose(rows["value"], 0.1 / (1 - 0.99))


def test_scatter_tells_what_became_of_each_trial(tables):
    panel = FIGURES[8].panels[9]
    assert (panel.title, panel.budgets) == ("B = 4096, 25,000 steps", (25_000,))
    (series,) = panel.series
    first = steps_of(series, 1024)
    later = 2 * steps_to(1024) - (steps_to(1024) - first)
    shorter = replace(panel, batch_size=1024, budgets=(later - 10,))
    rows = points(FIGURES[8], shorter, Runs(tables))
    assert sorted(rows["status"]) == ["best", "infeasible", "not achieved"]
    np.testing.assert_allclose(rows["value"], 1 - 0.99)
    enough = replace(shorter, budgets=(later,))
    rows = points(FIGURES[8], enough, Runs(tables))
    assert sorted(rows["status"]) == ["achieved", "best", "infeasible"]
    # Trials of 400 steps cannot tell of 25,000.
    assert points(FIGURES[8], replace(panel, batch_size=1024), Runs(tables)).empty


def in_a_race(tables: Tables, bounds: bool = False) -> Tables:
    """Returns the tables as of a race for the goals of its studies.

    What the winner has out-run was stopped, or only bounded.
    """
    trials = tables.trials
    key = ["workload", "optimizer", "batch_size"]
    feasible = trials["outcome"] == "complete"
    best = trials.groupby(key)["steps_to_result"].transform("min")
    out_run = feasible & (trials["steps_to_result"] > best)
    trials = trials.assign(
        outcome=trials["outcome"].mask(out_run, "censored"),
        end_step=trials["end_step"].mask(out_run, best),
    )
    ends = [*key, "trial", "end_step"]
    curves = tables.curves.merge(trials[ends])
    curves = curves[curves["step"] <= curves["end_step"]].drop(columns="end_step")
    if bounds:
        ends = curves.merge(trials[[*key, "trial", "steps_to_result"]], "left")
        before = (ends["step"] < ends["steps_to_result"]).to_numpy()
        curves = curves.assign(is_bound=before)
    studies = tables.studies.assign(search_mode="race")
    return replace(tables, studies=studies, trials=trials, curves=curves)


def test_trials_that_a_race_has_stopped_are_told_apart(tables):
    panel = replace(FIGURES[8].panels[9], batch_size=1024, budgets=(400,))
    # The race was for the goal of the panel.
    (series,) = panel.series
    goals = tuple(series.goal for _ in tables.goals)
    raced = replace(in_a_race(tables), goals=goals)
    rows = points(FIGURES[8], panel, Runs(raced))
    assert sorted(rows["status"]) == ["best", "infeasible", "stopped before"]


def test_evaluations_that_only_bound_a_metric_are_no_values(tables):
    raced = in_a_race(tables, bounds=True)
    (panel,) = [p for p in FIGURES[1].panels if p.title == "ResNet-50 on ImageNet"]
    rows = points(FIGURES[1], panel, Runs(raced))
    # Goals that are looser than that of the study were met before, by how much no
    # evaluation tells.
    assert set(rows[rows["source"] == SWEEP]["series"]) == {"0.25"}


def test_best_within_a_budget_is_that_of_trials_that_ran_on(tables):
    (panel,) = [
        p
        for p in FIGURES[10].panels
        if p.title.startswith("Transformer (base)") and not p.epochs
    ]
    shorter = replace(panel, budgets=(steps_to(1024) - 10, 400, 500))
    rows = points(FIGURES[10], shorter, Runs(tables))
    found = rows[rows["batch_size"] == 1024].set_index("x")["value"]
    goals = [goal.threshold for goal in GOALS_OF["lm1b-transformer_base", "nesterov"]]
    np.testing.assert_allclose(found, [goals[1] * 0.999, goals[0] * 0.999])
    assert list(found.index) == [steps_to(1024) - 10, 400]
    assert points(FIGURES[10], shorter, Runs(in_a_race(tables))).empty


def test_several_studies_of_a_batch_size_are_refused(tables):
    again = tables.studies.assign(seed=1)
    twice = replace(tables, studies=pd.concat([tables.studies, again]))
    with pytest.raises(UserError, match="several studies of imagenet-resnet_50"):
        points(FIGURES[0], FIGURES[0].panels[3], Runs(twice))


def test_what_sweeps_lack_is_digitized_or_said_to_be_missing(drawn):
    report, table = drawn
    cnn = rows_of(table, 1, "Simple CNN on MNIST")
    assert set(cnn["source"]) == {DIGITIZED}
    assert len(cnn) == 10
    subsets = report.sections[5]
    assert "mnist_subsets.mnist_6875-simple_cnn_base" in " ".join(subsets.paragraphs)
    assert rows_of(table, 6, "Simple CNN on subsets of MNIST").empty
    assert "Figure 6: 0 of 2 panels" not in figures_text(table)


def test_every_figure_is_drawn_with_its_panels(drawn):
    report, _ = drawn
    names = [section.name for section in report.sections]
    assert names[:11] == [f"figure{number}" for number in range(1, 12)]
    assert names[12] == "learning_rate_of_the_best_trial"
    for section, figure in zip(report.sections, (*FIGURES, *FURTHER), strict=True):
        # One without data has a sentence in place of empty frames.
        has_data = (drawn[1]["figure"] == figure.key).any()
        assert len(section.illustrations) == has_data
        if not has_data:
            (sentence,) = section.paragraphs
            assert figure.panels[0].series[0].workload in sentence


def words_of(svg: bytes) -> list[str]:
    """Returns the texts of a drawing, in their order."""
    return re.findall(r"<!-- (.*?) -->", html.unescape(svg.decode()))


def test_drawings_name_their_curves_in_the_published_order(tables):
    kept = (tables.studies["workload"] == "imagenet-resnet_50").to_numpy()
    goals = tuple(goal for goal, k in zip(tables.goals, kept, strict=True) if k)
    one = replace(tables, studies=tables.studies[kept], goals=goals)
    words = {
        section.name: words_of(section.illustrations[0].svg)
        for section in figures_report(one)[0].sections
        if section.illustrations
    }
    third = words["figure3"]
    assert third.index("Transformer") < third.index("LSTM")
    assert "ResNet-50" in third and "VGG-11 (digitized)" in third
    # One of several has data, and is told from the others.
    assert "1024-1024-1024" in third and "128-128-128" not in third
    assert third.count("digitized") == 4
    assert "no data of" in third and "lm1b-transformer_wide" in third
    assert "error < 0.35" in third
    sixth = words["figure6"]
    assert "100 %, error < 0.25" in sixth
    assert "goal" in words["figure2"]


@pytest.mark.usefixtures("drawn")
def test_no_line_leads_over_a_digitized_value_that_could_not_be_read(figures):
    (panel, *_) = figures["figure4"].axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    momentum = lines["momentum"]
    sizes, steps = (values.tolist() for values in momentum.get_data())
    unread = {size for size, y in zip(sizes, steps, strict=True) if math.isnan(y)}
    assert unread == {2048}
    assert sizes == sorted(sizes)


@pytest.mark.usefixtures("drawn")
def test_legend_of_scatters_lies_beside_their_panels(figures):
    (scatter,) = [figure for figure in figures.values() if figure.legends]
    scatter.draw_without_rendering()
    (legend,) = scatter.legends
    box = legend.get_window_extent()
    assert [text.get_text() for text in legend.get_texts()][-1] == "best"
    for axis in scatter.axes:
        assert axis.get_legend() is None
        assert not box.overlaps(axis.get_window_extent())


def further(table: pd.DataFrame, title: str, panel: str) -> pd.DataFrame:
    return table[(table["figure"] == title) & (table["panel"] == panel)]


def test_further_figures_have_titles_and_no_numbers(drawn):
    report, table = drawn
    assert [figure.number for figure in FURTHER] == [None] * 6
    titles = [section.title for section in report.sections[11:]]
    assert titles == [figure.title for figure in FURTHER]
    assert not any("Figure" in title for title in titles)
    lacking = report.sections[11].paragraphs
    # Beyond validation, nothing was digitized.
    assert set(table[table["figure"].isin(titles)]["source"]) == {SWEEP}
    assert any("Simple CNN on MNIST: no data" in text for text in lacking)
    text = figures_text(table)
    assert "Steps to result on the training set: 8 of 9 panels" in text


@pytest.mark.parametrize("panel", ["ResNet-50 on ImageNet", "Transformer on LM1B"])
def test_goals_on_the_training_set_are_met_in_half_of_the_steps(drawn, panel):
    rows = further(drawn[1], "Steps to result on the training set", panel)
    (series,) = [p.series[0] for p in FIGURES[0].panels if p.title == panel]
    expected = {size: 10 * np.ceil(steps_of(series, size) / 20) for size in SIZES}
    assert dict(zip(rows["batch_size"], rows["value"], strict=True)) == expected


def test_rate_and_momentum_are_those_of_the_best_trial(drawn):
    panel = "VGG-11 on ImageNet"
    rates = further(drawn[1], "Learning rate of the best trial", panel)
    kept = further(drawn[1], "Momentum of the best trial", panel)
    np.testing.assert_allclose(rates["value"], 0.1)
    np.testing.assert_allclose(kept["value"], 1 - 0.99)
    assert len(rates) == len(kept) == len(SIZES)


def test_scatter_of_the_whole_budget_shows_all_that_was_trained(drawn):
    title = "Which metaparameters reach the goal within the whole budget"
    rows = further(drawn[1], title, "VGG-11 on ImageNet, B = 1024")
    met = [step for step in finishes("imagenet-vgg_11", 1024) if step <= 400]
    counted = rows["status"].value_counts()
    assert counted["best"] + counted["achieved"] == len(met) < 30
    assert counted["not achieved"] == 30 - len(met)
    assert counted["infeasible"] == 1


def test_best_of_fewer_trials_is_that_of_redrawing(drawn):
    rows = further(drawn[1], "Steps to result of fewer trials", "VGG-11 on ImageNet")
    assert set(rows["series"]) == {"25 trials"}  # of 31, not of 50 or 100
    generator = np.random.default_rng(0)
    for row in rows.to_dict("records"):
        steps = np.array(finishes("imagenet-vgg_11", row["batch_size"]), float)
        drawn_from = np.append(np.where(steps <= 400, steps, np.inf), np.inf)
        best = generator.choice(drawn_from, (20_000, 25)).min(axis=1)
        for name, level in (("low", 0.05), ("value", 0.5), ("high", 0.95)):
            assert row[name] == np.quantile(best, level, method="inverted_cdf")
    few = further(drawn[1], "Steps to result of fewer trials", "ResNet-50 on ImageNet")
    assert few.empty


def test_best_of_fewer_trials_is_not_taken_from_a_race(tables):
    raced = replace(tables, studies=tables.studies.assign(search_mode="race"))
    (figure,) = [each for each in FURTHER if each.kind == "trials"]
    (panel,) = [each for each in figure.panels if each.title.startswith("VGG")]
    assert len(points(figure, panel, Runs(tables))) == len(SIZES)
    assert points(figure, panel, Runs(raced)).empty


def test_race_is_not_asked_for_a_stricter_goal(tables):
    series = FIGURES[0].panels[3].series[0]
    stricter = replace(series, goal=replace(series.goal, threshold=0.2))
    assert len(Runs(tables).can_answer(stricter)) == len(SIZES)
    raced = replace(tables, studies=tables.studies.assign(search_mode="race"))
    assert len(Runs(raced).can_answer(series)) == len(SIZES)
    assert Runs(raced).can_answer(stricter).empty
