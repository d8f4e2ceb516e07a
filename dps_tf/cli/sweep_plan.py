"""The cost of a sweep, for `train --plan`, the live line, and what is run next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import plan
from dps_tf.analysis.loading import load
from dps_tf.analysis.published import read_published
from dps_tf.analysis.tables import Floats
from dps_tf.core import StudySpecification, SweepSpecification, UserError, duration
from dps_tf.store import (
    FileSystem,
    StudyReader,
    SweepLayout,
    SweepReader,
    files_for,
    write_json,
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
                if (row := plan.recorded_work(study, name)) is not None:
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


class RecordedChoice:
    """Chooses the studies that a sweep is to run, from the records of its directory.

    The next batch size of a curve is chosen when the cells before it are finished, so
    that the order does not depend on how many processes share the sweep.
    """

    def __init__(self, records: SweepRecords, sweep: SweepSpecification):
        """Reads no file yet."""
        assert sweep.choice is not None
        self._records = records
        self._choice = sweep.choice
        self._studies = {study.cell.name: study for study in sweep.studies}
        curves = [plan.curve_and_size(name)[0] for name in self._studies]
        self._reasons: dict[str, dict[str, str]] = {curve: {} for curve in curves}
        self._ended: set[str] = set()

    def __call__(self) -> list[StudySpecification]:
        """Returns the studies chosen so far, and records them with the reasons."""
        self.look()
        for curve, reasons in self._reasons.items():
            path = SweepLayout(self._records.directory).choice(curve)
            write_json(self._records.files, path, list(reasons.items()))
        names = [name for reasons in self._reasons.values() for name in reasons]
        return [self._studies[name] for name in names]

    def look(self) -> None:
        """Chooses as far as the records go, and prints each choice; writes nothing."""
        for curve, reasons in self._reasons.items():
            while curve not in self._ended and all(map(self._is_finished, reasons)):
                self._extend(curve, reasons)

    def may_run(self, study: StudySpecification) -> bool:
        """Returns whether a study was chosen, or may be."""
        curve, _ = plan.curve_and_size(study.cell.name)
        return curve not in self._ended or study.cell.name in self._reasons[curve]

    def _is_finished(self, name: str) -> bool:
        return self._records.has_finished(self._studies[name])

    def _extend(self, curve: str, reasons: dict[str, str]) -> None:
        """Adds the next cell of a curve and why, or why the last one is the last."""
        results = work = pd.DataFrame()
        if reasons:
            tables = load(self._records.directory)
            chosen = tables.where(tables.best["cell"].isin(list(reasons)))
            results, work = chosen.results, chosen.work
        size, reason = plan.next_batch_size(self._choice, results, work)
        if size is None:
            self._ended.add(curve)
            reasons[list(reasons)[-1]] += f"; it is the last: {reason}"
            print(f"{curve}: no further batch size is chosen: {reason}.")
            return
        [name] = [n for n in self._studies if plan.curve_and_size(n) == (curve, size)]
        reasons[name] = reason
        print(f"{name} is chosen: {reason}.")


def asked_cells(studies: Sequence[StudySpecification]) -> pd.DataFrame:
    """Returns the size and budget of the cell of each study, one row per study."""
    rows = [
        {
            "cell": study.cell.name,
            "curve": plan.curve_and_size(study.cell.name)[0],
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
    return done.assign(curve=place + ": " + done["curve"])


def plan_text(
    done: pd.DataFrame,
    waiting: pd.DataFrame,
    calibration: Calibration,
    costs: Mapping[str, float],
) -> str:
    """Returns the plan: predictions and bounds for each waiting cell and for all.

    `costs` are those of an hour, by unit.
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
    is_pruned = ~waiting["curve"].str.contains("-none-seed").to_numpy(bool)
    per_trial = steps * (per_step + evaluation) + calibration.pruning * is_pruned
    slots = np.minimum(calibration.slots, trials)
    return np.asarray(per_trial * trials / slots + calibration.start_up, np.float64)


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
