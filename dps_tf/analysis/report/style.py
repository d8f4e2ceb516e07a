"""The look of figures: line styles, axes, legends, and the bytes of the files.

Each curve has a colour, a marker and a line style of its own, so that any one of the
three may be lost. Text is large enough for a figure printed at half a page. This is
the only module that imports matplotlib when it runs: it makes figures, artists of
legends, and the bytes that a figure becomes, the same ones each time it is drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

# Okabe and Ito 2008, "Color universal design": distinct in any colour vision. The
# yellow is left out, as it is too faint on white; the faintest of the others are last.
PALETTE = (
    "#0072B2",  # blue
    "#D55E00",  # vermillion
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#000000",  # black
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
LINES = (
    "-",
    (0, (6, 2)),
    (0, (3, 1.5)),
    (0, (6, 2, 1.2, 2)),
    # Late, as lines of perfect scaling are dotted too.
    (0, (1, 1.4)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
    (0, (9, 3)),
)
_DIGIT = 0.1
"""Width of a digit of a tick label, in inches."""
_PNG_DOTS_PER_INCH = 200
"""Enough for print at the size of the figure."""
_NOTEBOOK_DOTS_PER_INCH = 110
SIZE = (6.2, 4.2)
"""Size of a figure with one axis, in inches."""
INK = "#1b1f24"
MUTED = "#59636e"
GRID = "#d8dee4"

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "legend.columnspacing": 1.6,
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.7,
    "lines.markersize": 6,
    "savefig.facecolor": "white",
    "text.color": INK,
    # A name may hold a dollar sign: no text is a formula.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    # Glyphs are paths, so that a figure looks the same where a font is missing.
    "svg.fonttype": "path",
    # Fixes the ids that matplotlib would otherwise draw at random.
    "svg.hashsalt": "dps_tf",
}


@dataclass(frozen=True)
class LineStyle:
    """Colour, marker and line of a curve."""

    color: str
    marker: str
    line: Any


def assign_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """Returns a line style per name, in the order of the names.

    No two of the first 385 names share colour, marker and line style.
    """
    return {
        name: LineStyle(
            PALETTE[i % len(PALETTE)],
            MARKERS[i % len(MARKERS)],
            LINES[(i + i // (len(PALETTE) * len(MARKERS))) % len(LINES)],
        )
        for i, name in enumerate(dict.fromkeys(names))
    }


def sequential_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """Returns a line style per name, in an order that their colours show.

    From dark to light along viridis, without its palest fifth, which is lost on white.
    """
    ordered = list(dict.fromkeys(names))
    colors = matplotlib.colormaps["viridis"]
    return {
        name: LineStyle(
            to_hex(colors(0.8 * i / max(len(ordered) - 1, 1))),
            MARKERS[i % len(MARKERS)],
            LINES[i % len(LINES)],
        )
        for i, name in enumerate(ordered)
    }


@contextmanager
def styled() -> Iterator[None]:
    """Sets the style, whatever the user's matplotlibrc says; drawing happens inside."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches, outside of pyplot's global state."""
    figure = _ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


class _ShownFigure(Figure):  # type: ignore[misc]
    """A figure that notebooks show although pyplot did not make it."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=_NOTEBOOK_DOTS_PER_INCH)
        return drawn.getvalue()


def spell(value: float) -> str:
    """Returns a number as an axis shows it: no exponent from 0.0001 to ten million.

    >>> spell(4096), spell(0.5), spell(2.0**21), spell(2.0**24)
    ('4096', '0.5', '2097152', '1.7e7')
    """
    if value and not 1e-4 <= abs(value) < 1e7:
        digits, _, power = f"{value:.2g}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:.7g}"


def _power_of_two(value: float) -> str:
    """Returns a power of two as an axis shows it: below 1 as a fraction."""
    return spell(value) if value >= 1 or not value else f"1/{spell(1 / value)}"


def log2_axis(axis: Axes, which: str, most: int = 12) -> None:
    """Makes the `x` or `y` axis logarithmic with ticks at powers of two."""
    set_scale = axis.set_xscale if which == "x" else axis.set_yscale
    set_scale("log", base=2)
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_major_locator(LogLocator(base=2, numticks=most))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda value, _: _power_of_two(value)))
    ticks.set_minor_formatter(NullFormatter())


def log10_axis(axis: Axes, which: str, most: int = 9) -> None:
    """Makes the x or y axis logarithmic with decimal ticks, as numbers.

    Call it after drawing: the narrower the drawn range, the more ticks it gets.
    """
    set_scale = axis.set_xscale if which == "x" else axis.set_yscale
    set_scale("log")
    low, high = axis.get_xlim() if which == "x" else axis.get_ylim()
    decades = abs(math.log10(high / low)) if low > 0 else 3.0
    subs: tuple[float, ...] = (1, 2, 5) if decades < 2.2 else (1,)
    if decades < 0.9:
        subs = (1, 1.5, 2, 3, 4, 5, 7)
    if decades < 0.3:
        subs = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_major_locator(LogLocator(base=10, subs=subs, numticks=most))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda value, _: spell(value)))


def batch_ticks(axis: Axes, batch_sizes: Sequence[int]) -> None:
    """Puts the ticks of a log2 x axis at the batch sizes that were measured.

    Every n-th tick has a label, so that labels do not overlap.
    """
    sizes = sorted({int(size) for size in batch_sizes})
    if not sizes:
        return
    wanted = sum(len(str(size)) + 1.5 for size in sizes) * _DIGIT
    available = axis.bbox.width / axis.figure.dpi
    every = max(1, math.ceil(wanted / available))
    labels = ["" if place % every else str(size) for place, size in enumerate(sizes)]
    axis.set_xticks(sizes, labels=labels)


def mark_style(line_style: LineStyle, *, hollow: bool = False) -> dict[str, Any]:
    """Returns the keywords of a marker without line; hollow ones show bounds."""
    return {
        "color": line_style.color,
        "marker": line_style.marker,
        "markerfacecolor": "white" if hollow else line_style.color,
        "markeredgecolor": line_style.color if hollow else "white",
        "markeredgewidth": 1.4 if hollow else 0.7,
        "linestyle": "none",
    }


def joined_marks(line_style: LineStyle, **changes: Any) -> dict[str, Any]:
    """Returns the keywords of a line with its markers."""
    return {**mark_style(line_style), "linestyle": line_style.line, **changes}


def line_style_of(line_styles: Mapping[str, LineStyle], name: object) -> LineStyle:
    """Returns the line style of a name, or a neutral one for other names."""
    return line_styles.get(str(name), LineStyle(MUTED, "o", "-"))


def band_style(color: str, seeds: int) -> dict[str, Any]:
    """Returns the keywords of a fit's band: hatched if it lacks the luck of seeds."""
    if seeds > 1:
        return {"color": color, "alpha": 0.12, "linewidth": 0}
    return {"facecolor": "none", "edgecolor": color, "alpha": 0.35, "hatch": "////"}


def band_handles(seeds: Iterable[int]) -> list[Any]:
    """Returns an entry of a legend for each kind of band, by the numbers of seeds."""
    return [
        patch_handle(
            f"band of {'one seed' if number == 1 else 'several seeds'}",
            **band_style(MUTED, number),
        )
        for number in sorted({min(number, 2) for number in seeds})
    ]


def line_handle(label: str, **style: Any) -> Any:
    """Returns an entry of a legend that shows a line or a marker."""
    return Line2D([], [], **style, label=label)


def patch_handle(label: str, **style: Any) -> Any:
    """Returns an entry of a legend that shows a filled area."""
    return Patch(**style, label=label)


def curve_handles(line_styles: Mapping[str, LineStyle]) -> list[Any]:
    """Returns the entries of a legend, one per curve."""
    return [line_handle(name, **joined_marks(s)) for name, s in line_styles.items()]


def legend_below(figure: Figure, handles: Sequence[Any], columns: int = 3) -> None:
    """Puts one legend for the whole figure under its axes."""
    if handles:
        figure.legend(
            handles=list(handles),
            loc="outside lower center",
            ncols=max(1, min(columns, len(handles))),
        )


@contextmanager
def one_axis(
    line_styles: Mapping[str, LineStyle], columns: int = 2
) -> Iterator[tuple[Figure, Axes]]:
    """Gives a figure with one axis to draw on; its legend names the curves."""
    with styled():
        figure = new_figure(*SIZE)
        yield figure, figure.subplots()
        legend_below(figure, curve_handles(line_styles), columns)


def lay_out(figure: Figure) -> None:
    """Lays out a figure once, so that its files need not do so again."""
    with styled():
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
    figure.set_layout_engine("none")


def png(figure: Figure, dots_per_inch: int = _PNG_DOTS_PER_INCH) -> bytes:
    """Returns the figure as PNG, without the version of the program that drew it."""
    buffer = io.BytesIO()
    with _drawn_by(FigureCanvasAgg, figure, dots_per_inch) as canvas:
        canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """Returns the figure as SVG, without date, its text as paths."""
    buffer = io.BytesIO()
    with _drawn_by(FigureCanvasSVG, figure, 150) as canvas:
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": "dps_tf"})
    return buffer.getvalue()


@contextmanager
def _drawn_by(kind: type, figure: Figure, dots_per_inch: int) -> Iterator[Any]:
    """Gives a canvas of a figure at a resolution.

    `Figure.savefig` would draw everything twice, the first time to lay it out.
    """
    canvas, before = figure.canvas, figure.dpi
    with styled():
        figure.dpi = dots_per_inch
        try:
            yield kind(figure)
        finally:
            figure.dpi = before
            figure.set_canvas(canvas)


def file_name(*parts: str) -> str:
    """Returns a file name without suffix for some names.

    >>> file_name("steps", "nesterov, sparsity 0.9")
    'steps_nesterov_sparsity_0.9'
    """
    joined = "_".join(part for part in parts if part)
    return re.sub(r"[^A-Za-z0-9.]+", "_", joined).strip("_.") or "figure"
