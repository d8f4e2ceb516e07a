"""The cost of a sweep, for `train --plan`, the live line, and what is run next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.choose import next_batch_size
from dps_tf.analysis.loading import load
from dps_tf.analysis.plan import (
    WORK,
    curve_and_size,
    forecast,
    interval_of,
    predicted_steps,
    recorded_work,
    seconds_of_a_step,
)
from dps_tf.analysis.published import read_published
from dps_tf.analysis.tables import Floats, cell_name, study_key
from dps_tf.analysis.wording import steps as number_of_steps
from dps_tf.core import StudySpecification, SweepSpecification, UserError, duration
from dps_tf.store import (
    DamagedError,
    FileSystem,
    StudyReader,
    SweepLayout,
    SweepReader,
    files_for,
    read_json,
    write_json,
)
from dps_tf.tuning.calibration import Calibration
from dps_tf.tuning.progress import Forecast
from dps_tf.tuning.study import is_finished

NOTHING_MEASURED = (
    "no time is predicted, as no cell is finished: give --like=DIR of a finished sweep "
    "of a similar workload, or --like=TABLE.csv of published curves."
)

_LASTING = ("low", "high", "devices", "step_times", "question")
"""What the order of the chosen batch sizes depends on, besides the records."""


@dataclass(frozen=True)
class Prices:
    """The price of an hour in money, and the power in watts, of the whole machine."""

    money: float | None = None
    watts: float | None = None

    def __post_init__(self) -> None:
        """Raises UserError unless the values are positive numbers, or None."""
        for flag, value in (("price", self.money), ("watts", self.watts)):
            if value is not None and not 0 < value < np.inf:
                raise UserError(f"--{flag}={value:g}: give a number above 0.")

    def of(self, seconds: Sequence[float]) -> str:
        """Returns the text of the cost of (median, low, high) seconds, or ''."""
        middle, low, high = (end / 3600 for end in seconds)
        rates = {"money": self.money, "kWh": self.watts and self.watts / 1000}
        return "".join(
            f"; {middle * rate:.3g} ({low * rate:.3g} to {high * rate:.3g}) {unit}"
            for unit, rate in rates.items()
            if rate
        )


class RecordedForecast:
    """Predicts the cost of cells from the finished cells of a sweep directory.

    Forecasts depend on the records alone; the tables of a closed cell are read once.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        """Reads no file yet."""
        self._files = files
        self._directory = directory
        self._rows: dict[str, dict[str, Any]] = {}

    def done(self) -> pd.DataFrame:
        """Returns the work of the finished cells, one row per cell, columns WORK."""
        layout = SweepLayout(self._directory)
        for name in self._files.list_names(layout.cells):
            if name not in self._rows:
                study = StudyReader(self._files, layout.cell(name))
                if (row := recorded_work(study, name)) is not None:
                    self._rows[name] = row
        return pd.DataFrame(list(self._rows.values()), columns=list(WORK))

    def __call__(self, studies: Sequence[StudySpecification]) -> Forecast | None:
        """Returns the forecast of some cells, None before one is finished."""
        done = self.done()
        if done.empty:
            return None
        waiting = asked_cells(studies)
        steps, seconds = forecast(done, waiting)
        trials = (waiting["batch_size"] * waiting["trials"]).to_numpy(np.float64)
        examples = (np.median(steps, axis=0) * trials).tolist()
        if seconds is None:
            return Forecast(examples, None)
        _, low, high = interval_of(seconds.sum(axis=1))
        return Forecast(examples, (low, high))


class RecordedChoice:
    """Chooses the studies that a sweep is to run, from the records of its directory.

    A batch size is chosen once those that were chosen before it on its curve are
    finished. So the order depends on the records alone, and not on how many processes
    share the sweep; those without a free cell end, as in any sweep.
    """

    def __init__(self, files: FileSystem, directory: str, sweep: SweepSpecification):
        """Reads no file yet; `directory` is empty where nothing is kept."""
        assert sweep.choice is not None
        self._files = files
        self._directory = directory
        self._choice = sweep.choice
        self._studies = {curve_and_size(s.cell.name): s for s in sweep.studies}
        values = vars(sweep.choice)
        asked = [f"choose.{name} = {values[name]!r}" for name in _LASTING]
        self._records: dict[str, dict[str, Any]] = {
            curve: {"asked": asked, "cells": [], "reasons": [], "end": ""}
            for curve, _ in self._studies
        }

    def __call__(self) -> list[StudySpecification]:
        """Returns the studies chosen so far, and records the choices."""
        self.look()
        chosen = []
        for curve, record in self._records.items():
            if self._recorded(curve, record) <= len(record["cells"]):
                path = SweepLayout(self._directory).choice(curve)
                write_json(self._files, path, record)
            chosen += [self._studies[curve_and_size(name)] for name in record["cells"]]
        return chosen

    def look(self) -> None:
        """Chooses as far as the records go, and prints each choice; writes nothing.

        Raises:
            UserError: other choices were made in this directory before.
        """
        for curve, record in self._records.items():
            while not record["end"] and all(map(self._has, record["cells"][-1:])):
                self._extend(curve, record)
            self._recorded(curve, record)

    def may_run(self, study: StudySpecification) -> bool:
        """Returns whether a study was chosen, or may be."""
        record = self._records[curve_and_size(study.cell.name)[0]]
        return not record["end"] or study.cell.name in record["cells"]

    def _has(self, name: str) -> bool:
        """Returns whether a cell is finished."""
        if not self._directory:
            return False
        cell = SweepLayout(self._directory).cell(name)
        return is_finished(self._files, cell, self._studies[curve_and_size(name)])

    def _extend(self, curve: str, record: dict[str, Any]) -> None:
        """Adds the next choice of a curve to its record, or why there is none."""
        done = [curve_and_size(name)[1] for name in record["cells"]]
        results = work = pd.DataFrame()
        if done:
            tables = load(self._directory)
            results = _of_cells(tables.results, record["cells"])
            work = _of_cells(tables.work, record["cells"])
        size, reason = next_batch_size(self._choice, done, results, work)
        if size is None:
            record["end"] = reason
            print(f"{curve}: no further batch size is chosen: {reason}.")
            return
        record["cells"].append(self._studies[curve, size].cell.name)
        record["reasons"].append(reason)
        print(f"{record['cells'][-1]} is chosen: {reason}.")

    def _recorded(self, curve: str, record: dict[str, Any]) -> int:
        """Returns how many cells are on record; UserError for another choice."""
        if not self._directory:
            return 0
        try:
            layout = SweepLayout(self._directory)
            recorded = read_json(self._files, layout.choice(curve))
        except (FileNotFoundError, DamagedError):
            return 0
        both = ([*each["asked"], *each["cells"]] for each in (recorded, record))
        for before, now in zip(*both, strict=False):
            if before != now:
                raise UserError(
                    f"the choice in {self._directory} has {before}, and now there "
                    f"would be {now}: bind what was bound before, or give a new "
                    "--sweep_dir."
                )
        return len(recorded["cells"])


def _of_cells(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns the rows of a table that belong to cells of some names."""
    keys = table[study_key(table)].astype(object).to_dict("records")
    return table[[cell_name(key) in names for key in keys]]


def asked_cells(studies: Sequence[StudySpecification]) -> pd.DataFrame:
    """Returns the size and budget of the cell of each study, one row per study."""
    return pd.DataFrame(
        [
            {
                "cell": study.cell.name,
                "curve": curve_and_size(study.cell.name)[0],
                "batch_size": study.cell.batch_size,
                "trials": study.rule.points,
                "draws": study.rule.draws_limit,
                "budget": study.rule.last_evaluation,
                "interval": study.rule.schedule.interval,
            }
            for study in studies
        ]
    )


def like(place: str) -> pd.DataFrame:
    """Returns the work of the cells of a sweep directory, or of published curves.

    K* of a curve stands for the steps of each trial of a race.

    Raises:
        UserError: the place holds neither, or no cell of the sweep is finished.
    """
    if place.endswith(".csv"):
        table = read_published(place).rename(columns={"steps_to_result": "steps"})
        done = table.assign(trials=1, seconds=np.nan)[list(WORK)]
    else:
        files = files_for(place)
        SweepReader(files, place)  # Refuses a directory without a sweep.
        done = RecordedForecast(files, place).done()
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
    prices: Prices,
) -> str:
    """Returns the plan: predictions and bounds for each waiting cell and for all."""
    budget, draws = waiting["budget"].to_numpy(float), waiting["draws"].to_numpy(float)
    most = np.median(_seconds(waiting, calibration, budget, draws), axis=0)
    lines, whole, predicted = [str(calibration)], "", [""] * len(waiting)
    if done.empty:
        lines.append(NOTHING_MEASURED)
    else:
        lines.append(
            f"predicted from {len(done)} measured cells; medians with 80 % "
            "intervals. Cells that have begun count whole, repeats do not."
        )
        steps = np.minimum(predicted_steps(done, waiting), budget)
        trials = waiting["trials"].to_numpy(float)
        seconds = _seconds(waiting, calibration, steps, trials)
        whole = f"{_cost(seconds.sum(axis=1), prices)}; "
        predicted = [
            f"{_steps(steps[:, i], budget[i])}, {_cost(seconds[:, i], prices)}; "
            for i in range(len(waiting))
        ]
    named = zip(waiting["cell"], predicted, most, strict=True)
    lines += [f"  {name}: {text}at most {_time(end)}" for name, text, end in named]
    lines.append(f"all {len(waiting)} cells: {whole}at most {_time(most.sum())}")
    return "\n".join(lines)


def _seconds(
    waiting: pd.DataFrame, calibration: Calibration, steps: Floats, trials: Floats
) -> Floats:
    """Returns draws of the seconds of cells, [d, n], for draws of steps per trial."""
    per_step = seconds_of_a_step(
        pd.DataFrame(calibration.steps.items(), columns=["batch_size", "seconds"]),
        waiting["batch_size"].to_numpy(np.float64),
    )
    evaluation = calibration.evaluation / waiting["interval"].to_numpy(np.float64)
    is_pruned = ~waiting["curve"].str.contains("-none-seed").to_numpy(bool)
    per_trial = steps * (per_step + evaluation) + calibration.pruning * is_pruned
    slots = np.minimum(calibration.slots, trials)
    return np.asarray(per_trial * trials / slots + calibration.start_up, np.float64)


def _cost(seconds: Floats, prices: Prices) -> str:
    interval = interval_of(seconds)
    return f"{_interval(interval, _time)}{prices.of(interval)}"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds:.1g} s"


def _steps(steps: Floats, budget: float) -> str:
    interval = interval_of(steps)
    if interval[0] >= budget:
        return f"more steps a trial than its {budget:,.0f}"
    return f"{_interval(interval, number_of_steps)} steps a trial"


def _interval(interval: Sequence[float], text: Callable[[float], str]) -> str:
    middle, low, high = map(text, interval)
    return f"{middle} ({low} to {high})"
