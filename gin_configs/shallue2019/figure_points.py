"""What stands in the panels of the figures of Shallue et al. 2019, as tidy tables.

Values come from sweeps (one's own, or the public archive once it was read) that have
the workload, else from the digitized tables `published*.csv`.

K* is the best of as many trials as are published. A trial that a race has stopped
before it could answer leaves K* open if it may be the best one; K* is then left out.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
from figure_panels import FOLDER, Panel, Series

from dps_tf.core import UserError

SWEEP, DIGITIZED = "sweep", "digitized"
COLUMNS = ["series", "batch_size", "x", "value", "status", "source", "note"]
"""Columns of `points`: only scatters and budgets have `x`, and only scatters `status`;
`note` says which digitized values are doubtful."""
Rows = list[dict[str, Any]]


class Sweeps:
    """The trials of sweeps, by workload and optimizer, without pruning."""

    def __init__(self, tables: Any | None):
        """Takes what `dps_tf.load` returns, or None where there is no sweep."""
        self._tables = tables
        self._of = functools.cache(self._selected)

    def tables(self, series: Series, metric: str | None = None) -> Any | None:
        """Returns the tables of a workload with an optimizer; None if there is none.

        Its studies have recorded a metric, by default the goal's.

        Raises:
            UserError: there are several studies of a batch size.
        """
        tables = self._of(series.workload, series.optimizer)
        metric = metric or series.goal.metric
        if tables is None or metric not in tables.curves:
            return None
        sizes = tables.curves.loc[tables.curves[metric].notna(), "batch_size"]
        recorded = tables.studies["batch_size"].isin(sizes)
        return tables.where(recorded) if recorded.any() else None

    def _selected(self, workload: str, optimizer: str) -> Any | None:
        if self._tables is None:
            return None
        studies = self._tables.studies
        chosen = (studies["workload"] == workload) & (studies["sparsity"] == 0)
        chosen &= studies["optimizer"] == optimizer
        twice = studies.loc[chosen, "batch_size"].duplicated()
        if twice.any():
            size = studies.loc[chosen, "batch_size"][twice].iloc[0]
            raise UserError(
                f"there are several studies of {workload} with {optimizer} at batch "
                f"size {size}, and a figure shows one: name sweeps with one seed, one "
                "precision and no further axis."
            )
        return self._tables.where(chosen) if chosen.any() else None

    def exhaustive(self, series: Series) -> Any | None:
        """Returns the tables of the studies in which every trial ran on."""
        tables = self.tables(series)
        if tables is None:
            return None
        chosen = tables.studies["search_mode"] == "exhaustive"
        return tables.where(chosen) if chosen.any() else None

    def trials(self, series: Series) -> pd.DataFrame:
        """Returns all trials, with the steps at which they met the goal of a series.

        Columns: the table `bounded` under that goal; `own_outcome`, under the goal of
        the study; search_mode and step_budget of the study.
        """
        tables = self.tables(series)
        if tables is None:
            return pd.DataFrame()
        trial = ["batch_size", "trial"]
        own = tables.trials[[*trial, "outcome"]]
        own = own.rename(columns={"outcome": "own_outcome"})
        studies = tables.studies[["batch_size", "search_mode", "step_budget"]]
        under = tables.for_goal(series.goal).bounded
        return under.merge(own, on=trial).merge(studies, on="batch_size")

    def counted(self, series: Series) -> pd.DataFrame:
        """Returns the trials that a published K* would be the best of."""
        trials = self.trials(series)
        if trials.empty:
            return trials
        ran_on = trials["own_outcome"].isin(["complete", "incomplete"])
        # A race stops trials that cannot win any more: they count as well.
        ran_on |= (trials["own_outcome"] == "censored") & (
            trials["search_mode"] == "race"
        )
        first = trials[ran_on].sort_values("trial").groupby("batch_size")
        return first.head(series.trials)


def best_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the trial that met the goal first, by batch size, where that is known.

    Its step is `latest`.
    """
    if trials.empty:
        return trials
    ends = trials.groupby("batch_size")[["earliest", "latest"]].min()
    known = ends.index[
        (ends["earliest"] == ends["latest"]) & np.isfinite(ends["latest"])
    ]
    first = trials.sort_values(["latest", "trial"]).drop_duplicates("batch_size")
    first = first.set_index("batch_size").sort_index()
    return first[first.index.isin(known)]


def digitized(table: str, series: Series, goal: Any = None) -> pd.DataFrame:
    """Returns the rows of a published table that are of a series, by batch size.

    The rows have one goal, or any.
    """
    frame = _published(table)
    chosen = frame["workload"] == series.workload
    chosen &= frame["optimizer"] == series.optimizer
    if goal is not None:
        chosen &= frame["goal"] == str(goal)
    return frame[chosen].set_index("batch_size")


@functools.cache
def _published(table: str) -> pd.DataFrame:
    frame = pd.read_csv(FOLDER / f"{table}.csv", dtype={"note": str})
    return frame.fillna({"note": ""}) if "note" in frame else frame


def points(panel: Panel, sweeps: Sweeps) -> pd.DataFrame:
    """Returns what a panel shows, see COLUMNS; without rows where nothing is known."""
    frame = pd.DataFrame(MAKERS[panel.kind](panel, sweeps), columns=COLUMNS)
    frame["note"] = frame["note"].where(frame["note"].notna(), "")
    order = ["series", "batch_size", "x"]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _rows(label: str, values: pd.Series, source: str = SWEEP) -> Rows:
    """Returns a row for each batch size, by which the values are indexed."""
    return [
        {"series": label, "batch_size": size, "value": value, "source": source}
        for size, value in values.items()
    ]


def _with_notes(rows: Rows, published: pd.DataFrame) -> Rows:
    return [{**row, "note": published["note"][row["batch_size"]]} for row in rows]


def _steps(panel: Panel, sweeps: Sweeps) -> Rows:
    rows: Rows = []
    for series in panel.series:
        best = best_trials(sweeps.counted(series))
        if len(best):
            rows += _rows(series.label, best["latest"])
        else:
            published = digitized("published", series, series.goal)
            values = published["steps_to_result"].astype(float)
            rows += _with_notes(_rows(series.label, values, DIGITIZED), published)
    return rows


def _normalized(panel: Panel, sweeps: Sweeps) -> Rows:
    """Returns K* relative to that at the batch size n of the panel."""
    rows: Rows = []
    for series in panel.series:
        best = best_trials(sweeps.counted(series))
        if panel.first in best.index:
            rows += _rows(series.label, best["latest"] / best["latest"][panel.first])
            continue
        published = digitized("published", series, series.goal)
        values = published["steps_to_result"].astype(float)
        if values.empty:
            published = digitized("published_normalized_steps", series, series.goal)
            values = 2.0 ** published["log2_steps_over_first"]
        if panel.first in values.index:
            relative = values / values[panel.first]
            rows += _with_notes(_rows(series.label, relative, DIGITIZED), published)
    return rows


def _rates(panel: Panel, sweeps: Sweeps) -> Rows:
    """Returns lr / (1 - momentum) of the trial that met the goal first."""
    (series,) = panel.series
    best = best_trials(sweeps.counted(series))
    if len(best):
        kept = 1.0 - best.get("momentum", pd.Series(0.0, best.index))
        return _rows(series.label, best["learning_rate"] / kept)
    published = digitized("published_effective_learning_rates", series)
    values = published["effective_learning_rate"]
    return _with_notes(_rows(series.label, values, DIGITIZED), published)


def _of_smoothing(trials: pd.DataFrame, label: str) -> pd.DataFrame:
    """Returns the trials with a label smoothing; none where it was no metaparameter."""
    if "label_smoothing" not in trials:
        return trials[:0]
    return trials[np.isclose(trials["label_smoothing"], float(label))]


def _smoothing_steps(panel: Panel, sweeps: Sweeps) -> Rows:
    rows: Rows = []
    for series in panel.series:
        best = best_trials(_of_smoothing(sweeps.counted(series), series.label))
        if len(best):
            rows += _rows(series.label, best["latest"])
    return rows


def _smoothing_best(panel: Panel, sweeps: Sweeps) -> Rows:
    """Returns the best validation error of trials with each label smoothing."""
    rows: Rows = []
    for series in panel.series:
        tables = sweeps.exhaustive(series)
        if tables is None:
            continue
        chosen = _of_smoothing(tables.trials, series.label)[["batch_size", "trial"]]
        values = evaluations(tables, series.goal.metric).merge(chosen)
        rows += _rows(series.label, values.groupby("batch_size")["value"].min())
    return rows


def evaluations(tables: Any, metric: str) -> pd.DataFrame:
    """Returns the evaluations of studies: batch_size, trial, step, value.

    Evaluations that were stopped, and only bound the metric, are left out.
    """
    exact = tables.curves[~tables.curves["is_bound"].astype(bool)]
    named = exact.rename(columns={metric: "value"})
    return named[["batch_size", "trial", "step", "value"]].dropna(subset=["value"])


def _scatter(panel: Panel, sweeps: Sweeps) -> Rows:
    """Returns 1 - momentum against the learning rate of each trial, and its status."""
    (series,) = panel.series
    trials = sweeps.trials(series)
    if trials.empty or not {"learning_rate", "momentum"} <= set(trials.columns):
        return []
    limit = panel.budgets[0]
    limit *= panel.examples / panel.batch_size if panel.examples else 1
    trials = trials[trials["batch_size"] == panel.batch_size]
    # Trials of a study that may end before cannot tell.
    trials = trials[trials["step_budget"] >= limit]
    best = best_trials(trials)
    best = best[best["latest"] <= limit]["trial"].tolist() if len(best) else []
    return [
        {
            "series": series.label,
            "batch_size": panel.batch_size,
            "x": row["learning_rate"],
            "value": 1.0 - row["momentum"],
            "status": "best" if row["trial"] in best else _status(row, limit),
            "source": SWEEP,
        }
        for row in trials.to_dict("records")
    ]


def _status(row: Any, limit: float) -> str:
    """Returns what became of a trial within a budget."""
    if row["latest"] <= limit and np.isfinite(row["latest"]):
        return "achieved"
    if row["own_outcome"] in ("infeasible", "failed"):
        return "infeasible"
    may_have = row["earliest"] <= limit and np.isfinite(row["earliest"])
    return "stopped before" if may_have else "not achieved"


def budget_name(budget: float) -> str:
    """Returns what the curve of a budget is called."""
    return f"{budget:,.9g}"


def _budgets(panel: Panel, sweeps: Sweeps) -> Rows:
    """Returns the best validation metric within each budget, as far as it was run."""
    (series,) = panel.series
    tables = sweeps.exhaustive(series)
    if tables is None:
        return []
    values = evaluations(tables, series.goal.metric)
    allowed = tables.studies.groupby("batch_size")["step_budget"].max()
    rows: Rows = []
    for budget in panel.budgets:
        for size, part in values.groupby("batch_size"):
            limit = budget * panel.examples // size if panel.examples else budget
            within = part[part["step"] <= limit]
            if limit <= allowed[size] and len(within):
                best = pd.Series({size: within["value"].min()})
                rows += [
                    {**row, "x": budget} for row in _rows(budget_name(budget), best)
                ]
    return rows


MAKERS = {
    "steps": _steps,
    "goals": _steps,
    "normalized": _normalized,
    "smoothing_best": _smoothing_best,
    "smoothing_steps": _smoothing_steps,
    "rates": _rates,
    "scatter": _scatter,
    "budgets": _budgets,
}
"""What gives the points of a panel, by its kind."""
