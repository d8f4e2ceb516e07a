"""What error does a budget of steps or of epochs buy at each batch size?

Only exhaustive studies that go on behind the goal can say; of a race the report is
silent.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dps_tf.analysis.budgets import Budget, best_under_budget
from dps_tf.analysis.figures import budgets as drawing
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, looks, new_figure, styled
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.content import Illustration, Words, illustration
from dps_tf.analysis.report.curves import Curves, groups, place_of
from dps_tf.analysis.report.measured import SIZE
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.wording import number
from dps_tf.analysis.tables import IDENTITY, has_rows
from dps_tf.core.goal import Goal

_FRACTIONS = (1 / 16, 1 / 4, 1)


def budget_figures(tables: Tables, curves: Curves) -> list[Illustration]:
    """Returns two figures per curve of exhaustive studies: step and epoch budgets.

    Args:
        tables: of the sweeps.
        curves: of the report.
    """
    figures: list[Illustration] = []
    exhaustive = tables.studies["schedule"] == "exhaustive"
    for panel, curve, cells in groups(curves):
        chosen = exhaustive.to_numpy(bool) & has_rows(tables.studies, cells)
        if chosen.sum() < 2:
            continue
        studies = tables.studies[chosen].reset_index(drop=True)
        goal = tables.goals[int(chosen.argmax())]
        trials, records = (
            table[has_rows(table, studies)].reset_index(drop=True)
            for table in (tables.trials, tables.curves)
        )
        for kind, budgets in budgets_of(studies).items():
            best = _best(studies, trials, records, budgets, goal)
            if len(best):
                where = place_of(curves, panel, curve)
                name = file_name("best", kind, panel if panel in where else "", curve)
                figures.append(_figure(best, goal, (name, kind, where)))
    return figures


def budgets_of(studies: pd.DataFrame) -> dict[str, list[Budget]]:
    """Returns fractions of the largest budget that every batch size was trained for.

    Args:
        studies: of one curve.
    """
    steps = int(studies["step_budget"].min())
    examples = studies["step_budget"] * studies["batch_size"]
    epochs = float((examples / studies["training_examples"].clip(lower=1)).min())
    return {
        "step budget": [Budget(steps=max(1, int(steps * f))) for f in _FRACTIONS],
        "epoch budget": [Budget(epochs=float(f"{epochs * f:.2g}")) for f in _FRACTIONS],
    }


def _best(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    records: pd.DataFrame,
    budgets: Sequence[Budget],
    goal: Goal,
) -> pd.DataFrame:
    """Returns budget, batch_size, value, is_exact."""
    found = pd.concat(
        best_under_budget(studies, trials, records, b, goal.metric, goal.direction)
        for b in budgets
    )
    found = found.rename(columns={"best_value": "value"}).dropna(subset="value")
    return found[["budget", *IDENTITY, "value", "is_exact"]]


def _figure(
    best: pd.DataFrame, goal: Goal, names: tuple[str, str, str]
) -> Illustration:
    name, kind, where = names
    with styled():
        figure = new_figure(*SIZE)
        axis = figure.subplots()
        drawing.draw(axis, best)
        axis.set_ylabel(f"Best {goal.metric}")
        shown = looks([str(label) for label in best["budget"]])
        legend_below(figure, curve_handles(shown))
    told = "; ".join(
        f"{budget}: "
        + ", ".join(
            f"{number(row['value'])} at {row['batch_size']}"
            for row in rows.sort_values("batch_size").to_dict("records")
        )
        for budget, rows in best.groupby("budget", sort=False)
    )
    words = Words(
        name=name,
        title=f"Best value under a {kind}: {where}",
        caption=(
            f"The best {goal.metric} that any trial had at an evaluation within the "
            "budget. Open marks: trials were stopped before the budget, so the best "
            "can only be better. A larger batch wins under a step budget, a smaller "
            "one under an epoch budget (Shallue et al. 2019, Figure 11)."
        ),
        alt=f"Line chart of the best {goal.metric} against batch size. {told}.",
    )
    return illustration(figure, words)
