"""Which bytes does a figure become? The same ones each time it is drawn."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

from dps_tf.analysis.figures.style import styled

PNG_DOTS_PER_INCH = 200
"""Enough for print at the size of the figure."""


def lay_out(figure: Figure) -> None:
    """Fixes where everything stands: else each file would find it again."""
    with styled():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def png(figure: Figure, dots_per_inch: int = PNG_DOTS_PER_INCH) -> bytes:
    """Returns the figure as PNG, without the version of the program that drew it."""
    return _saved(figure, "png", {"Software": None}, dots_per_inch)


def svg(figure: Figure) -> bytes:
    """Returns the figure as SVG, without date, its text as paths."""
    return _saved(figure, "svg", {"Date": None, "Creator": "dps_tf"}, 150)


def _saved(
    figure: Figure, kind: str, metadata: dict[str, str | None], dots_per_inch: int
) -> bytes:
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=dots_per_inch)
    return buffer.getvalue()
