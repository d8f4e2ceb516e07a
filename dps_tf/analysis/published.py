"""Published curves, to lie beside one's own and to fit.

The tables in `published/` hold facts read off the figures of the public notebook of
Shallue et al. 2019, and the counts of its README. Error of digitized values: 5 %, more
where markers overlap; `relative_error` is then empty and `note` says why. Four points
are absent because they are hidden or unreadable (MNIST CNN with SGD at batch size 64
and with momentum at 2048, 32768 and 55000), and one of Transformer Shallow with
momentum (512). Goals are strict, on validation metrics; K* is the best of `trials`.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from importlib import resources

import pandas as pd

from dps_tf.analysis.interchange.shallue2019_names import to_metric, to_optimizer
from dps_tf.analysis.law import LEVEL, LawFit, Observations, fit_law
from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.goal import Goal

PREFIX = "shallue2019"


def steps_to_result(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns published K* against batch size, one row per curve and batch size.

    Columns: curve (`shallue2019-<dataset>-<model>-<optimizer>`), source, dataset,
    model, optimizer, metric and goal as this package writes them, trials (K* is the
    best of so many), batch_size, steps_to_result, relative_error, note.

    Args:
        names: curves, or patterns such as `*mnist*sgd`; all by default.

    Raises:
        UserError: a name that matches no curve.
    """
    frame = _read("steps_to_result")
    frame.insert(0, "curve", _curve_names(frame))
    metric = frame["metric"].map(to_metric)
    goals = zip(metric, frame["goal"], frame["direction"], strict=True)
    frame["goal"] = [
        str(Goal(str(name), float(value), str(direction), inclusive=False))
        for name, value, direction in goals
    ]
    frame["metric"] = metric
    return _selected(frame.drop(columns="direction"), names)


@functools.cache
def goals() -> Mapping[tuple[str, str], Goal]:
    """Returns the published goal of each (dataset, model) that has one."""
    frame = _read("steps_to_result").drop_duplicates(["dataset", "model"])
    return {
        (str(row["dataset"]), str(row["model"])): Goal(
            str(to_metric(row["metric"])),
            float(row["goal"]),
            str(row["direction"]),
            inclusive=False,
        )
        for _, row in frame.iterrows()
    }


def effective_learning_rates(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns lr / (1 - momentum) of the best published trial, against batch size.

    Columns as of `steps_to_result`, with effective_learning_rate. An argmin over 100
    points is noisy; one outlier is marked in `note`.
    """
    frame = _read("effective_learning_rate")
    frame.insert(0, "curve", _curve_names(frame))
    frame["metric"] = frame["metric"].map(to_metric)
    return _selected(frame, names)


def normalized_steps(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns published log2(K*(B) / K*(1)), against batch size.

    Columns as of `steps_to_result`, with log2_steps_over_first and octave_error
    (rounding to 0.1 in the reading, and 5 % of digitization).
    """
    frame = _read("normalized_steps")
    frame.insert(0, "curve", _curve_names(frame))
    frame["metric"] = frame["metric"].map(to_metric)
    return _selected(frame, names)


def studies() -> pd.DataFrame:
    """Returns the 454 published studies with their numbers of trials by status.

    Columns: source, dataset (the path prefix in the archive), model, optimizer (as
    this package spells it), batch_size, complete, incomplete, infeasible. Complete
    means 'ran to the end' there, and not 'met the goal'.
    """
    frame = _read("studies")
    frame["optimizer"] = frame["optimizer"].map(to_optimizer)
    return frame


def fits(
    names: Sequence[str] | None = None, loss: str = "soft_l1", level: float = LEVEL
) -> dict[str, LawFit]:
    """Returns the law fitted to each published curve, by curve.

    Digitized K* have no bracket. The default loss is robust, as single digitized
    points may be read off the wrong marker.
    """
    frame = steps_to_result(names)
    return {
        str(curve): fit_law(
            Observations.of(rows["batch_size"], rows["steps_to_result"]), loss, level
        )
        for curve, rows in frame.groupby("curve", sort=False)
    }


def _read(table: str) -> pd.DataFrame:
    folder = resources.files("dps_tf.analysis") / "published"
    with (folder / f"{PREFIX}_{table}.csv").open("r", encoding="utf-8") as file:
        frame = pd.read_csv(file, dtype={"note": str})
    if "note" in frame.columns:
        frame["note"] = frame["note"].fillna("")
    return frame


def _curve_names(frame: pd.DataFrame) -> list[str]:
    parts = zip(frame["dataset"], frame["model"], frame["optimizer"], strict=True)
    return [f"{PREFIX}-{dataset}-{model}-{opt}" for dataset, model, opt in parts]


def _selected(frame: pd.DataFrame, names: Sequence[str] | None) -> pd.DataFrame:
    if names is None:
        return frame
    known = list(dict.fromkeys(frame["curve"]))
    wanted: set[str] = set()
    for name in names:
        # The prefix may be left out.
        hits = [
            curve
            for curve in known
            if any(fnmatch.fnmatchcase(curve, p) for p in (name, f"{PREFIX}-{name}"))
        ]
        if not hits:
            raise UserError(
                f"no published curve is called {name!r}: {near_matches(name, known)}."
            )
        wanted.update(hits)
    return frame[frame["curve"].isin(sorted(wanted))].reset_index(drop=True)
