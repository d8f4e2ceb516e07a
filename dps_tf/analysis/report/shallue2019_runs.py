"""The trials of sweeps, as the figures of Shallue et al. 2019 ask for them.

K* is the best of the first trials, as many as are published. For a goal that is
stricter than that of a race it is not taken from it: trials were stopped before they
could answer. Evaluations that only bound a metric are no values of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.tables import study_key
from dps_tf.core import Goal, UserError

NESTEROV = "nesterov"
# Of all others a hundred trials were complete.
_OF_FIFTY = {
    ("lm1b-lstm", NESTEROV),
    ("common_crawl-transformer_base", NESTEROV),
    ("lm1b-transformer_shallow", "sgd"),
}


@dataclass(frozen=True)
class Series:
    """A curve of a panel: whose K*, and for which goal."""

    label: str
    workload: str
    goal: Goal
    optimizer: str = NESTEROV

    @property
    def trials(self) -> int:
        """How many trials the published K* is the best of, the first that ran on."""
        return 50 if (self.workload, self.optimizer) in _OF_FIFTY else 100


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
        found = table[
            (table["workload"] == series.workload)
            & (table["optimizer"] == series.optimizer)
            & (table["sparsity"] == 0)
        ]
        sizes = found["batch_size"][found["batch_size"].duplicated()]
        if len(sizes):
            raise UserError(
                f"there are several studies of {series.workload} with "
                f"{series.optimizer} at batch size {sizes.iloc[0]}, and a figure shows "
                "one: name sweeps with one seed, one precision and no further axis."
            )
        return found

    def exhaustive(self, series: Series) -> pd.DataFrame:
        """Returns those of which every trial ran on, so that none was stopped."""
        found = self.studies(series)
        return found if found.empty else found[found["search_mode"] == "exhaustive"]

    def can_answer(self, series: Series) -> pd.DataFrame:
        """Returns those whose record can say when the goal was met first."""
        found = self.studies(series)
        if found.empty or self._tables is None:
            return found
        places = self._tables.studies.index.get_indexer(found.index)
        goals = [self._tables.goals[int(place)] for place in places]
        open_to_all = found["search_mode"] == "exhaustive"
        looser = [goal.is_stricter_than(series.goal) for goal in goals]
        # Evaluations that were stopped tell of the study's own goal alone.
        stopped = found.merge(self._bounded, "left", self._key)["is_bound"].notna()
        own = np.asarray([str(goal) == str(series.goal) for goal in goals], bool)
        return found[
            own | ((open_to_all | np.asarray(looser, bool)) & ~stopped.to_numpy(bool))
        ]

    @functools.cached_property
    def _bounded(self) -> pd.DataFrame:
        """Returns the studies in which an evaluation is a bound, key and `is_bound`."""
        assert self._tables is not None
        curves = self._tables.curves
        rows = curves[_bounds(curves)].assign(is_bound=True)
        return rows[[*self._key, "is_bound"]].drop_duplicates()

    def curves(self, studies: pd.DataFrame, metric: str) -> pd.DataFrame:
        """Returns the evaluations of studies: key, trial, batch_size, step, value.

        Those that were stopped, and only bound the metric, are left out.
        """
        found = self.table_of("curves", studies)
        if found.empty or metric not in found.columns:
            return pd.DataFrame(columns=[*self._key, "trial", "step", "value"])
        found = found[~_bounds(found)]
        named = found.rename(columns={metric: "value"})
        return named[[*self._key, "trial", "step", "value"]].dropna(subset=["value"])

    def table_of(self, name: str, studies: pd.DataFrame) -> pd.DataFrame:
        """Returns the rows of `trials` or `curves` that are of some studies."""
        if self._tables is None or studies.empty:
            return pd.DataFrame()
        table: pd.DataFrame = getattr(self._tables, name)
        return table.merge(studies[self._key], on=self._key)

    def counted(self, series: Series, studies: pd.DataFrame) -> pd.DataFrame:
        """Returns key and number of the trials that a published K* is the best of."""
        trials = self.table_of("trials", studies)
        if trials.empty:
            return trials
        trials = trials.merge(studies[[*self._key, "search_mode"]], on=self._key)
        ran_on = trials["outcome"].isin(["complete", "incomplete"])
        # A race stops those that cannot win any more: they count as well.
        ran_on |= (trials["outcome"] == "censored") & (trials["search_mode"] == "race")
        first = trials[ran_on].sort_values("trial").groupby(self._key, dropna=False)
        return first.head(series.trials)[[*self._key, "trial"]]

    def first_steps(
        self, series: Series, within: float = np.inf, of_all: bool = False
    ) -> pd.DataFrame:
        """Returns the trials that met the goal within so many steps, and their step.

        Of as many trials as are published, or `of_all`.
        """
        studies = self.can_answer(series)
        curves = self.curves(studies, series.goal.metric)
        if not of_all and len(curves):
            names = [*self._key, "trial"]
            curves = curves.merge(self.counted(series, studies), on=names)
        met = curves[series.goal.reaches(curves["value"].to_numpy(np.float64))]
        if met.empty:
            return met
        first: pd.DataFrame = met.groupby([*self._key, "trial"])[["step"]].min()
        first = first.reset_index()
        return first[first["step"] <= within]


def _bounds(curves: pd.DataFrame) -> pd.Series:
    """Returns which evaluations were stopped, and only bound the metric."""
    return curves["is_bound"].eq(True).fillna(False).astype(bool)
