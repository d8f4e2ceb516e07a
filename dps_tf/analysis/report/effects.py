"""The effect of each axis of the cells: ratios of c1 and c2 against its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import Comparison
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, axis_order, differing
from dps_tf.analysis.report.drawing import small_axes
from dps_tf.analysis.report.style import Axes, LineStyle, file_name
from dps_tf.analysis.wording import listed, with_interval
from dps_tf.core import Curve

_CONSTANTS = {"c1": "Ratio of c1", "c2": "Ratio of c2"}


def effects_part(context: ReportContext) -> Part:
    """Returns a figure for each axis along which joint fits compare two curves."""
    table = effects_of(context.curves, context.joint)
    return Part(
        illustrations=[
            _figure(str(axis), rows)
            for axis, rows in table.groupby("axis", sort=False)
            if len(table) > 1
        ]
    )


def effects_of(curves: Curves, joint: Sequence[Comparison[Curve]]) -> pd.DataFrame:
    """Returns the ratios of curves that differ in one axis, with its values.

    Columns: axis, curve (the reference that the ratio is taken to), value (as text),
    base (the value of the reference), c1, c1_low, c1_high, c2, c2_low, c2_high.
    Sparsity and its method count as one axis, of the values of sparsity.
    """
    rows: list[dict[str, Any]] = []
    for ratio in (ratio for fit in joint for ratio in fit.ratios):
        differ = differing(ratio.curve, ratio.reference)
        if "sparsity" in differ:
            differ -= {"sparsity_method"}
        if len(differ) != 1:
            continue
        [axis] = differ
        own, other = ratio.curve.values, ratio.reference.values
        row: dict[str, Any] = {
            "axis": axis,
            "curve": curves.title(ratio.reference),
            "value": str(own.get(axis, "")),
        }
        for name, of in (("c1", ratio.c1), ("c2", ratio.c2)):
            row |= {name: of.value, f"{name}_low": of.low, f"{name}_high": of.high}
        rows.append({**row, "base": str(other.get(axis, ""))})
    return pd.DataFrame(rows, columns=None if rows else ["axis"])


def draw_effects(
    axis: Axes, rows: pd.DataFrame, constant: str, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the ratios of a constant, with their intervals, against the values.

    Rows are of `effects_of`, for one axis. Values have equal distances, in their order;
    each reference has a ratio of 1 at its own value.
    """
    values = list(axis_order([*rows["value"], *rows["base"]], rows["base"].iloc[0]))
    style.log2_axis(axis, "y")
    axis.axhline(1.0, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)))
    groups = list(rows.groupby("curve", sort=False))
    for place, (curve, group) in enumerate(groups):
        line_style = style.line_style_of(line_styles, curve)
        shift = 0.08 * (place - (len(groups) - 1) / 2)
        at = [values.index(value) + shift for value in group["value"]]
        middle = group[constant].to_numpy(float)
        low, high = (
            group[f"{constant}_{end}"].to_numpy(float) for end in ("low", "high")
        )
        # An open end runs off the axis.
        ends = np.maximum(low, middle / 1e3), np.minimum(high, middle * 1e3)
        axis.vlines(at, *ends, color=line_style.color, linewidth=1.4)
        start = [values.index(group["base"].iloc[0]) + shift]
        points = sorted(zip([*start, *at], [1.0, *middle], strict=True))
        axis.plot(*zip(*points, strict=True), **style.joined_marks(line_style))
    ends_drawn = rows.filter(regex=f"^{constant}").to_numpy(float)
    ends_drawn = ends_drawn[np.isfinite(ends_drawn) & (ends_drawn > 0)]
    least, most = min(1.0, *ends_drawn), max(1.0, *ends_drawn)
    axis.set_ylim(max(least, 1 / 64) / 1.3, min(most, 64.0) * 1.3)
    axis.set_xticks(range(len(values)), labels=values)
    axis.set(ylabel=_CONSTANTS[constant])


def _figure(name: str, rows: pd.DataFrame) -> Illustration:
    label = name.rpartition(".")[2].replace("_", " ")
    line_styles = style.assign_styles(rows["curve"])
    with style.styled():
        figure = style.new_figure(7.6, 3.7)
        for axis, constant in zip(small_axes(figure, 2, 2), _CONSTANTS, strict=True):
            draw_effects(axis, rows, constant, line_styles)
            axis.set_xlabel(label[0].upper() + label[1:])
        handles = [
            style.line_handle(f"against {curve}", **style.joined_marks(line_style))
            for curve, line_style in line_styles.items()
        ]
        style.legend_below(figure, handles, columns=2)

    def text_of(row: Mapping[Any, Any]) -> str:
        ratio = with_interval(row["c1"], row["c1_low"], row["c1_high"])
        plateau = with_interval(row["c2"], row["c2_low"], row["c2_high"])
        return f"at {row['value']} c1 times {ratio}, c2 times {plateau}"

    return illustration(
        figure,
        file_name("effect_of", label),
        f"Effect of {label}",
        caption=(
            f"Ratios of c1 and c2 to the curve named, which differs in "
            f"{label} alone, with the intervals of the joint fit. A ratio whose "
            "interval holds 1 may be no effect."
        ),
        alt=f"Two charts of ratios against {label}. {listed(rows, text_of)}.",
    )
