"""Sections against the truth that was put into their tables, and reports on little."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import loading, report
from dps_tf.analysis.report import (
    assembly,
    content,
    effects,
    headline,
    law,
    learning_curves,
    learning_rates,
    measurements,
    pruning,
)
from dps_tf.analysis.report import repeats as report_repeats
from dps_tf.analysis.report.curves import curves_of
from dps_tf.analysis.report.recommendation import (
    MEASURE,
    RECORDED,
    recommendations_of,
)
from dps_tf.analysis.step_times import recorded_step_times
from dps_tf.core import CELL_KEY, UserError
from dps_tf.store import StoredTables
from tests.analysis.few_sections import context_of, draw_only
from tests.made_up.specifications import ERROR
from tests.made_up.sweeps import Sweep, make, write_sweep

SMALL = Sweep(sparsities=(0.0,), batch_sizes=(16, 64, 256), points=8, measured=False)


def work_of(tables: loading.Tables, seconds: float) -> pd.DataFrame:
    """Returns the table of work in which a step of trial t takes (t + 1) `seconds`."""
    rows = []
    for trial in tables.trials.to_dict("records"):
        key = {name: trial[name] for name in [*CELL_KEY, "precision", "trial"]}
        took = trial["end_step"] * seconds * (trial["trial"] + 1)
        rows.append({**key, "quantity": "steps", "value": float(trial["end_step"])})
        rows.append({**key, "quantity": "seconds", "value": took})
    return pd.DataFrame(rows)


# Times.


def test_recorded_step_times_are_medians_of_seconds_over_steps():
    tables = make(SMALL)
    times = recorded_step_times(work_of(tables, 0.25))
    trials = tables.trials.groupby(["batch_size", "sparsity"], sort=False)["trial"]
    assert times["seconds"].to_list() == pytest.approx(0.25 * (trials.median() + 1))
    assert len(times) == len(tables.results) and set(times["devices"]) == {1}


@pytest.mark.parametrize("full", [8, 64])
def test_a_report_says_which_batch_size_to_use_where_times_are_known(full):
    sizes = (16, 32, 64, 128, 256, 512)
    tables = make(dataclasses.replace(SMALL, batch_sizes=sizes))
    untimed = dataclasses.replace(tables, work=tables.work[:0])
    assert recommendations_of(context_of(untimed)) == (MEASURE,)
    work = work_of(tables, 1.0)
    is_time = work["quantity"] == "seconds"
    work.loc[is_time, "value"] *= 1 + work["batch_size"].astype(float) / full
    (said,) = recommendations_of(context_of(dataclasses.replace(tables, work=work)))
    k_star = tables.results.set_index("batch_size")["steps_to_result"]
    seconds = k_star * (1 + k_star.index.to_numpy(float) / full)
    assert f": Train with batch size {seconds.idxmin()} on" in said
    assert RECORDED in said


# Pairs of pruned and dense networks.


def paired_tables(*, other_rates: bool = False) -> loading.Tables:
    """Returns a sweep whose first trials were measured: 1.5 times as much if pruned."""
    sweep = dataclasses.replace(
        SMALL, sparsities=(0.0, 0.9), seeds=(0, 1), batch_sizes=(64,)
    )
    made = make(sweep)
    trials = made.trials.assign(learning_rate=0.1 * (1 + made.trials["trial"]))
    if other_rates:
        trials["learning_rate"] += trials["sparsity"]
    first = trials[trials["trial"] < 2]
    about = first[[*CELL_KEY, "precision", "trial"]]
    rows = [
        about.assign(step=step, quantity=quantity, value=value, examples=1000)
        for step in (0, 20, 100, 200)
        for quantity, value in (
            ("loss", 2.0 / (1 + step)),
            ("smoothness", (7 + step) * np.where(first["sparsity"] > 0, 1.5, 1.0)),
        )
    ]
    measured = pd.concat(rows, ignore_index=True)
    return loading.tables_of(
        dataclasses.replace(made, trials=trials, measurements=measured)
    )


def test_pairs_are_compared_and_drawn():
    part = pruning.pairs_part(context_of(paired_tables()))
    [table] = part.tables
    [row] = table.frame.to_dict("records")
    assert (row["network"], row["seeds"]) == ("snip 0.9", 2)
    assert row["step"].key == pytest.approx(1.5)
    assert row["loss"].text == "1.50 (1.50 to 1.50)"
    assert [each.name for each in part.illustrations] == [
        "pairs_smoothness_batch_size_64"
    ]


def test_trials_of_unequal_metaparameters_are_no_pair():
    part = pruning.pairs_part(context_of(paired_tables(other_rates=True)))
    assert part == content.Part()


def test_means_are_geometric_over_seeds_and_trials():
    measured = pd.DataFrame(
        [
            ("a", 1, quantity, value)
            for quantity, values in (("loss", (1.0, 4.0)), ("smoothness", (2.0, 32.0)))
            for value in values
        ],
        columns=["curve", "step", "quantity", "value"],
    )
    [row] = pruning.means_along(measured, "smoothness").to_dict("records")
    assert row == pytest.approx({"curve": "a", "step": 1, "loss": 2.0, "value": 8.0})


# Repeats.


def test_repeats_stand_beside_the_minimum_they_repeat():
    tables = make(SMALL)
    row = tables.results.iloc[0]
    key = {name: row[name] for name in [*CELL_KEY, "precision"]}
    steps = np.array([1.0, 2.0, 4.0]) * float(row["steps_to_result"])
    again = pd.DataFrame(
        [
            {**key, "trial": int(row["best_trial"]), "repeat": i, "latest": s}
            for i, s in enumerate(steps)
        ]
    ).assign(outcome="complete")
    context = context_of(dataclasses.replace(tables, repeats=again))
    part = report_repeats.repeats_part(context)
    assert "standard deviation of 100 % of the steps" in part.paragraphs[0]
    [told] = part.tables[0].frame.to_dict("records")
    assert told["optimism"].key == 2 and told["noise"].key == pytest.approx(1.0)
    assert told["median"].key == 2 * told["recorded"].key == 2 * steps[0]
    assert report_repeats.repeats_part(context_of(tables)) == content.Part()


# Charts.


def test_charts_hold_every_trial_and_its_last_evaluation():
    tables = make(SMALL)
    [figure] = learning_curves.training_figures(context_of(tables))
    found = json.loads(figure.trials)
    assert len(found) == 3
    for cell, size in zip(found, SMALL.batch_sizes, strict=True):
        assert cell["name"].endswith(f"batch size {size}") and cell["left_out"] == 0
        records = tables.curves[tables.curves["batch_size"] == size]
        last = records.sort_values("step").groupby("trial").tail(1)
        last = last.set_index("trial")
        drawn = {
            int(re.match(r"trial (\d+),", trial["note"]).group(1)): trial
            for trial in cell["trials"]
        }
        assert set(drawn) == set(last.index)
        for number, trial in drawn.items():
            assert trial["steps"][-1] == last["step"][number]
            assert trial["values"][-1] == pytest.approx(last[ERROR][number], rel=1e-4)
            assert len(trial["steps"]) <= 40
    # The best trials are in the chart itself, each an entry of its legend.
    entries = [f"batch size {size}" for size in SMALL.batch_sizes]
    assert all(f'"value": "{entry}"' in figure.chart for entry in entries)


def test_where_evaluations_only_bound_the_metric_the_loss_is_drawn():
    tables = make(SMALL)
    # As of a large validation split: the goal's metric is told where it is met.
    is_met = tables.curves[ERROR] <= tables.goals[0].threshold
    losses = np.linspace(2, 1, len(tables.curves))
    told = tables.curves.assign(**{"is_bound": ~is_met, "train/loss": losses})
    bounded = dataclasses.replace(tables, curves=told)
    [figure] = learning_curves.training_figures(context_of(bounded))
    assert f"{ERROR} is not drawn" in figure.caption
    assert figure.caption.startswith("train/loss of") and "Dashed" not in figure.caption
    assert '"goal"' not in figure.chart
    for cell in json.loads(figure.trials):
        assert max(len(trial["steps"]) for trial in cell["trials"]) > 1
        assert all(1 <= v <= 2 for trial in cell["trials"] for v in trial["values"])
    [figure] = learning_curves.training_figures(context_of(tables))
    assert figure.caption.startswith(ERROR) and "Dashed: the goal" in figure.caption
    assert '"goal"' in figure.chart


@pytest.fixture(scope="module")
def known():
    return context_of(make(dataclasses.replace(SMALL, points=32))).curves


@pytest.fixture(scope="module")
def steps_chart(known) -> str:
    return headline.headline(known).chart


def test_ids_of_charts_do_not_depend_on_charts_made_before(known, steps_chart):
    assert headline.headline(known).chart == steps_chart
    assert set(re.findall(r'"(p\d+)"', steps_chart)) >= {"p1001"}


def test_legends_hide_whole_curves_and_steps_have_ticks_at_powers_of_two(steps_chart):
    text = steps_chart
    assert '"click_policy": "hide"' in text
    # Band, line, brackets and marks share one entry.
    items = re.findall(r'"name": "LegendItem".*?"renderers": \[(.*?)\]\}', text)
    assert len(items) == 1 and items[0].count('"id"') >= 4
    ticks = [json.loads(found) for found in re.findall(r'"ticks": (\[.*?\])', text)]
    # Of the batch sizes that were measured, and of the steps.
    assert [16, 64, 256] in ticks
    assert any({1.0, 2.0, 1024.0} <= set(of_axis) for of_axis in ticks)
    # A bar of regimes under the curve.
    assert '"name": "HBar"' in text


def test_effects_are_ratios_of_curves_that_differ_in_one_axis():
    sweep = dataclasses.replace(
        SMALL,
        sparsities=(0.0, 0.5, 0.9),
        optimizers=("sgd", "nesterov"),
    )
    found = context_of(make(sweep)).curves
    joint = law.joint_fits(found)
    table = effects.effects_of(found, joint)
    [fit] = joint
    by_names = {(found.title(r.curve), found.title(r.reference)): r for r in fit.ratios}
    of_sgd = table["curve"].str.startswith("sgd")
    sparser = table[of_sgd & (table["axis"] == "sparsity")]
    assert sparser["value"].tolist() == ["0.5", "0.9"]
    assert set(sparser["base"]) == {"0.0"}
    ratio = by_names["sgd, sparsity 0.9", "sgd, sparsity 0"]
    [row] = sparser[sparser["value"] == "0.9"].to_dict("records")
    assert (row["c1"], row["c1_low"]) == (ratio.c1.value, ratio.c1.low)
    assert set(table["axis"]) == {"sparsity", "optimizer"}
    assert len(table) == len(by_names)


# Several sweeps, and sections of a user's own.


def test_curves_without_a_seed_in_common_are_drawn_together():
    dense = dataclasses.replace(SMALL, measured=True)
    pruned = dataclasses.replace(dense, sparsities=(0.9,), seeds=(1,))
    context = context_of(make(dense, pruned))
    for part in (measurements.smoothness_part, learning_rates.learning_rates_part):
        [figure] = part(context).illustrations
        assert "sparsity 0: " in figure.alt and "sparsity 0.9: " in figure.alt


def test_labels_let_sweeps_of_the_same_cells_lie_side_by_side(tmp_path):
    tiny = dataclasses.replace(SMALL, points=4)
    for name in ("one", "two"):
        write_sweep(tmp_path / name, tiny)
    folders = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(UserError, match="--label"):
        loading.load(*folders)
    with pytest.raises(UserError, match="1 labels for 2 sweeps"):
        loading.load(*folders, labels=["a"])
    tables = loading.load(*folders, labels=["mine", "theirs"])
    found = curves_of(tables.results)
    assert list(found.line_styles) == ["label mine", "label theirs"]
    assert len(found.panels) == 1
    # Files are named in ASCII.
    greek = context_of(loading.load(*folders, labels=["α", "β"]))
    figures = learning_curves.training_figures(greek)
    section = content.section_of("name", "Title", [content.Part((), figures)])
    names = [item.name for item in section.illustrations]
    assert names == ["training_label", "training_label__2"]
    first, last = (w for sweep in tables.sweeps[:1] for w in sweep.written)
    assert 0 < first <= last


@pytest.fixture
def sections():
    before = list(assembly.SECTIONS)
    yield
    assembly.SECTIONS[:] = before


def test_a_section_of_ones_own_is_one_function(sections, monkeypatch):
    draw_only(monkeypatch, "headline", "table")

    def part(context: report.ReportContext) -> report.Part:
        frame = context.tables.results[["batch_size"]]
        column = content.Column("batch_size", "B")
        table = content.PageTable("t", "T", (column,), frame)
        return report.Part(("Mine.",), (), (table,))

    report.register_report_section("mine", "My section", part)
    with pytest.raises(UserError, match="'mine'"):
        report.register_report_section("mine", "Again", part)
    found = assembly.assemble(make(dataclasses.replace(SMALL, points=1)))
    assert found.sections[-1].title == "My section"
    assert found.sections[-1].paragraphs == ("Mine.",)


# Little to show.


def little(kind: str) -> StoredTables:
    made = make(dataclasses.replace(SMALL, points=2))
    metrics = [name for name in made.curves if "/" in name]
    unknown = pd.array([pd.NA] * len(made.trials), dtype="Int64")
    changes = {"steps_to_result": unknown, "bracket_low": unknown, "end_step": 0}
    if kind == "failed":
        changes |= {"outcome": "failed", "error": "ValueError: first trouble\nmore"}
    else:
        changes |= {"outcome": "incomplete"}
    return dataclasses.replace(
        made,
        studies=made.studies.assign(closed=False),
        trials=made.trials.assign(**changes),
        curves=made.curves.iloc[:0].drop(columns=metrics),
    )


@pytest.mark.parametrize("kind", ["failed", "not evaluated"])
def test_before_the_first_evaluation_a_report_shows_what_there_is(kind, tmp_path):
    tables = loading.tables_of(little(kind))
    found = report.write_report(tables, tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "no K* is known exactly" in found.summary[0]
    text = report.terminal_text(found, tables)
    assert ("ValueError: first trouble" in text) == (kind == "failed")
    assert "more" not in text.split("first trouble")[-1].splitlines()[0]
