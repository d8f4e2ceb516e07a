"""Figures 1 to 11 of Shallue et al. 2019, on a made-up archive with known curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.interchange.shallue2019_names import from_metric
from dps_tf.analysis.interchange.sweep import convert
from dps_tf.analysis.loading import Tables, load
from dps_tf.analysis.report.shallue2019_content import Series
from dps_tf.analysis.report.shallue2019_figures import figures_report, figures_text
from dps_tf.analysis.report.shallue2019_panels import FIGURES
from dps_tf.analysis.report.shallue2019_points import DIGITIZED, SWEEP, Runs
from tests.analysis.archive_files import write_study

C1, C2 = 6400.0, 100.0
SIZES = (64, 128, 1024, 8192)
STEPS = np.arange(0, 401, 10)


def steps_to(batch_size: int) -> int:
    """Returns the law that the archive obeys, rounded up to an evaluation."""
    return int(10 * np.ceil((C1 / batch_size + C2) / 10))


def curve(reaches_at: float, goal: float, start: float = 9.0) -> np.ndarray:
    """Returns errors that fall below the goal at a step, and stay there."""
    return np.where(reaches_at <= STEPS, goal * 0.99, start)


def write_archive(root: Path, series: list[Series]) -> None:
    """Writes studies in the published layout: a good trial, a late and a diverged one.

    Trials reach each goal that a panel asks of the workload at the same step.
    """
    goals: dict[tuple[str, str], list[Series]] = {}
    for each in series:
        goals.setdefault((each.workload, each.optimizer), []).append(each)
    for (workload, optimizer), found in goals.items():
        strictest = min(found, key=lambda each: each.goal.threshold).goal
        dataset, _, model = workload.partition("-")
        column = from_metric(strictest.metric)
        spelled = "nesterov_momentum" if optimizer == "nesterov" else optimizer
        own = {**strictest.to_json()}
        for size in SIZES:
            trials = [
                ("COMPLETE", STEPS, curve(steps_to(size), strictest.threshold)),
                ("COMPLETE", STEPS, curve(2 * steps_to(size), strictest.threshold)),
                ("INFEASIBLE", STEPS[:3], curve(0, strictest.threshold)[:3]),
            ]
            folder = write_study(
                root,
                dataset.replace(".", "/"),
                model,
                spelled,
                size,
                trials,
                goal=own,
                train_steps=400,
            )
            for file in folder.glob("*/measurements.csv"):
                lines = file.read_text().replace("val/classification_error", column)
                file.write_text(lines)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Tables:
    """An archive with ResNet-50, VGG-11 and base Transformer, once it was read."""
    root = tmp_path_factory.mktemp("archive")
    wanted = ("imagenet-resnet_50", "imagenet-vgg_11", "lm1b-transformer_base")
    every = {
        (s.workload, s.optimizer, str(s.goal)): s
        for figure in FIGURES
        for panel in figure.panels
        for s in panel.series
        if s.workload in wanted
    }
    write_archive(root / "batch_science", list(every.values()))
    convert(root / "batch_science", str(root / "sweep"))
    return load(root / "sweep")


@pytest.fixture(scope="module")
def drawn(tables):
    return figures_report(tables)


def rows_of(table: pd.DataFrame, number: int, panel: str) -> pd.DataFrame:
    return table[(table["figure"] == number) & (table["panel"] == panel)]


def test_panels_are_those_of_the_publication():
    assert [figure.number for figure in FIGURES] == list(range(1, 12))
    panels = [len(figure.panels) for figure in FIGURES]
    assert panels == [9, 3, 6, 3, 3, 2, 2, 9, 12, 4, 8]
    goals = {str(s.goal) for f in FIGURES for p in f.panels for s in p.series}
    assert all("<=" not in goal and ">=" not in goal for goal in goals)
    fashion = FIGURES[7].panels[1].series[0]
    assert (fashion.workload, fashion.goal.threshold) == (
        "fashion_mnist-simple_cnn_base",
        0.3,
    )


@pytest.mark.parametrize("panel", ["ResNet-50 on ImageNet", "VGG-11 on ImageNet"])
def test_steps_are_the_first_of_the_best_feasible_trial(drawn, panel):
    rows = rows_of(drawn[1], 1, panel)
    assert dict(zip(rows["batch_size"], rows["value"], strict=True)) == {
        size: steps_to(size) for size in SIZES
    }
    assert set(rows["source"]) == {SWEEP}


def test_ratios_are_to_the_batch_size_of_the_panel(drawn):
    rows = rows_of(drawn[1], 3, "ResNet-50 and VGG-11 on ImageNet")
    assert set(rows["series"]) == {"ResNet-50", "VGG-11"}
    for row in rows.to_dict("records"):
        expected = steps_to(row["batch_size"]) / steps_to(64)
        assert row["value"] == pytest.approx(expected)


def test_goals_that_are_stricter_than_the_record_are_met_where_all_ran_on(drawn):
    rows = rows_of(drawn[1], 2, "Transformer on LM1B")
    # The strictest goal of the archive is 3.8; all trials ran to their end.
    assert set(rows["series"]) == {"3.8", "3.85", "3.9", "3.95", "4", "4.05"}


def test_label_smoothing_of_each_trial_decides_its_curve(drawn):
    rows = rows_of(drawn[1], 7, "Steps to 0.25")
    assert set(rows["series"]) == {"0.01"}
    assert set(rows["batch_size"]) == set(SIZES)
    best = rows_of(drawn[1], 7, "Best validation error")
    np.testing.assert_allclose(best["value"], 0.25 * 0.99)


def test_effective_rate_is_that_of_the_best_trial(drawn):
    rows = rows_of(drawn[1], 8, "ResNet-50 on ImageNet")
    np.testing.assert_allclose(rows["value"], 0.1 / (1 - 0.99))


def test_scatter_tells_what_became_of_each_trial(drawn):
    rows = rows_of(drawn[1], 9, "B = 1024, 25,000 steps")
    assert sorted(rows["status"]) == ["achieved", "best", "infeasible"]
    np.testing.assert_allclose(rows["value"], 1 - 0.99)


def test_what_sweeps_lack_is_digitized_or_said_to_be_missing(drawn):
    report, table = drawn
    cnn = rows_of(table, 1, "Simple CNN on MNIST")
    assert set(cnn["source"]) == {DIGITIZED}
    assert len(cnn) == 10
    subsets = report.sections[5]
    assert "mnist_subsets.mnist_6875-simple_cnn_base" in " ".join(subsets.paragraphs)
    assert rows_of(table, 6, "Simple CNN on subsets of MNIST").empty
    assert "Figure  6: 0 of 2 panels" not in figures_text(table)


def test_every_figure_is_drawn_with_its_panels(drawn):
    report, _ = drawn
    assert [section.name for section in report.sections] == [
        f"figure{number}" for number in range(1, 12)
    ]
    assert all(section.illustrations[0].svg for section in report.sections)


def test_race_is_not_asked_for_a_stricter_goal(tables):
    series = FIGURES[0].panels[3].series[0]
    stricter = replace(series, goal=replace(series.goal, threshold=0.2))
    assert len(Runs(tables).can_answer(stricter)) == len(SIZES)
    raced = replace(tables, studies=tables.studies.assign(schedule="race"))
    assert len(Runs(raced).can_answer(series)) == len(SIZES)
    assert Runs(raced).can_answer(stricter).empty
