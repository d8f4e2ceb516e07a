"""The cost of a sweep, for `train --plan`, the live line, and what is run next."""

from __future__ import annotations

from collections.abc import Sequence
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
from dps_tf.analysis.tables import Floats, cell_name
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
    """Predicts the cost of cells from the finished cells of a sweep directory."""

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
        ends = None if seconds is None else interval_of(seconds.sum(axis=1))[1:]
        return Forecast(examples, ends)


class RecordedChoice:
    """Chooses the studies that a sweep is to run, from the records of its directory.

    The next batch size of a curve is chosen when the cells before it are finished, so
    that the order does not depend on how many processes share the sweep.
    """

    def __init__(self, files: FileSystem, directory: str, sweep: SweepSpecification):
        """Reads no file yet; `directory` is empty where nothing is kept."""
        assert sweep.choice is not None
        self._files = files
        self._directory = directory
        self._choice = sweep.choice
        self._studies = {curve_and_size(s.cell.name): s for s in sweep.studies}
        self._reasons: dict[str, dict[str, str]] = {c: {} for c, _ in self._studies}
        self._ended: set[str] = set()

    def __call__(self) -> list[StudySpecification]:
        """Returns the studies chosen so far, and records them with the reasons."""
        self.look()
        for curve, reasons in self._reasons.items():
            path = SweepLayout(self._directory).choice(curve)
            write_json(self._files, path, list(reasons.items()))
        names = [name for reasons in self._reasons.values() for name in reasons]
        return [self._studies[curve_and_size(name)] for name in names]

    def look(self) -> None:
        """Chooses as far as the records go, and prints each choice; writes nothing."""
        for curve, reasons in self._reasons.items():
            while curve not in self._ended and all(map(self._is_finished, reasons)):
                self._extend(curve, reasons)

    def may_run(self, study: StudySpecification) -> bool:
        """Returns whether a study was chosen, or may be."""
        curve, _ = curve_and_size(study.cell.name)
        return curve not in self._ended or study.cell.name in self._reasons[curve]

    def _is_finished(self, name: str) -> bool:
        if not self._directory:
            return False
        cell = SweepLayout(self._directory).cell(name)
        return is_finished(self._files, cell, self._studies[curve_and_size(name)])

    def _extend(self, curve: str, reasons: dict[str, str]) -> None:
        """Adds the next cell of a curve and why, or why the last one is the last."""
        results = work = pd.DataFrame()
        if reasons:
            tables = load(self._directory)
            rows = tables.studies.to_dict("records")
            chosen = tables.where([cell_name(row) in reasons for row in rows])
            results, work = chosen.results, chosen.work
        size, reason = next_batch_size(self._choice, results, work)
        if size is None:
            self._ended.add(curve)
            reasons[list(reasons)[-1]] += f"; it is the last: {reason}"
            print(f"{curve}: no further batch size is chosen: {reason}.")
            return
        name = self._studies[curve, size].cell.name
        reasons[name] = reason
        print(f"{name} is chosen: {reason}.")


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
    ends = interval_of(seconds)
    middle, low, high = map(_time, ends)
    return f"{middle} ({low} to {high}){prices.of(ends)}"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds:.1g} s"


def _steps(steps: Floats, budget: float) -> str:
    middle, low, high = interval_of(steps)
    if middle >= budget:
        return f"more steps a trial than its {budget:,.0f}"
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f}) steps a trial"
