"""What Shallue et al. 2019 published: curves to lie beside one's own, and their words.

The tables in `published/` hold facts read off the figures of the public notebook of
Shallue et al. 2019, and the counts of its README. Error of digitized values: 5 %, more
where markers overlap; `relative_error` is then empty and `note` says why. Four points
are absent because they are hidden or unreadable (MNIST CNN with SGD at batch size 64
and with momentum at 2048, 32768 and 55000), and one of Transformer Shallow with
momentum (512). Goals are strict, on validation metrics; K* is the best of `trials`.

Their archive says `nesterov_momentum` where the curves digitized from their figures say
`nesterov`; both are `nesterov` here.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from importlib import resources

import pandas as pd

from dps_tf.analysis.law import LawFit, Observations, fit_law
from dps_tf.core import Goal, UserError, near_matches

PREFIX = "shallue2019"
OPTIMIZERS = {"nesterov_momentum": "nesterov"}
"""Spelling of the archive -> of this package, where they differ."""
_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_METRICS = {
    "cross_entropy_error": "cross_entropy",
    "classification_error": "classification_error",
    "average_precision": "average_precision",
}
METRICS = {
    f"{split}/{metric}": f"{our_split}/{our_metric}"
    for split, our_split in _SPLITS.items()
    for metric, our_metric in _METRICS.items()
}
"""Column of the archive -> metric of this package; other columns are no metrics."""
_MAXIMIZED = ("average_precision", "accuracy")


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
    frame = _curves("steps_to_result", names)
    frame["goal"] = [str(goal) for goal in _goals(frame)]
    return frame.drop(columns="direction")


@functools.cache
def goals() -> Mapping[tuple[str, str], Goal]:
    """Returns the published goal of each (dataset, model), all with studies.

    The first of several. Studies of solution quality have none: it is that of the same
    network and data set in Figure 1.
    """
    frame = _read("goals")
    frame["metric"] = frame["metric"].map(METRICS)
    pairs = zip(frame["dataset"], frame["model"], strict=True)
    return dict(zip(pairs, _goals(frame), strict=True))


def _goals(frame: pd.DataFrame) -> list[Goal]:
    rows = zip(frame["metric"], frame["goal"], frame["direction"], strict=True)
    return [Goal(str(m), float(x), str(d), inclusive=False) for m, x, d in rows]


def effective_learning_rates(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns lr / (1 - momentum) of the best published trial, against batch size.

    Columns as of `steps_to_result`, with effective_learning_rate. An argmin over 100
    points is noisy; one outlier is marked in `note`.
    """
    return _curves("effective_learning_rate", names)


def normalized_steps(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns published log2(K*(B) / K*(1)), against batch size.

    Columns as of `steps_to_result`, with log2_steps_over_first and octave_error
    (rounding to 0.1 in the reading, and 5 % of digitization).
    """
    return _curves("normalized_steps", names)


def studies() -> pd.DataFrame:
    """Returns the 454 published studies with their numbers of trials by status.

    Columns: source, dataset (the path prefix in the archive), model, optimizer (as
    this package spells it), batch_size, complete, incomplete, infeasible. Complete
    means 'ran to the end' there, and not 'met the goal'.
    """
    frame = _read("studies")
    frame["optimizer"] = frame["optimizer"].replace(OPTIMIZERS)
    return frame


def fits(names: Sequence[str] | None = None) -> dict[str, LawFit]:
    """Returns the law fitted to each published curve, by curve.

    Digitized K* have no bracket. The loss is robust, as single digitized points may be
    read off the wrong marker.
    """
    return {
        str(curve): fit_law(
            Observations.of(rows["batch_size"], rows["steps_to_result"]), "soft_l1"
        )
        for curve, rows in steps_to_result(names).groupby("curve", sort=False)
    }


def _read(table: str) -> pd.DataFrame:
    folder = resources.files("dps_tf.analysis") / "published"
    with (folder / f"{PREFIX}_{table}.csv").open("r", encoding="utf-8") as file:
        frame = pd.read_csv(file, dtype={"note": str})
    if "note" in frame.columns:
        frame["note"] = frame["note"].fillna("")
    return frame


def _curves(table: str, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns the rows of some published curves, with their names."""
    frame = _read(table)
    parts = zip(frame["dataset"], frame["model"], frame["optimizer"], strict=True)
    curves = [f"{PREFIX}-{dataset}-{model}-{opt}" for dataset, model, opt in parts]
    frame.insert(0, "curve", curves)
    frame["metric"] = frame["metric"].map(METRICS)
    if names is None:
        return frame
    known = list(dict.fromkeys(curves))
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


def direction_of(metric: str) -> str:
    """Returns `maximize` for metrics that are better when larger."""
    return "maximize" if metric.rpartition("/")[2] in _MAXIMIZED else "minimize"
