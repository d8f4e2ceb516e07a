"""The cost of a sweep, for `train --plan` and the live line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import plan
from dps_tf.analysis.published import read_published
from dps_tf.analysis.tables import Floats
from dps_tf.core import StudySpecification, UserError, duration
from dps_tf.store import (
    FileSystem,
    StudyReader,
    SweepLayout,
    SweepReader,
    files_for,
)
from dps_tf.tuning.calibration import Calibration
from dps_tf.tuning.progress import Forecast
from dps_tf.tuning.study import is_finished

NOTHING_MEASURED = (
    "no time is predicted, as no cell is finished: give --like=DIR of a finished sweep "
    "of a similar workload, or --like=TABLE.csv of published curves."
)


@dataclass
class SweepRecords:
    """The finished cells of a sweep directory, and the forecast that they allow.

    An empty directory stands for none.
    """

    files: FileSystem
    directory: str
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def has_finished(self, study: StudySpecification) -> bool:
        """Returns whether the directory holds a study that is finished."""
        if not self.directory:
            return False
        cell = SweepLayout(self.directory).cell(study.cell.name)
        return is_finished(self.files, cell, study)

    def done(self) -> pd.DataFrame:
        """Returns the work of the finished cells, one row per cell, columns WORK."""
        layout = SweepLayout(self.directory)
        for name in self.files.list_names(layout.cells):
            if name not in self._rows:
                study = StudyReader(self.files, layout.cell(name))
                if (row := plan.recorded_work(study)) is not None:
                    self._rows[name] = row
        return pd.DataFrame(list(self._rows.values()), columns=list(plan.WORK))

    def __call__(self, studies: Sequence[StudySpecification]) -> Forecast | None:
        """Returns the forecast of some cells, None before one is finished."""
        done, waiting = self.done(), asked_cells(studies)
        if done.empty:
            return None
        steps, seconds = plan.forecast(done, waiting)
        trials = waiting["batch_size"] * waiting["trials"]
        examples = (np.median(steps, axis=0) * trials).tolist()
        if seconds is None:
            return Forecast(examples, None)
        _, low, high = plan.interval_of(seconds.sum(axis=1))
        return Forecast(examples, (low, high))


def asked_cells(studies: Sequence[StudySpecification]) -> pd.DataFrame:
    """Returns the size and budget of the cell of each study, one row per study."""
    rows = [
        {
            "cell": study.cell.name,
            "curve": study.cell.curve,
            "batch_size": study.cell.batch_size,
            "trials": study.rule.points,
            "draws": study.rule.draws_limit,
            "budget": study.rule.last_evaluation,
            "interval": study.rule.schedule.interval,
        }
        for study in studies
    ]
    return pd.DataFrame(rows)


def like(place: str) -> pd.DataFrame:
    """Returns the work of the cells of a sweep directory, or of published curves.

    Raises:
        UserError: the place holds neither, or no cell of the sweep is finished.
    """
    if place.endswith(".csv"):
        table = read_published(place).rename(columns={"steps_to_result": "steps"})
        done = table.assign(trials=1, seconds=np.nan)[list(plan.WORK)]
    else:
        files = files_for(place)
        SweepReader(files, place)  # Refuses a directory without a sweep.
        done = SweepRecords(files, place).done()
    if done.empty:
        raise UserError(
            f"--like={place} has no finished cell: name a sweep that has one, or a "
            "table of published curves that ends in .csv."
        )
    # Curves of several places may be equal, and are not taken to be.
    return done.assign(curve=done["curve"].map(lambda curve: (place, curve)))


def plan_text(
    done: pd.DataFrame,
    waiting: pd.DataFrame,
    calibration: Calibration,
    costs: Mapping[str, float],
) -> str:
    """Returns the plan: predictions and bounds for each waiting cell and for all.

    `costs` are of an hour, by unit.
    """
    columns = waiting[["budget", "draws", "trials"]].to_numpy(np.float64)
    budget, draws, trials = columns.T
    table = pd.DataFrame(index=[*waiting["cell"], f"all {len(waiting)} cells"])
    basis = NOTHING_MEASURED
    if not done.empty:
        basis = (
            f"predicted from {len(done)} measured cells; medians with 80 % "
            "intervals. Cells that have begun count whole, repeats do not."
        )
        steps = np.minimum(plan.predicted_steps(done, waiting), budget)
        seconds = _seconds(waiting, calibration, steps, trials)
        seconds = np.column_stack([seconds, seconds.sum(axis=1)])
        table["steps a trial"] = [*_texts(steps, "{:,.0f}".format, budget), ""]
        table["time"] = _texts(seconds, duration)
        for unit, cost in costs.items():
            table[unit] = _texts(seconds / 3600 * cost, "{:.3g}".format)
    most = np.median(_seconds(waiting, calibration, budget, draws), axis=0)
    table["at most"] = [duration(end) for end in [*most, most.sum()]]
    return f"{calibration}\n{basis}\n{table.to_string()}"


def _seconds(
    waiting: pd.DataFrame, calibration: Calibration, steps: Floats, trials: Floats
) -> Floats:
    """Returns draws of the seconds of cells, [d, n], for draws of steps per trial."""
    per_step = plan.seconds_of_a_step(
        pd.Series(calibration.steps), waiting["batch_size"]
    )
    evaluation = calibration.evaluation / waiting["interval"].to_numpy(np.float64)
    is_pruned = np.array([curve.is_pruned for curve in waiting["curve"]])
    per_trial = steps * (per_step + evaluation) + calibration.pruning * is_pruned
    # A group of trials costs all lanes, as at the nearest batch size measured.
    known = calibration.lanes or {1: 1}
    sizes = waiting["batch_size"].to_numpy(np.float64)
    octaves = np.abs(np.subtract.outer(np.log2(sizes), np.log2([*known])))
    lanes = np.array([*known.values()])[octaves.argmin(axis=1)]
    groups = np.ceil(trials / lanes)
    rounds = groups / np.minimum(calibration.slots, groups)
    return np.asarray(per_trial * lanes * rounds + calibration.start_up, np.float64)


def _texts(
    draws: Floats, text_of: Callable[[float], str], most: Floats | float = np.inf
) -> list[str]:
    """Returns the median with the interval of each column of draws, [d, n].

    An end that reaches `most`, the largest value of a column, is a bound.
    """
    texts = []
    for column, end in zip(draws.T, np.broadcast_to(most, draws.shape[1]), strict=True):
        ends = plan.interval_of(column)
        middle, low, high = (
            text_of(x) if x < end else f"over {text_of(end)}" for x in ends
        )
        texts.append(f"{middle} ({low} to {high})" if ends[1] < end else middle)
    return texts
