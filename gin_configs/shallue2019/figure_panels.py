"""The figures of Shallue et al. 2019: their panels, and what each of them shows.

`figure_panels.csv` has the panels of Figures 1 to 11: their curves with workload,
optimizer and goal, batch size n, budgets and limits of axes, as in the published
notebook; workloads are named as the archive names them. Of the batch sizes of Figure 9
and the budgets of Figure 11 the first and last are published. Batch sizes between are
powers of two, and budgets between are 1, 2 and 5 in each decade, which fit where the
published curves of Figure 11 end.

What Figures 12 to 24 show is not known from public sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import dps_tf

FOLDER = Path(__file__).parent
# Of all others a hundred trials were complete.
_OF_FIFTY = {
    ("lm1b-lstm", "nesterov"),
    ("common_crawl-transformer_base", "nesterov"),
    ("lm1b-transformer_shallow", "sgd"),
}


@dataclass(frozen=True)
class Series:
    """A curve of a panel: whose K*, and for which goal."""

    label: str
    workload: str
    goal: dps_tf.Goal
    optimizer: str

    @property
    def trials(self) -> int:
        """How many trials the published K* is the best of."""
        return 50 if (self.workload, self.optimizer) in _OF_FIFTY else 100


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        kind: what is drawn, a key of `figure_points.MAKERS`.
        series: its curves; the first is the reference of the scaling line.
        first: batch size n that curves are divided at and lines start from; None is the
            smallest.
        batch_size: of a scatter, which it shows.
        budgets: of a scatter, and of a comparison of budgets, in steps or epochs.
        examples: in an epoch, where budgets are epochs; else 0.
        limits: of the y axis, or of both axes of a scatter; None: where the data end.
    """

    title: str
    kind: str
    series: tuple[Series, ...]
    first: int | None = None
    batch_size: int = 0
    budgets: tuple[float, ...] = ()
    examples: int = 0
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        columns: panels in a row.
        number: in the publication.
    """

    title: str
    panels: tuple[Panel, ...]
    columns: int
    number: int

    @property
    def kind(self) -> str:
        """What is drawn in its panels, or in the first of them."""
        return self.panels[0].kind

    @property
    def label(self) -> str:
        """What the table of all points calls it."""
        return f"Figure {self.number}"


def budgets_between(low: float, high: float) -> tuple[float, ...]:
    """Returns both budgets, and 1, 2 and 5 times the powers of ten between them."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = (float(f"{digit}e{power}") for power in exponents for digit in (1, 2, 5))
    between = (budget for budget in every if low < budget < high)
    return tuple(dict.fromkeys([float(low), *between, float(high)]))


def goal_of(text: str) -> dps_tf.Goal:
    """Returns a strict goal as the tables write it, such as `train/loss < 0.5`."""
    metric, sign, threshold = text.split()
    direction = {"<": "minimize", ">": "maximize"}[sign]
    return dps_tf.Goal(metric, float(threshold), direction, inclusive=False)


def panels_of(number: int) -> tuple[Panel, ...]:
    """Returns the panels of a figure, in their order."""
    table = pd.read_csv(FOLDER / "figure_panels.csv", dtype={"series": str})
    panels = table[table["figure"] == number].groupby("panel", sort=False)
    return tuple(_panel(str(title), rows) for title, rows in panels)


def _panel(title: str, rows: pd.DataFrame) -> Panel:
    columns = ["series", "workload", "goal", "optimizer"]
    curves = rows[columns].itertuples(index=False, name=None)
    row = rows.iloc[0]
    given = row.notna()
    budgets = (row["least_budget"], row["largest_budget"])
    return Panel(
        title,
        row["kind"],
        tuple(Series(s, name, goal_of(goal), opt) for s, name, goal, opt in curves),
        first=int(row["first"]) if given["first"] else None,
        batch_size=int(row["batch_size"]) if given["batch_size"] else 0,
        budgets=budgets_between(*budgets) if given["least_budget"] else (),
        examples=int(row["examples"]) if given["examples"] else 0,
        limits=(row["bottom"], row["top"]) if given["bottom"] else None,
    )


FIGURES = tuple(
    Figure(title, panels_of(number), columns, number)
    for number, (title, columns) in enumerate(
        (
            ("Steps to result against batch size", 3),
            ("Steps to result for several goals", 3),
            ("Networks of different kind and size", 2),
            ("Optimizers", 3),
            ("Data sets", 3),
            ("Sizes of the training set", 2),
            ("Label smoothing, ResNet-50 on ImageNet", 2),
            ("Effective learning rate of the best trial", 3),
            ("Which metaparameters reach the goal, Transformer on LM1B", 3),
            ("Which metaparameters reach the goal, four Transformers at B = 1024", 2),
            ("Best validation metric within a budget", 2),
        ),
        start=1,
    )
)
"""Figures of the publication whose panels are known, by number."""
