"""What stands in a panel of the figures of Shallue et al. 2019, as a tidy table.

From sweeps (one's own, or the public archive once it was read) where they have the
workload, else from the digitized curves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.report.shallue2019_runs import Runs, Series
from dps_tf.analysis.search_health import best_of_n

TRIALS = (25, 50, 100)
"""Of which the best is compared."""
COLUMNS = ["series", "batch_size", "x", "value", "low", "high", "status", "source"]
COLUMNS += ["note"]
"""Of `points`: `x` and `status` of scatters and budgets only; `low` and `high`, the
ends of a band, of numbers of trials; `note` of digitized values that are doubtful."""
Rows = list[dict[str, Any]]
BAND = (0.05, 0.95)
SWEEP, DIGITIZED = "sweep", "digitized"


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        series: its curves; the first is the reference of the scaling line.
        first: batch size n that curves are divided at and lines start from; None is the
            smallest.
        low: lower end of the y axis, log2; None is where the data end.
        high: its upper end, log2.
        batch_size: of a scatter, which it shows.
        budgets: of a comparison of budgets, in steps or epochs; none in a scatter is
            all that was trained.
        epochs: whether those, or the budget of a scatter, are epochs of `examples`.
        limits: of a linear y axis, or of both of a scatter.
    """

    title: str
    series: tuple[Series, ...]
    first: int | None = None
    low: float | None = None
    high: float | None = None
    batch_size: int = 0
    budgets: tuple[float, ...] = ()
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


def budget_name(budget: float) -> str:
    """Returns what the curve of a budget is called."""
    return f"{budget:,.9g}"


def trials_name(number: int) -> str:
    """Returns what the curve of the best of so many trials is called."""
    return f"{number} trials"


def points(figure: PublishedFigure, panel: Panel, runs: Runs) -> pd.DataFrame:
    """Returns what a panel shows, see COLUMNS; without rows where nothing is known."""
    is_first = panel is figure.panels[0]
    makers: dict[str, Callable[[], Rows]] = {
        "steps": lambda: _steps(panel, runs, relative=False),
        "goals": lambda: _steps(panel, runs, relative=False),
        "normalized": lambda: _steps(panel, runs, relative=True),
        "smoothing": lambda: _smoothing(panel, runs, best=is_first),
        "rates": lambda: _rates(panel, runs),
        "learning_rate": lambda: _tuned(panel, runs, "learning_rate"),
        "momentum": lambda: _tuned(panel, runs, "momentum"),
        "scatter": lambda: _scatter(panel, runs),
        "budgets": lambda: _budgets(panel, runs),
        "trials": lambda: _trials(panel, runs),
    }
    frame = pd.DataFrame(makers[figure.kind](), columns=COLUMNS)
    frame["note"] = [note if isinstance(note, str) else "" for note in frame["note"]]
    return frame.sort_values(
        ["series", "batch_size", "x"], kind="stable", ignore_index=True
    )


def _steps(panel: Panel, runs: Runs, relative: bool) -> Rows:
    """Returns K*, or what it is of that at the batch size n of the panel."""
    rows = []
    for series in panel.series:
        first = runs.first_steps(series)
        found = dict(first.groupby("batch_size")["step"].min()) if len(first) else {}
        notes: dict[int, str] = {}
        if relative and panel.first not in found:
            found = {}
        source = SWEEP if found else DIGITIZED
        if not found:
            found, notes = _digitized(series, relative)
        divisor = found.get(panel.first or 0, np.nan) if relative else 1.0
        rows += [
            {
                "series": series.label,
                "batch_size": size,
                "value": steps / divisor,
                "source": source,
                "note": notes.get(size, ""),
            }
            for size, steps in found.items()
            if np.isfinite(steps / divisor)
        ]
    return rows


def _digitized(
    series: Series, relative: bool
) -> tuple[dict[int, float], dict[int, str]]:
    """Returns published K* and notes on them, by batch size.

    Or, where ratios will do, K* relative to the smallest batch size.
    """
    rows = of_series(published.steps_to_result(), series)
    rows = rows[rows["goal"] == str(series.goal)]
    values = rows["steps_to_result"].astype(float)
    if rows.empty and relative:
        rows = of_series(published.normalized_steps(), series)
        rows = rows[np.isclose(rows["goal"].astype(float), series.goal.threshold)]
        values = 2.0 ** rows["log2_steps_over_first"]
    sizes = rows["batch_size"]
    notes = dict(zip(sizes, rows["note"], strict=True))
    return dict(zip(sizes, values, strict=True)), notes


def of_series(frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Returns the rows of a published table that are of a series, whatever its goal."""
    dataset, _, model = series.workload.partition("-")
    return frame[
        (frame["dataset"] == dataset)
        & (frame["model"] == model)
        & (frame["optimizer"] == series.optimizer)
    ]


def _rates(panel: Panel, runs: Runs) -> Rows:
    """Returns lr / (1 - momentum) of the trial that met the goal first."""
    (series,) = panel.series
    best = _best(series, runs)
    if len(best):
        kept = 1.0 - best.get("momentum", pd.Series(0.0, best.index))
        return _rows(series, best["learning_rate"] / kept, SWEEP)
    frame = of_series(published.effective_learning_rates(), series)
    frame = frame.set_index("batch_size")
    return [
        {**row, "note": frame["note"][row["batch_size"]]}
        for row in _rows(series, frame["effective_learning_rate"], DIGITIZED)
    ]


def _tuned(panel: Panel, runs: Runs, name: str) -> Rows:
    """Returns the learning rate, or 1 - momentum, of the trial that was first."""
    (series,) = panel.series
    best = _best(series, runs)
    if name not in best:
        return []
    values = 1.0 - best[name] if name == "momentum" else best[name]
    return _rows(series, values, SWEEP)


def _best(series: Series, runs: Runs) -> pd.DataFrame:
    """Returns the trial that met the goal first at each batch size, if any."""
    first = runs.first_steps(series)
    if first.empty:
        return first
    key = [name for name in first.columns if name != "step"]
    trials = runs.table_of("trials", runs.studies(series)).merge(first, on=key)
    return trials.sort_values(["step", "trial"]).groupby("batch_size").first()


def _rows(series: Series, values: pd.Series, source: str) -> Rows:
    """Returns a row for each batch size, by which the values are indexed."""
    return [
        {"series": series.label, "batch_size": b, "value": v, "source": source}
        for b, v in values.items()
    ]


def _trials(panel: Panel, runs: Runs) -> Rows:
    """Returns the best of fewer trials, redrawn: median and band.

    Only where every trial ran on: what a race has stopped might have met the goal.
    """
    (series,) = panel.series
    studies = runs.exhaustive(series)
    if studies.empty:
        return []
    first = runs.first_steps(series, of_all=True)
    rows = []
    for size, drawn in runs.table_of("trials", studies).groupby("batch_size"):
        met = first[first["batch_size"] == size]["step"].to_numpy(np.float64)
        never = np.full(len(drawn) - len(met), np.inf)
        numbers = [n for n in TRIALS if n <= len(drawn)]
        if not numbers:
            continue
        least, _ = best_of_n(
            [*met, *never], draws=numbers, quantiles=(BAND[0], 0.5, BAND[1])
        )
        rows += [
            {
                "series": trials_name(number),
                "batch_size": size,
                "value": median,
                "low": low,
                "high": high,
                "source": SWEEP,
            }
            for number, (low, median, high) in zip(numbers, least, strict=True)
            if np.isfinite(median)
        ]
    return rows


def _smoothing(panel: Panel, runs: Runs, best: bool) -> Rows:
    """Returns the best validation error, or K*, of trials with a label smoothing."""
    rows = []
    for series in panel.series:
        studies = runs.exhaustive(series) if best else runs.studies(series)
        trials = runs.table_of("trials", studies)
        if "label_smoothing" not in trials:
            continue
        chosen = trials[np.isclose(trials["label_smoothing"], float(series.label))]
        if best:
            values = runs.curves(studies, series.goal.metric)
            column = "value"
        else:
            values, column = runs.first_steps(series), "step"
        key = [name for name in values.columns if name not in ("step", "value")]
        values = values.merge(chosen[key], on=key)
        rows += [
            {"series": series.label, "batch_size": b, "value": v, "source": SWEEP}
            for b, v in values.groupby("batch_size")[column].min().items()
        ]
    return rows


def _scatter(panel: Panel, runs: Runs) -> Rows:
    """Returns 1 - momentum against the learning rate of each trial, and its status."""
    (series,) = panel.series
    limit = panel.budgets[0] if panel.budgets else np.inf
    limit *= panel.examples / panel.batch_size if panel.epochs else 1
    studies = runs.can_answer(series)
    if studies.empty:
        return []
    studies = studies[studies["batch_size"] == panel.batch_size]
    # Trials of a study that may end before cannot tell.
    studies = studies[(studies["step_budget"] >= limit) | np.isinf(limit)]
    trials = runs.table_of("trials", studies)
    if trials.empty or not {"learning_rate", "momentum"} <= set(trials.columns):
        return []
    first = runs.first_steps(series, limit, of_all=True)
    first = first[first["batch_size"] == panel.batch_size] if len(first) else first
    met = dict(zip(first["trial"], first["step"], strict=True)) if len(first) else {}
    best = min(met, key=lambda trial: (met[trial], trial)) if met else None
    return [
        {
            "series": series.label,
            "batch_size": panel.batch_size,
            "x": row["learning_rate"],
            "value": 1.0 - row["momentum"],
            "status": "best" if row["trial"] == best else _status(row, met, limit),
            "source": SWEEP,
        }
        for row in trials.to_dict("records")
    ]


def _status(row: Mapping[Hashable, Any], met: Mapping[int, int], limit: float) -> str:
    """Returns what became of a trial within a budget."""
    if row["trial"] in met:
        return "achieved"
    if row["outcome"] in ("infeasible", "failed"):
        return "infeasible"
    stopped = row["outcome"] == "censored" and row["end_step"] < limit
    return "stopped before" if stopped else "not achieved"


def _budgets(panel: Panel, runs: Runs) -> Rows:
    """Returns the best validation metric within each budget, as far as it was run."""
    (series,) = panel.series
    studies = runs.exhaustive(series)
    values = runs.curves(studies, series.goal.metric)
    if values.empty:
        return []
    allowed = studies.groupby("batch_size")["step_budget"].max()
    rows = []
    for budget in panel.budgets:
        for size in sorted(set(values["batch_size"])):
            limit = budget * panel.examples // size if panel.epochs else budget
            part = values[values["batch_size"] == size]
            within = part[part["step"] <= limit]
            if limit > allowed[size] or within.empty:
                continue
            rows.append(
                {
                    "series": budget_name(budget),
                    "batch_size": size,
                    "x": budget,
                    "value": within["value"].min(),
                    "source": SWEEP,
                }
            )
    return rows
