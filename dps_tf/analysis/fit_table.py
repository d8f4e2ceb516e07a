"""Anybody's table of steps-to-result, fitted: from a CSV file to curves and fits.

Columns: batch_size and steps_to_result; optionally bracket_low (the evaluation before;
without steps_to_result, K* is only known to be more), noise (what is known beforehand
of the standard deviation of log2 K*, in octaves) and curve, a name. A results table of
this package is such a table too: its curves are then told by the columns of the cell
that vary, and what it knows only as a bound is treated as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import (
    LEVEL,
    MINIMUM_POINTS,
    Alternative,
    CriticalBatchSizes,
    JointFit,
    LawFit,
    Observations,
    compare,
    critical_batch_sizes,
    fit_joint,
    fit_law,
)
from dps_tf.analysis.regimes import (
    TOLERANCES,
    Regime,
    fitted_regimes,
    measured_regimes,
)
from dps_tf.analysis.tables import (
    Floats,
    curve_key,
    curve_label,
    read_csv,
    require,
)
from dps_tf.core.errors import UserError, on_one_line

_LARGEST = 1e15
_NOISIEST = 64.0  # octaves


@dataclass(frozen=True)
class FitSettings:
    """How curves are fitted; see `law.fit_law` and `regimes`."""

    loss: str = "gaussian"
    level: float = LEVEL
    tolerances: tuple[float, ...] = TOLERANCES
    linear_from: float | None = None

    def __post_init__(self) -> None:
        for tolerance in self.tolerances:
            if not 0 < tolerance < float("inf"):
                raise UserError(
                    f"tolerance is {tolerance!r}; it must be a positive number, for "
                    "example 0.2 for 20 %."
                )
        if not self.tolerances:
            raise UserError("at least one tolerance is needed, for example 0.2.")


@dataclass(frozen=True)
class CurveFit:
    """All that is said of one curve.

    Attributes:
        curve: its name.
        fit: the law.
        alternatives: the law and two other forms.
        critical: critical batch sizes where the power law is preferred, else None.
        regimes: on the fit, then on the measured points.
        left_out: rows of the table without a usable steps-to-result.
    """

    curve: str
    fit: LawFit
    alternatives: tuple[Alternative, ...]
    critical: CriticalBatchSizes | None
    regimes: tuple[Regime, ...]
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        points = self.fit.observations
        low = [None if np.isnan(x) else float(x) for x in points.low]
        high = [None if np.isinf(x) else float(x) for x in points.high]
        return {
            "curve": self.curve,
            "batch_size": [float(b) for b in points.batch_size],
            "steps_to_result": high,
            "bracket_low": low,
            "rows_left_out": self.left_out,
            "fit": self.fit.to_json(),
            "alternatives": [form.to_json() for form in self.alternatives],
            "critical_batch_sizes": self.critical and self.critical.to_json(),
            "regimes": [regime.to_json() for regime in self.regimes],
        }


@dataclass(frozen=True)
class TableFit:
    """All that is said of a table.

    Attributes:
        curves: those that can be fitted.
        too_short: number of usable batch sizes of those that cannot, by name.
        joint: their joint fit, if there are two or more.
    """

    curves: tuple[CurveFit, ...]
    too_short: dict[str, int]
    joint: JointFit | None

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        joint = None
        if self.joint is not None:
            joint = {
                "reference": self.joint.reference,
                "ratios": _records(self.joint.to_frame()),
                "models": _records(self.joint.models),
                "best_model": self.joint.best_model,
            }
        return {
            "curves": [curve.to_json() for curve in self.curves],
            "curves_too_short": self.too_short,
            "joint": joint,
        }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    finite = frame.astype(object).where(frame.notna(), None)
    return [
        {str(name): x for name, x in row.items()} for row in finite.to_dict("records")
    ]


def read_table(path: str | Path) -> pd.DataFrame:
    """Returns a CSV file as a table with numbers where numbers belong.

    Empty steps_to_result, bracket_low and noise are NaN.

    Raises:
        UserError: no such file, no CSV, a missing column, or a cell that is no number.
    """
    try:
        frame = read_csv(path, skipinitialspace=True)
    except OSError as error:
        why = f" ({error.strerror})" if Path(path).exists() else ""
        raise UserError(
            f"--csv={str(path)!r} is not a file that can be read{why}: name one on "
            "this machine."
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as e:
        text = on_one_line(e)
        raise UserError(f"--csv={str(path)!r} is not a CSV table: {text}.") from e
    require(frame, ["batch_size", "steps_to_result"], f"--csv={str(path)!r}")
    for name in ("batch_size", "steps_to_result", "bracket_low", "noise"):
        if name in frame.columns:
            frame[name] = _numbers(frame[name])
    return frame


def _numbers(column: pd.Series) -> Floats:
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    wrong = np.isnan(values) & column.notna().to_numpy(bool)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UserError(
            f"{column.name} is {column.iloc[row]!r} in row {row + 1}; it must be a "
            "number."
        )
    size = np.abs(np.where(np.isfinite(values), values, 0))
    absurd = (size > _LARGEST) | ((size > 0) & (size < 1 / _LARGEST))
    if column.name == "noise":
        absurd = values > _NOISIEST
    if absurd.any():
        row = int(np.argmax(absurd))
        bound = _NOISIEST if column.name == "noise" else _LARGEST
        raise UserError(
            f"{column.name} is {values[row]:g} in row {row + 1}, which nobody can have "
            f"measured: at most {bound:g} is read."
        )
    return values


def fit_table(
    frame: pd.DataFrame,
    settings: FitSettings | None = None,
    reference: str | None = None,
) -> TableFit:
    """Returns the fits of every curve of a table, and their joint fit.

    Args:
        frame: of `read_table`, or a results table.
        settings: how to fit.
        reference: curve that the joint fit's ratios are taken to; the first by default.

    Raises:
        UserError: no curve has three usable batch sizes, or a value cannot be.
    """
    settings = settings or FitSettings()
    usable: dict[str, Observations] = {}
    too_short: dict[str, int] = {}
    rows: dict[str, int] = {}
    for name, part in curves_of_table(frame).items():
        observations = _observations(part)
        rows[name] = len(part) - len(observations)
        if observations.batch_sizes < MINIMUM_POINTS:
            too_short[name] = observations.batch_sizes
        else:
            usable[name] = observations
    if not usable:
        most = max(too_short.values(), default=0)
        raise UserError(
            f"a fit needs steps_to_result at {MINIMUM_POINTS} or more batch sizes of a "
            f"curve; the table has at most {most}."
        )
    curves = tuple(_fit(name, o, settings, rows[name]) for name, o in usable.items())
    joint = None
    if len(usable) > 1:
        joint = fit_joint(usable, reference or next(iter(usable)), settings.level)
    elif reference is not None and reference not in usable:
        raise UserError(f"--reference={reference!r} is not a curve that can be fitted.")
    return TableFit(curves, too_short, joint)


def observations_by_curve(frame: pd.DataFrame) -> dict[str, Observations]:
    """Returns what a fit of each curve of a table is given, in the table's order.

    Args:
        frame: of `read_table`, or a results table.
    """
    return {name: _observations(part) for name, part in curves_of_table(frame).items()}


def _fit(
    name: str, observations: Observations, settings: FitSettings, left_out: int
) -> CurveFit:
    fit = fit_law(observations, settings.loss, settings.level)
    tolerances, start = settings.tolerances, settings.linear_from
    # The fitted curve answers for a batch size that this curve has not measured.
    measured = start if start in observations.batch_size else None
    regimes = (
        *fitted_regimes(fit, tolerances, start),
        *measured_regimes(observations, tolerances, measured),
    )
    forms = tuple(compare(observations))
    critical = critical_batch_sizes(fit, forms)
    return CurveFit(name, fit, forms, critical, regimes, left_out)


def curves_of_table(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Returns the rows of each curve, in the order of the table."""
    if "curve" in frame.columns:
        if frame["curve"].isna().any():
            row = int(np.argmax(frame["curve"].isna())) + 1
            raise UserError(f"curve is empty in row {row}; name it or drop the column.")
        names = frame["curve"].astype(str)
    else:
        present = [name for name in curve_key(frame) if name in frame.columns]
        varying: Sequence[str] = [n for n in present if frame[n].nunique() > 1]
        names = pd.Series([curve_label(row, varying) for _, row in frame.iterrows()])
    groups = frame.groupby(names.to_numpy(object), sort=False)
    return {str(name): part for name, part in groups}


def _observations(rows: pd.DataFrame) -> Observations:
    if {"bracket_low", "steps_bound"} <= set(rows.columns):
        # A column of empty cells is read as numbers.
        bound = ["" if pd.isna(text) else str(text) for text in rows["steps_bound"]]
        return Observations.from_results(rows.assign(steps_bound=bound))
    columns = ["batch_size", "steps_to_result", "bracket_low", "noise"]
    table = rows.reindex(columns=columns).astype(np.float64)
    is_beyond = table["steps_to_result"].isna() & (table["bracket_low"] > 0)
    table.loc[is_beyond, "steps_to_result"] = np.inf
    known = table[table["steps_to_result"].notna()]
    return Observations.of(*(known[name].to_numpy() for name in columns))
