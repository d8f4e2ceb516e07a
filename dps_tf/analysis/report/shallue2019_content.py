"""What a figure of Shallue et al. 2019 is made of: panels, and their curves."""

from __future__ import annotations

from dataclasses import dataclass

from dps_tf.core.goal import Goal

NESTEROV = "nesterov"


@dataclass(frozen=True)
class Series:
    """A curve of a panel: whose K*, and for which goal."""

    label: str
    workload: str
    goal: Goal
    optimizer: str = NESTEROV


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: what it is about.
        series: its curves; the first is the reference of the scaling line.
        first: batch size n that curves are divided at and lines start from; None is the
            smallest.
        low: lower end of the y axis, log2; None is where the data end.
        high: its upper end, log2.
        batch_size: of a scatter, which it shows.
        budgets: of a comparison of budgets, in steps or epochs; none in a scatter is
            all that was trained.
        epochs: whether those, or the budget of a scatter, are epochs of `examples`.
        examples: training examples.
        limits: of a linear y axis, or of both of a scatter.
    """

    title: str
    series: tuple[Series, ...]
    first: int | None = None
    low: float | None = None
    high: float | None = None
    batch_size: int = 0
    budgets: tuple[int, ...] = ()
    epochs: bool = False
    examples: int = 0
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class PublishedFigure:
    """A figure: its kind says what is drawn in its panels.

    Kinds: `steps`, `goals` (without a scaling line), `normalized`, `smoothing`,
    `rates`, `learning_rate`, `momentum`, `scatter`, `budgets`, `trials`.

    Attributes:
        number: in the publication; None of one that is not known to stand there.
    """

    title: str
    kind: str
    panels: tuple[Panel, ...]
    columns: int = 3
    number: int | None = None

    @property
    def key(self) -> int | str:
        """What the table of all points calls it: number, or title."""
        return self.number or self.title

    @property
    def label(self) -> str:
        """What readers know it by: number, or title."""
        return f"Figure {self.number}" if self.number else self.title
