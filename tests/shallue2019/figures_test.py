"""The page of the figures, and how curves are drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from tests import interpreter
from tests.shallue2019.points_test import RESNET_PANEL, made
from tests.shallue2019.script import FOLDER, figure_panels, figure_points, figures

FIGURES = figure_panels.FIGURES


def drawn(figure, tables=None):
    sweeps = figure_points.Sweeps(tables)
    frames = [figure_points.points(panel, sweeps) for panel in figure.panels]
    return figures.draw_figure(figure, frames)


def test_no_line_leads_over_a_digitized_value_that_could_not_be_read():
    panel, *_ = drawn(FIGURES[3]).axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    sizes, steps = (values.tolist() for values in lines["momentum"].get_data())
    unread = {size for size, y in zip(sizes, steps, strict=True) if math.isnan(y)}
    assert unread == {2048}
    assert sizes == sorted(sizes)


@pytest.mark.slow
def test_curves_are_named_in_their_order_with_their_source():
    axes = drawn(FIGURES[2], made("exhaustive")).axes
    panels = {axis.get_title(loc="left"): axis for axis in axes}
    (title,) = [title for title in panels if title.startswith("ResNet-50 and VGG-11")]
    assert title.endswith("error < 0.35")
    _, names = panels[title].get_legend_handles_labels()
    assert names == ["ResNet-50", "VGG-11 (digitized)"]
    texts = [text.get_text() for p in panels.values() for text in p.texts]
    assert any(t.startswith("no data of") and "transformer_wide" in t for t in texts)


@pytest.mark.slow
def test_the_legend_of_scatters_lies_beside_their_panels():
    marks = {"kind": "scatter", "batch_size": 256, "budgets": (1000.0,)}
    panels = (replace(RESNET_PANEL, **marks),) * 3
    scatter = drawn(replace(FIGURES[8], panels=panels), made("exhaustive"))
    scatter.draw_without_rendering()
    (legend,) = scatter.legends
    box = legend.get_window_extent()
    assert [text.get_text() for text in legend.get_texts()][-1] == "best"
    for axis in scatter.axes:
        assert axis.get_legend() is None
        assert not box.overlaps(axis.get_window_extent())


def test_a_figure_without_data_says_what_would_show_it():
    empty = pd.DataFrame(columns=figure_points.COLUMNS)
    (sentence,) = figures.remarks(FIGURES[9], [empty] * 4)
    assert "lm1b-transformer_wide" in sentence and "public archive" in sentence


@pytest.mark.slow
def test_the_command_writes_page_figures_and_table(tmp_path):
    script = str(FOLDER / "figures.py")
    done = interpreter.run(
        [script, f"--out={tmp_path / 'f'}"], modules=interpreter.TABLES
    )
    assert done.returncode == 0, done.stderr
    assert "Figure 1: 9 of 9 panels, 89 points from digitized" in done.stdout
    assert "Figure 7: 0 of 2 panels\n" in done.stdout
    page = (tmp_path / "f" / "figures.html").read_text(encoding="utf-8")
    for number in (1, 2, 3, 4, 5, 6, 8):
        assert f'<img src="figure{number}.svg"' in page
        assert (tmp_path / "f" / f"figure{number}.svg").stat().st_size > 0
    table = pd.read_csv(tmp_path / "f" / "figures.csv")
    assert len(table[table["figure"] == "Figure 1"]) == 89


def test_a_folder_that_is_no_sweep_is_one_sentence(tmp_path, capsys):
    assert figures.main([f"--sweep_dir={tmp_path / 'no'}", f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no directory")
