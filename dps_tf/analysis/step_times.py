"""Models the seconds of a training step as a function of the batch per device.

A table of step times comes from the benchmark of this package or from elsewhere. Its
columns are batch_size, devices (how many share the batch) and seconds (per step);
optionally price (money per hour for all these devices together) and columns of the
identity of a cell, such as workload.

The model is t(b) = latency + b / throughput for b = B / N examples per device: a step
takes `latency` seconds however small a device's share of the batch is, and a device
works through `throughput` examples a second once that share fills it. With x = 1/b this
has the form of the law K* = c1/B + c2, and the posterior of `analysis.law` serves both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dps_tf.analysis.law import Draws, Observations, posteriors
from dps_tf.analysis.tables import Floats, numbers, refuse_first, require, study_key
from dps_tf.core import UserError, check_whole

COLUMNS = ["batch_size", "devices", "seconds"]
PRICE = "price"
DRAWS = 4096
"""Draws of a posterior: quantiles of so many move by 1 % of an interval's width."""
MINIMUM_SIZES = 3
"""Batch sizes per device below which latency and throughput cannot be told apart from
the scatter of the times."""


def checked_step_times(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the table; UserError for a number in it that is not positive.

    A price of 0 stands for none.
    """
    require(frame, COLUMNS, "of step times")
    for name in frame.columns.intersection([*COLUMNS, PRICE]):
        values = numbers(frame[name])
        allowed = (values > 0) & (values < np.inf) | (values == 0) & (name == PRICE)
        refuse_first(~allowed, frame[name], "of step times", "a positive number")
    return frame


def recorded_step_times(work: pd.DataFrame) -> pd.DataFrame:
    """Returns the step times of a sweep's own training, as a table for one device.

    The seconds of a cell are the median over its trials. They are those of the sweep as
    it ran: a slot of a CPU is a share of the machine, and evaluations are included.
    """
    trials = work[work["trial"].notna()]
    keys = study_key(trials)
    wide = trials.pivot_table("value", [*keys, "trial"], columns="quantity")
    wide = wide.reindex(columns=["seconds", "steps"])
    wide = wide[wide > 0].dropna()
    step_seconds = (wide["seconds"] / wide["steps"]).rename("seconds")
    cells = step_seconds.groupby(keys, sort=False).median()
    return cells.reset_index().assign(devices=1)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step on some devices.

    Attributes:
        devices: number of devices that share each batch.
        assumption: what is assumed about communication, a sentence.
        price: money per hour for all devices together; 0 where none is given.
        draws: draws of the law with the latency as c2 (seconds of a step with a small
            batch) and 1/throughput as c1 (seconds per example of a full device).
    """

    devices: int
    assumption: str
    price: float
    draws: Draws

    def seconds(self, batch_sizes: Floats) -> Floats:
        """Returns draws of the seconds of a step at global batch sizes, [d, n].

        Their order is not that of draws of K*, of which they are independent.
        """
        order = np.random.default_rng(0).permutation(len(self.draws.scale))
        return self.draws.steps(self.devices / batch_sizes)[order]


def step_time_model(table: pd.DataFrame, devices: int) -> StepTimes:
    """Returns the model of step times on N devices, from a table of step times.

    Rows that were measured on N devices are used if they have three batch sizes: these
    include the cost of communication. Otherwise the rows on the fewest devices are
    used, and exchanging gradients is assumed to take no time.

    Raises:
        UserError: fewer than three batch sizes, or a value that is not allowed.
    """
    checked_step_times(table)
    check_whole("--devices", devices)
    sizes = table.groupby("devices")["batch_size"].nunique()
    is_own = sizes.get(devices, 0) >= MINIMUM_SIZES
    measured = devices if is_own else int(min(sizes.index, default=1))
    if sizes.get(measured, 0) < MINIMUM_SIZES:
        raise UserError(
            f"the table of step times has {sizes.get(measured, 0)} batch sizes on "
            f"{measured} device(s); at least {MINIMUM_SIZES} are needed to tell "
            "latency from throughput: measure more."
        )
    assumption = f"Step times were measured on {measured} device(s)"
    if devices != measured:
        assumption += (
            f"; {devices} devices are assumed to share a batch evenly and to exchange "
            "gradients in no time, so real ones are slower"
        )
    used = table[table["devices"] == measured]
    share = used["batch_size"].to_numpy(np.float64) / measured
    seconds = used["seconds"].to_numpy(np.float64)
    price = float(np.median(used[PRICE] / measured)) if PRICE in used else 0.0
    return StepTimes(
        devices=devices,
        assumption=f"{assumption}.",
        price=price * devices,
        draws=posteriors([Observations.of(1 / share, seconds)])[0].draws(DRAWS),
    )
