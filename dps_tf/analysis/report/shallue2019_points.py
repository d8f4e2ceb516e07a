"""What stands in a panel of the figures of Shallue et al. 2019, as a tidy table.

From sweeps (one's own, or the public archive once it was read) where they have the
workload, else from the digitized curves. K* for a goal that is stricter than that of a
race is not taken from it: trials were stopped before they could answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.shallue2019_content import Panel, PublishedFigure, Series
from dps_tf.analysis.report.shallue2019_further import TRIALS
from dps_tf.analysis.search_health import best_of_n
from dps_tf.analysis.tables import study_key

COLUMNS = ["series", "batch_size", "x", "value", "low", "high", "status", "source"]
"""Of `points`: `x` and `status` of scatters and budgets only; `low` and `high`, the
ends of a band, of numbers of trials."""
BAND = (0.05, 0.95)
SWEEP, DIGITIZED = "sweep", "digitized"


class Runs:
    """The trials of sweeps, by workload and optimizer."""

    def __init__(self, tables: Tables | None):
        self._tables = tables
        self._key = [] if tables is None else study_key(tables.studies)

    def studies(self, series: Series) -> pd.DataFrame:
        """Returns the studies of a workload with an optimizer, without pruning."""
        if self._tables is None:
            return pd.DataFrame()
        table = self._tables.studies
        return table[
            (table["workload"] == series.workload)
            & (table["optimizer"] == series.optimizer)
            & (table["sparsity"] == 0)
        ]

    def can_answer(self, series: Series) -> pd.DataFrame:
        """Returns those whose record can say when the goal was met first."""
        found = self.studies(series)
        if found.empty or self._tables is None:
            return found
        goals = [self._tables.goals[place] for place in self._places(found)]
        open_to_all = found["schedule"] == "exhaustive"
        looser = [goal.is_stricter_than(series.goal) for goal in goals]
        return found[open_to_all | np.asarray(looser, bool)]

    def _places(self, found: pd.DataFrame) -> list[int]:
        assert self._tables is not None
        return [int(p) for p in self._tables.studies.index.get_indexer(found.index)]

    def trials(self, studies: pd.DataFrame) -> pd.DataFrame:
        """Returns the trials of studies, with their metaparameters."""
        return self._of("trials", studies)

    def curves(self, studies: pd.DataFrame, metric: str) -> pd.DataFrame:
        """Returns the evaluations of studies: key, trial, batch_size, step, value."""
        found = self._of("curves", studies)
        if found.empty or metric not in found.columns:
            return pd.DataFrame(columns=[*self._key, "trial", "step", "value"])
        named = found.rename(columns={metric: "value"})
        return named[[*self._key, "trial", "step", "value"]].dropna(subset=["value"])

    def _of(self, name: str, studies: pd.DataFrame) -> pd.DataFrame:
        if self._tables is None or studies.empty:
            return pd.DataFrame()
        table: pd.DataFrame = getattr(self._tables, name)
        return table.merge(studies[self._key], on=self._key)

    def first_steps(
        self, series: Series, within: Callable[[int], float]
    ) -> pd.DataFrame:
        """Returns the trials that met the goal, with the step at which they did.

        `within`: the greatest step that counts at a batch size.
        """
        curves = self.curves(self.can_answer(series), series.goal.metric)
        met = curves[series.goal.reaches(curves["value"].to_numpy(np.float64))]
        if met.empty:
            return met
        first: pd.DataFrame = met.groupby([*self._key, "trial"])[["step"]].min()
        first = first.reset_index()
        return first[first["step"] <= first["batch_size"].map(within)]


def _everything(batch_size: int) -> float:
    del batch_size
    return np.inf


def points(figure: PublishedFigure, panel: Panel, runs: Runs) -> pd.DataFrame:
    """Returns what a panel shows, see COLUMNS; without rows where nothing is known."""
    if figure.kind == "smoothing":
        return _smoothing(panel, runs, figure.panels.index(panel) == 0)
    makers: dict[str, Callable[[Panel, Runs], pd.DataFrame]] = {
        "rates": _rates,
        "scatter": _scatter,
        "budgets": _budgets,
        "trials": _trials,
    }
    if figure.kind in ("learning_rate", "momentum"):
        return _tuned(panel, runs, figure.kind)
    if figure.kind in makers:
        return makers[figure.kind](panel, runs)
    return _steps(panel, runs, figure.kind == "normalized")


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        ["series", "batch_size", "x"], kind="stable", ignore_index=True
    )


def _steps(panel: Panel, runs: Runs, relative: bool = False) -> pd.DataFrame:
    """Returns K*, or what it is of that at the batch size n of the panel."""
    rows = []
    for series in panel.series:
        first = runs.first_steps(series, _everything)
        found = dict(first.groupby("batch_size")["step"].min()) if len(first) else {}
        source = SWEEP if found else DIGITIZED
        found = found or _digitized(series, relative)
        divisor = found.get(panel.first or 0, np.nan) if relative else 1.0
        rows += [
            {"series": series.label, "batch_size": b, "value": v, "source": source}
            for b, v in ((size, steps / divisor) for size, steps in found.items())
            if np.isfinite(v)
        ]
    return _table(rows)


def _digitized(series: Series, relative: bool) -> dict[int, float]:
    """Returns published K*, or where ratios will do, K* relative to the smallest B."""
    rows = _published(published.steps_to_result(), series)
    rows = rows[rows["goal"] == str(series.goal)]
    if len(rows) or not relative:
        return dict(zip(rows["batch_size"], rows["steps_to_result"], strict=True))
    rows = _published(published.normalized_steps(), series)
    rows = rows[np.isclose(rows["goal"].astype(float), series.goal.threshold)]
    ratios = 2.0 ** rows["log2_steps_over_first"]
    return dict(zip(rows["batch_size"], ratios, strict=True))


def _published(frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    dataset, _, model = series.workload.partition("-")
    return frame[
        (frame["dataset"] == dataset)
        & (frame["model"] == model)
        & (frame["optimizer"] == series.optimizer)
    ]


def _rates(panel: Panel, runs: Runs) -> pd.DataFrame:
    """Returns lr / (1 - momentum) of the trial that met the goal first."""
    (series,) = panel.series
    best = _best(series, runs)
    if len(best):
        kept = 1.0 - best.get("momentum", pd.Series(0.0, best.index))
        return _table(_rows(series, best["learning_rate"] / kept, SWEEP))
    frame = _published(published.effective_learning_rates(), series)
    rates = frame.set_index("batch_size")["effective_learning_rate"]
    return _table(_rows(series, rates, DIGITIZED))


def _tuned(panel: Panel, runs: Runs, name: str) -> pd.DataFrame:
    """Returns the learning rate, or 1 - momentum, of the trial that was first."""
    (series,) = panel.series
    best = _best(series, runs)
    if name not in best:
        return _table([])
    values = 1.0 - best[name] if name == "momentum" else best[name]
    return _table(_rows(series, values, SWEEP))


def _best(series: Series, runs: Runs) -> pd.DataFrame:
    """Returns the trial that met the goal first at each batch size, if any."""
    first = runs.first_steps(series, _everything)
    if first.empty:
        return first
    key = [name for name in first.columns if name != "step"]
    trials = runs.trials(runs.studies(series)).merge(first, on=key)
    return trials.sort_values(["step", "trial"]).groupby("batch_size").first()


def _rows(series: Series, values: pd.Series, source: str) -> list[dict[str, Any]]:
    """Returns a row for each batch size, by which the values are indexed."""
    return [
        {"series": series.label, "batch_size": b, "value": v, "source": source}
        for b, v in values.items()
    ]


def _trials(panel: Panel, runs: Runs) -> pd.DataFrame:
    """Returns the best of fewer trials, redrawn: median and band.

    Only where every trial ran on: what a race has stopped might have met the goal.
    """
    (series,) = panel.series
    studies = runs.studies(series)
    if len(studies):
        studies = studies[studies["schedule"] == "exhaustive"]
    if studies.empty:
        return _table([])
    first = runs.first_steps(series, _everything)
    rows = []
    for size, drawn in runs.trials(studies).groupby("batch_size"):
        met = first[first["batch_size"] == size]["step"].to_numpy(np.float64)
        never = np.full(len(drawn) - len(met), np.inf)
        numbers = [n for n in TRIALS if n <= len(drawn)]
        if not numbers:
            continue
        found = best_of_n(
            [*met, *never], draws=numbers, quantiles=(BAND[0], 0.5, BAND[1])
        )
        rows += [
            {
                "series": f"{number} trials",
                "batch_size": size,
                "value": median,
                "low": low,
                "high": high,
                "source": SWEEP,
            }
            for number, (low, median, high) in zip(numbers, found.low, strict=True)
            if np.isfinite(median)
        ]
    return _table(rows)


def _smoothing(panel: Panel, runs: Runs, best: bool) -> pd.DataFrame:
    """Returns the best validation error, or K*, of trials with a label smoothing."""
    rows = []
    for series in panel.series:
        studies = runs.studies(series)
        trials = runs.trials(studies)
        if "label_smoothing" not in trials:
            continue
        chosen = trials[np.isclose(trials["label_smoothing"], float(series.label))]
        if best:
            values = runs.curves(studies, series.goal.metric)
            column = "value"
        else:
            values, column = runs.first_steps(series, _everything), "step"
        key = [name for name in values.columns if name not in ("step", "value")]
        values = values.merge(chosen[key], on=key)
        rows += [
            {"series": series.label, "batch_size": b, "value": v, "source": SWEEP}
            for b, v in values.groupby("batch_size")[column].min().items()
        ]
    return _table(rows)


def _scatter(panel: Panel, runs: Runs) -> pd.DataFrame:
    """Returns 1 - momentum against the learning rate of each trial, and its status."""
    (series,) = panel.series
    limit = panel.budgets[0] if panel.budgets else np.inf
    limit *= panel.examples / panel.batch_size if panel.epochs else 1
    trials = runs.trials(runs.studies(series))
    if trials.empty or not {"learning_rate", "momentum"} <= set(trials.columns):
        return _table([])
    trials = trials[trials["batch_size"] == panel.batch_size]
    first = runs.first_steps(series, lambda _: limit)
    first = first[first["batch_size"] == panel.batch_size] if len(first) else first
    met = dict(zip(first["trial"], first["step"], strict=True)) if len(first) else {}
    best = min(met, key=lambda trial: (met[trial], trial)) if met else None
    rows = []
    for row in trials.to_dict("records"):
        status = "achieved" if row["trial"] in met else "not achieved"
        if row["outcome"] in ("infeasible", "failed"):
            status = "infeasible"
        rows.append(
            {
                "series": series.label,
                "batch_size": panel.batch_size,
                "x": row["learning_rate"],
                "value": 1.0 - row["momentum"],
                "status": "best" if row["trial"] == best else status,
                "source": SWEEP,
            }
        )
    return _table(rows)


def _budgets(panel: Panel, runs: Runs) -> pd.DataFrame:
    """Returns the best validation metric within each budget, as far as it was run."""
    (series,) = panel.series
    studies = runs.studies(series)
    values = runs.curves(studies, series.goal.metric)
    if values.empty:
        return _table([])
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
                    "series": f"{budget:,}",
                    "batch_size": size,
                    "x": budget,
                    "value": within["value"].min(),
                    "source": SWEEP,
                }
            )
    return _table(rows)
