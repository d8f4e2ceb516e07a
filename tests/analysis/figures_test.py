"""Figures: drawn from tidy tables, same bytes each time, apart without colour."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer

from dps_tf.analysis import report
from dps_tf.analysis.law import Estimate
from dps_tf.analysis.regimes import Ends
from dps_tf.analysis.report import (
    drawing,
    effects,
    learning_curves,
    learning_rates,
    measurements,
    metaparameters,
    pruning,
    published,
    regimes,
    repeats,
    style,
)
from tests import interpreter

FOLDER = Path(report.__file__).parent
SIZES = [4, 16, 64]
STYLES = style.assign_styles(["a", "b"])


def two_curves(**columns: list[float]) -> pd.DataFrame:
    """Returns a table with curves a and b at each of SIZES."""
    frame = pd.DataFrame({"curve": ["a"] * 3 + ["b"] * 3, "batch_size": SIZES * 2})
    return frame.assign(
        **{k: (v * 2 if len(v) == 3 else v) for k, v in columns.items()}
    )


PLOT_ROWS = two_curves(
    steps_to_result=[900.0, 300.0, 100.0],
    low=[800.0, 200.0, 0.0],
    high=[900.0, 300.0, 100.0],
    bound=["", "", "", "", ">=", "<="],
    repeats=[1, 1, 1, 3, 3, 1],
)
LINE = pd.DataFrame(
    {"curve": "a", "batch_size": [4.0, 64.0], "steps": [900.0, 90.0]}
).assign(
    low=[800.0, np.nan],
    high=[1000.0, np.nan],
    further_low=700.0,
    further_high=1e3,
    seeds=1,
)
REGIMES = {
    name: Ends(0.2, 4.0, 64.0, critical, 8.0, None, is_flat)
    for name, critical, is_flat in (
        ("a", Estimate(20.0, 10.0, 40.0), True),
        ("b", Estimate(20.0, 0.0, np.inf), False),
    )
}
TRIALS = pd.DataFrame(
    {
        "x": [1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        "y": [0.1, 0.05, 0.01, 0.001, 0.0001],
        "kind": list(metaparameters.CLASSES),
        "best": [True, False, False, False, False],
    }
)
COMPARED = pd.DataFrame(
    {"curve": ["a", "b"], "label": ["a", "b"], "noise": [10.0, 30.0]}
).assign(noise_low=5.0, noise_high=90.0, critical=20.0, critical_low=np.nan)
STEPS = pd.DataFrame({"curve": list("aaabbb"), "step": [1, 10, 100] * 2})

DRAWINGS = {
    "steps_to_result": lambda a: drawing.draw_steps_to_result(
        a, PLOT_ROWS, LINE, STYLES
    ),
    "regimes": lambda a: (
        style.log2_axis(a, "x"),
        regimes.draw_regimes(a, REGIMES, STYLES),
    ),
    "effects": lambda a: effects.draw_effects(
        a,
        pd.DataFrame({"curve": ["a", "a", "b"], "value": ["0.5", "0.9", "0.9"]}).assign(
            base="0",
            c1=[1.2, 2.0, 0.5],
            c1_low=[1.0, 1.5, 0.0],
            c1_high=[1.4, 2.5, np.inf],
        ),
        "c1",
        STYLES,
    ),
    "metaparameters": lambda a: metaparameters.draw_trials(
        a, TRIALS, limits=(1e-4, 1.0, 1e-4, 0.1), contours=True
    ),
    "learning_rate": lambda a: learning_rates.draw_rates(
        a,
        pd.DataFrame({"batch_size": SIZES}).assign(
            effective_learning_rate=[0.1, 0.2, 0.4],
            effective_low=0.05,
            effective_high=0.8,
            spread_open=[True, False, False],
        ),
        pd.DataFrame({"rule": ["linear", "square_root"] * 2}).assign(
            batch_size=[4, 4, 64, 64], rule_rate=[0.1, 0.1, 1.6, 0.4]
        ),
        STYLES["a"],
    ),
    "smoothness": lambda a: measurements.draw_along(
        a, STEPS.assign(value=[9.0, 12.0, 15.0, 20.0, 30.0, 40.0]), "smoothness", STYLES
    ),
    "noise_scale": lambda a: measurements.draw_along(
        a,
        STEPS.assign(value=[20.0, np.nan, 90.0, 30.0, 60.0, 120.0]),
        "noise_scale",
        STYLES,
    ),
    "pairs": lambda a: pruning.draw_means(
        a,
        STEPS.assign(
            loss=[2.0, 1.0, 0.5, 2.2, 1.5, 0.9], value=[9.0, 7.0, 5.0, 8.0, 8.0, 6.0]
        ),
        "loss",
        STYLES,
    ),
    "noise_and_critical": lambda a: measurements.draw_beside_critical(
        a, COMPARED.assign(critical_high=np.inf), STYLES
    ),
    "published": lambda a: (
        style.log2_axis(a, "x"),
        style.log2_axis(a, "y"),
        published.draw_published(
            a, two_curves(steps_to_result=[900.0, 300.0, 100.0]), STYLES
        ),
    ),
    "training_curve": lambda a: learning_curves.draw_training(
        a, STEPS.assign(value=[0.9, 0.3, 0.02, 0.8, 0.2, 0.03]), 0.03, STYLES
    ),
    "repeats": lambda a: repeats.draw_repeats(
        a,
        two_curves(median=[900.0, 300.0, np.inf], recorded=[800.0, 280.0, 90.0]).assign(
            least=80.0, greatest=[1000.0, 310.0, np.inf] * 2, seed=[0, 0, 0, 0, 1, 1]
        ),
        STYLES,
    ),
}


def drawn(name: str):
    with style.styled():
        figure = style.new_figure(4, 3)
        DRAWINGS[name](figure.subplots())
    style.lay_out(figure)
    return figure


@pytest.mark.parametrize("name", DRAWINGS)
def test_figure_has_the_same_bytes_each_time(name):
    first, second = drawn(name), drawn(name)
    assert style.svg(first) == style.svg(second)
    assert style.png(first, 50) == style.png(second, 50)


@pytest.mark.parametrize("name", DRAWINGS)
def test_svg_is_whole_and_names_no_time_and_no_place(name):
    data = style.svg(drawn(name))
    ElementTree.fromstring(data)
    text = data.decode()
    assert "<dc:date>" not in text
    assert str(Path.home()) not in text
    # Glyphs are paths, so no font has to be installed where it is read.
    assert "<text" not in text


def test_png_tells_no_version():
    assert b"Matplotlib" not in style.png(drawn("pairs"), 50)


def test_every_drawing_is_tested():
    found = {
        (path.stem, name)
        for path in FOLDER.glob("*.py")
        for name in re.findall(r"^def (draw_\w+)", path.read_text(), re.MULTILINE)
    } - {("drawing", "draw_curves")}
    source = Path(__file__).read_text()
    assert len(found) > 10
    assert not [pair for pair in found if ".".join(pair) not in source]


def test_no_figure_has_global_state():
    code = (
        "import sys, dps_tf.analysis.report\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    done = interpreter.run(["-c", code], modules=interpreter.TABLES)
    assert done.returncode == 0, done.stderr


def test_no_two_line_styles_are_the_same():
    shown = style.assign_styles([str(i) for i in range(500)])
    seen = {(one.color, one.marker, str(one.line)) for one in shown.values()}
    assert len(seen) == 500


def luminance(color: str) -> float:
    """Returns the relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
              for c in to_rgb(color)]  # fmt: skip
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_first_colours_stand_out_from_white():
    contrast = [1.05 / (luminance(color) + 0.05) for color in style.PALETTE]
    # WCAG 2 asks 3 of graphics; the last two are weaker and carry marker and line too.
    assert min(contrast[:3]) > 3
    assert min(contrast) > 2
    assert 1.05 / (luminance(style.MUTED) + 0.05) > 4.5


def test_user_settings_change_nothing():
    import matplotlib

    before = style.svg(drawn("pairs"))
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30}):
        assert style.svg(drawn("pairs")) == before


def test_bounds_are_hollow_and_exact_points_are_filled():
    with style.styled():
        axis = style.new_figure(4, 3).subplots()
        drawing.draw_steps_to_result(axis, PLOT_ROWS, LINE, STYLES)
    faces = [
        line.get_markerfacecolor() for line in axis.lines if line.get_marker() in "os"
    ]
    assert faces.count("white") == 2
    assert STYLES["a"].color in faces


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_band_without_the_luck_of_seeds_is_hatched_and_named(seeds):
    with style.styled():
        axis = style.new_figure(4, 3).subplots()
        drawing.draw_steps_to_result(axis, PLOT_ROWS, LINE.assign(seeds=seeds), STYLES)
        [handle] = style.band_handles([seeds, seeds])
    [band] = axis.collections[:1]
    assert bool(band.get_hatch()) == bool(handle.get_hatch()) == (seeds == 1)
    assert (band.get_facecolor().size > 0) == (seeds > 1)
    assert (
        handle.get_label() == f"band of {'one seed' if seeds == 1 else 'several seeds'}"
    )


def test_repeats_have_whiskers_from_the_least_to_the_greatest():
    with style.styled():
        axis = style.new_figure(5, 4).subplots()
        points = PLOT_ROWS.assign(
            low=[700.0, 250.0, 90.0] * 2, high=[1100.0, 310.0, 130.0] * 2
        )
        drawing.draw_steps_to_result(axis, points, LINE, STYLES)
    [whiskers] = [c for c in axis.containers if isinstance(c, ErrorbarContainer)]
    [segment] = whiskers.lines[2][0].get_segments()
    # Of curve b's first point, the only exact one that was repeated.
    np.testing.assert_allclose(segment, [[4, 700], [4, 1100]])


def test_bracket_from_step_zero_stays_on_the_axis():
    with style.styled():
        axis = style.new_figure(4, 3).subplots()
        drawing.draw_steps_to_result(axis, PLOT_ROWS, LINE, STYLES)
    assert axis.get_ylim()[0] > 0
    assert axis.get_yscale() == axis.get_xscale() == "log"


def test_perfect_scaling_starts_at_the_smallest_batch_size():
    with style.styled():
        axis = style.new_figure(4, 3).subplots()
        drawing.draw_steps_to_result(
            axis, PLOT_ROWS[PLOT_ROWS["curve"] == "a"], LINE, STYLES
        )
    dotted = axis.lines[0]
    x, y = dotted.get_data()
    assert x[0] == 4
    np.testing.assert_allclose(np.asarray(x) * np.asarray(y), 3600)


def test_contours_join_equal_effective_rates():
    with style.styled():
        axis = style.new_figure(4, 3).subplots()
        metaparameters.draw_trials(
            axis, TRIALS, limits=(1e-4, 1.0, 1e-4, 0.1), contours=True
        )
    lines = [line for line in axis.lines if line.get_color() == style.MUTED]
    straight = [line for line in lines if line.get_marker() == "None"]
    assert straight
    for line in straight:
        x, y = map(np.asarray, line.get_data())
        assert x[0] / y[0] == pytest.approx(x[1] / y[1])
