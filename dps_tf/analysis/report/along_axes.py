"""K* along a further axis of the cells: against a delay, local steps, or a width.

The headline has a curve of K* against the batch size for each value of an axis; where
an axis has three or more values that are numbers, it is drawn against these too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import axes_of, study_key
from dps_tf.analysis.wording import listed, number, steps

_LEAST_VALUES = 3


def along_axes_part(context: ReportContext) -> Part:
    """Returns a figure for each axis with numbers enough; nothing without any."""
    cells = context.curves.cells
    lines = {axis: lines_along(cells, axis) for axis in axes_of(cells)}
    enough = {
        axis: rows
        for axis, rows in lines.items()
        if rows["value"].nunique() >= _LEAST_VALUES
    }
    return Part(illustrations=[_figure(*each) for each in enough.items()])


def lines_along(cells: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Returns K* against an axis: a row for each of its values and all else alike.

    Columns: line (what is alike: the batch size, and what else the cells differ in),
    value, steps_to_result (the geometric mean over study seeds). Values that are no
    numbers, and cells of which only a bound is known, are left out.
    """
    known = cells[(cells["steps_bound"] == "") & cells["steps_to_result"].notna()]
    values = pd.to_numeric(known[axis], errors="coerce")
    known = known.assign(value=values)[values.notna()]
    alike = [name for name in study_key(cells) if name not in (axis, "seed")]
    told = [n for n in alike if n == "batch_size" or known[n].nunique() > 1]
    rows = known.assign(log=np.log(known["steps_to_result"].astype(float)))
    means = rows.groupby([*alike, "value"], sort=True)["log"].mean().reset_index()
    names = [
        ", ".join(f"{n.rpartition('.')[2].replace('_', ' ')} {row[n]}" for n in told)
        for row in means.to_dict("records")
    ]
    return pd.DataFrame(
        {
            "line": names,
            "value": means["value"],
            "steps_to_result": np.exp(means["log"]),
        }
    )


def draw_along(
    axis: Axes, rows: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the lines of `lines_along`, powers of two and zero on the x axis."""
    axis.set_xscale("symlog", base=2, linthresh=1.0)
    style.log2_axis(axis, "y")
    for name, mine in rows.groupby("line", sort=False):
        line_style = style.line_style_of(line_styles, name)
        axis.plot(
            mine["value"], mine["steps_to_result"], **style.joined_marks(line_style)
        )
    values = sorted(rows["value"].unique())
    axis.set_xticks(values, labels=[style.spell(value) for value in values])
    axis.set(ylabel="Steps to result")


def _figure(name: str, rows: pd.DataFrame) -> Illustration:
    line_styles = style.sequential_styles(rows["line"])
    called = name.rpartition(".")[2].replace("_", " ")
    with style.one_axis(line_styles) as (figure, axis):
        draw_along(axis, rows, line_styles)
        axis.set_xlabel(called[0].upper() + called[1:])
    told = listed(
        rows,
        "line",
        lambda row: f"{steps(row['steps_to_result'])} at {number(row['value'])}",
    )
    figure_text = FigureText(
        name=file_name("steps_to_result_along", called),
        title=f"Steps to result against {called}",
        caption=(
            f"K* against {name}, one line for each batch size: flat where the axis "
            "costs no steps. Geometric means over study seeds; cells of which only a "
            "bound is known are left out."
        ),
        alt=f"Line chart of steps to result against {called}. {told}.",
    )
    return illustration(figure, figure_text)
