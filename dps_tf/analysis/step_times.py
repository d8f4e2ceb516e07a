"""Step times: what one training step takes, as a function of the batch per device.

A table of step times is measured by the benchmark of this package, by `train --plan`,
or by anybody: columns batch_size, devices (how many share the batch) and seconds (per
step); optionally price (money per hour for all these devices together) and columns of
the identity of a cell, such as workload.

The model is t(b) = latency + b / throughput for b = B / N examples per device: a step
takes `latency` seconds however small a device's share of the batch is, and a device
works through `throughput` examples a second once that share fills it. With x = 1/b this
is latency + (1/throughput) / x, the form of the law K* = c1/B + c2, so that the
posterior of `analysis.law` serves both, with its prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import Draws, Observations, posterior
from dps_tf.analysis.tables import Floats, require, study_key
from dps_tf.core import UserError

COLUMNS = ["batch_size", "devices", "seconds"]
PRICE = "price"
SECONDS_PER_HOUR = 3600.0
DRAWS = 4096
"""Of a posterior, for quantiles that move by 1 % of an interval's width."""
MINIMUM_SIZES = 3
"""Batch sizes per device below which latency and throughput cannot be told apart from
the scatter of the times."""


def read_step_times(path: str | Path) -> pd.DataFrame:
    """Returns a table of step times from a CSV file, checked.

    Raises:
        UserError: no such file, a missing column, or a value that is not positive
            (a price may be 0).
    """
    return checked_step_times(read_csv(path))


def checked_step_times(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the table if its columns and values can be used, else UserError."""
    require(frame, COLUMNS, "of step times")
    for column in [*COLUMNS, PRICE]:
        if column not in frame.columns:
            continue
        values = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
        wrong = ~np.isfinite(values) | (values < 0)
        if column != PRICE:
            wrong |= values == 0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"{column} is {frame[column].iloc[row]!r} in row {row + 1} of the step "
                "times; it must be a positive number."
            )
    return frame


def seconds_per_step(work: pd.DataFrame) -> pd.DataFrame:
    """Returns what a step of each trial took, training and evaluation together.

    Columns: those of `study_key`, trial, seconds. Empty where nothing was recorded.
    """
    if work.empty:
        return pd.DataFrame()
    trials = work[work["trial"].notna()].astype({"trial": np.int64})
    keys = [*study_key(work), "trial"]
    wide = trials.pivot_table(index=keys, columns="quantity", values="value")
    if not {"seconds", "steps"} <= set(wide.columns):
        return pd.DataFrame()
    known = wide[(wide["steps"] > 0) & (wide["seconds"] > 0)]
    return (known["seconds"] / known["steps"]).rename("seconds").reset_index()


def recorded_step_times(work: pd.DataFrame) -> pd.DataFrame:
    """Returns the table of step times that a sweep's own training gives, one device.

    The median over the trials of each cell. A slot of a CPU is a share of the machine,
    and evaluations are counted in, so these times are of the sweep as it ran.
    """
    trials = seconds_per_step(work)
    if trials.empty:
        return pd.DataFrame(columns=COLUMNS)
    keys = study_key(trials)
    cells = trials.groupby(keys, sort=False)["seconds"].median().reset_index()
    return cells.assign(devices=1)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step on some devices, with their uncertainty.

    Attributes:
        devices: that share each batch.
        assumption: what is assumed of communication, a sentence.
        price: money per hour for all devices together; 0 where none is given.
        draws: of the law with the latency as c2 (seconds of a step whose batch is
            small) and 1/throughput as c1 (of a device whose batch is large).
        communication: seconds that are added to each step.
    """

    devices: int
    assumption: str
    price: float
    draws: Draws
    communication: float = 0.0

    def seconds(self, batch_sizes: Floats) -> Floats:
        """Returns draws of the seconds of a step at global batch sizes, [d, n]."""
        share = np.asarray(batch_sizes, np.float64) / self.devices
        law = np.stack([self.draws.steps(1 / each) for each in share], axis=1)
        return np.asarray(law + self.communication, np.float64)


def step_time_model(
    table: pd.DataFrame, devices: int, communication: float | None = None
) -> StepTimes:
    """Returns the model of step times on N devices, from a table of step times.

    Rows that were measured on N devices are used if they have three batch sizes: they
    hold what communication costs. Otherwise the rows on the fewest devices are, and
    what N devices have to exchange costs `communication` seconds a step, 0 where it is
    None.

    Args:
        table: of step times; see the module.
        devices: N, the number of devices that share each batch.
        communication: seconds a step; refused where rows on N devices hold it already.

    Raises:
        UserError: fewer than three batch sizes, or a value that cannot be.
    """
    checked_step_times(table)
    if devices < 1:
        raise UserError(f"--devices={devices}: give a whole number of at least 1.")
    own = table[table["devices"] == devices]
    is_own = own["batch_size"].nunique() >= MINIMUM_SIZES
    if is_own and communication is not None:
        raise UserError(
            f"the table of step times was measured on {devices} devices and holds what "
            "communication costs: leave --communication out."
        )
    fewest = table["devices"].min()
    used = own if is_own else table[table["devices"] == fewest]
    share = used["batch_size"].to_numpy(np.float64) / used["devices"].to_numpy()
    sizes = len(np.unique(share))
    if sizes < MINIMUM_SIZES:
        raise UserError(
            f"the table of step times has {sizes} batch sizes on {int(fewest)} "
            f"device(s); at least {MINIMUM_SIZES} are needed to tell latency from "
            "throughput: measure more."
        )
    seconds = used["seconds"].to_numpy(np.float64)
    draws = posterior(Observations.of(1 / share, seconds)).draws(DRAWS)
    added = 0.0 if is_own or devices == fewest else communication or 0.0
    return StepTimes(
        devices=devices,
        assumption=_assumption(devices, int(fewest), is_own, communication),
        price=_price(used, devices),
        draws=draws,
        communication=added,
    )


def _assumption(
    devices: int, fewest: int, is_own: bool, communication: float | None
) -> str:
    if is_own or devices == fewest:
        return f"Step times were measured on {devices} device(s)."
    measured = f"Step times were measured on {fewest} device(s)"
    if communication is None:
        return (
            f"{measured}; {devices} devices are assumed to share a batch evenly and to "
            "exchange gradients in no time, so real ones are slower."
        )
    return (
        f"{measured}; {devices} devices are assumed to share a batch evenly and to "
        f"exchange gradients in {communication:g} seconds a step, as given."
    )


def _price(used: pd.DataFrame, devices: int) -> float:
    """Returns the price per hour of N devices, in proportion to that of the rows."""
    if PRICE not in used.columns:
        return 0.0
    each = used[PRICE].to_numpy(np.float64) / used["devices"].to_numpy(np.float64)
    return float(np.median(each) * devices)
