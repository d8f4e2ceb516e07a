"""What error does a budget of steps or of epochs buy at each batch size?

Only exhaustive studies that go on behind the goal can say; of a race the report is
silent.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dps_tf.analysis.budgets import GOOD, Budget, best_under_budget
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    illustration,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, groups
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import belongs, has_rows
from dps_tf.analysis.wording import listed, number, percent
from dps_tf.core import Goal

_FRACTIONS = (1 / 16, 1 / 4, 1)


@dataclass(frozen=True)
class BestValues:
    """What budgets of a kind (`step budget`, `epoch budget`) buy on one curve.

    Attributes:
        file: name of the figure without suffix.
        goal: whose metric it is about.
        rows: of `budgets.best_under_budget` where there is a value, `value` the best.
    """

    file: str
    kind: str
    curve: str
    goal: Goal
    rows: pd.DataFrame


def budgets_part(context: ReportContext) -> Part:
    """Returns a figure for each curve and kind of budget, and a table of them all."""
    found = best_values(context.tables, context.curves)
    table = budget_table(found)
    tables = () if table is None else (table,)
    return Part(illustrations=[_figure(one) for one in found], tables=tables)


def best_values(tables: Tables, curves: Curves) -> list[BestValues]:
    """Returns what budgets of steps and epochs buy on curves of exhaustive studies."""
    found: list[BestValues] = []
    exhaustive = tables.studies["search_mode"] == "exhaustive"
    for panel, curve, cells in groups(curves):
        chosen = exhaustive.to_numpy(bool) & has_rows(tables.studies, cells)
        if chosen.sum() < 2:
            continue
        studies = tables.studies[chosen].reset_index(drop=True)
        goal = tables.goals[int(chosen.argmax())]
        about = goal.metric, goal.direction
        trials, records = (
            table[belongs(table, studies)].reset_index(drop=True)
            for table in (tables.trials, tables.curves)
        )
        for kind, budgets in budgets_of(studies).items():
            # One row per budget and batch size.
            best = pd.concat(
                best_under_budget(studies, trials, records, budget, *about)
                for budget in budgets
            )
            rows = best.rename(columns={"best_value": "value"}).dropna(subset="value")
            if len(rows):
                file = file_name("best", kind, curves.panel_title(panel), curve)
                title = curves.title(panel, curve)
                found.append(BestValues(file, kind, title, goal, rows))
    return found


def budget_table(found: Sequence[BestValues]) -> PageTable | None:
    """Returns the best values, and the region of good metaparameters, of each budget.

    None where no study is exhaustive.
    """
    names = _metaparameters(found)
    rows = [
        _row(one, row, names) for one in found for row in one.rows.to_dict("records")
    ]
    if not rows:
        return None
    columns = (
        Column("curve", "Curve"),
        Column("budget", "Budget"),
        Column("batch_size", "Batch size"),
        Column(
            "best",
            "Best value",
            "'So far': a trial was stopped before the budget's end.",
        ),
        Column(
            "good",
            "Good trials",
            f"Trials whose best value lies within {percent(GOOD)} of the best.",
        ),
        *(
            Column(
                f"of_{name}",
                name.replace("_", " ").capitalize(),
                "Of the good trials, least to greatest.",
            )
            for name in names
        ),
    )
    caption = "What a budget buys, and the region of good metaparameters"
    return page_table("budgets", caption, columns, rows)


def _metaparameters(found: Sequence[BestValues]) -> list[str]:
    """Returns the metaparameters of which the good trials span a known range."""
    names = [
        name.removesuffix("_low")
        for one in found
        for name in map(str, one.rows.columns)
        if name.endswith("_low") and one.rows[name].notna().any()
    ]
    return list(dict.fromkeys(names))


def _row(
    one: BestValues, row: Mapping[Hashable, Any], names: Sequence[str]
) -> dict[str, Any]:
    value = float(row["value"])
    text = number(value) if row["is_exact"] else f"{number(value)} so far"
    found: dict[str, Any] = {
        "curve": one.curve,
        "budget": row["budget"],
        "batch_size": row["batch_size"],
        "best": SortableText(text, value),
        "good": int(row["good_trials"]),
    }
    for name in names:
        low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
        text = number(low) if low == high else f"{number(low)} to {number(high)}"
        found[f"of_{name}"] = SortableText("" if math.isnan(low) else text, low)
    return found


def budgets_of(studies: pd.DataFrame) -> dict[str, list[Budget]]:
    """Returns fractions of the largest budget that all studies were trained for."""
    steps = int(studies["step_budget"].min())
    examples = studies["step_budget"] * studies["batch_size"]
    epochs = float((examples / studies["training_examples"].clip(lower=1)).min())
    return {
        "step budget": [Budget(steps=max(1, int(steps * f))) for f in _FRACTIONS],
        "epoch budget": [Budget(epochs=float(f"{epochs * f:.2g}")) for f in _FRACTIONS],
    }


def draw_best(
    axis: Axes, best: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the best value under each budget against the batch size.

    Columns of the table: budget (its label), batch_size, value, is_exact (whether no
    trial that was stopped might have been better).
    """
    style.log2_axis(axis, "x")
    for budget, rows in best.groupby("budget", sort=False):
        line_style = line_styles[str(budget)]
        rows = rows.sort_values("batch_size")
        sizes, values = rows["batch_size"], rows["value"]
        axis.plot(sizes, values, color=line_style.color, linestyle=line_style.line)
        for exact, group in rows.groupby("is_exact"):
            marks = style.mark_style(line_style, hollow=not exact)
            axis.plot(group["batch_size"], group["value"], **marks)
    axis.set(xlabel="Batch size")
    style.batch_ticks(axis, best["batch_size"].tolist())


def _figure(one: BestValues) -> Illustration:
    best, goal, kind = one.rows, one.goal, one.kind
    line_styles = style.assign_styles(best["budget"])
    with style.one_axis(line_styles, columns=3) as (figure, axis):
        draw_best(axis, best, line_styles)
        axis.set_ylabel(f"Best {goal.metric}")
    listing = listed(
        best, "budget", lambda row: f"{number(row['value'])} at {row['batch_size']}"
    )
    figure_text = FigureText(
        name=one.file,
        title=f"Best value under a {kind}: {one.curve}",
        caption=(
            f"The best {goal.metric} that any trial had at an evaluation within the "
            "budget. Open marks: trials were stopped before the budget, so the best "
            "can only be better. A larger batch wins under a step budget, a smaller "
            "one under an epoch budget (Shallue et al. 2019, Figure 11)."
        ),
        alt=f"Line chart of the best {goal.metric} against batch size. {listing}.",
    )
    return illustration(figure, figure_text)
