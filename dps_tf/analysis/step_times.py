"""Models the seconds of a training step as a function of the batch per device.

A table of step times comes from the benchmark of this package or from elsewhere. Its
columns are batch_size, devices (how many share the batch) and seconds (per step);
optionally price (money per hour for all these devices together, 0 for free ones), unit
(of batch sizes, else examples) and columns of the identity of a cell, such as workload.

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
from dps_tf.analysis.wording import number
from dps_tf.core import UserError, check_whole

COLUMNS = ["batch_size", "devices", "seconds"]
PRICE = "price"
DRAWS = 4096
"""Draws of a posterior: quantiles of so many move by 1 % of an interval's width."""
MINIMUM_SIZES = 3
"""Batch sizes per device below which latency and throughput cannot be told apart from
the scatter of the times."""
MISFIT = 1.5
"""Factor by which a measured step may differ from the model, or fall with the batch."""


def checked_step_times(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the table in numbers; UserError for a column or value not allowed.

    Batch sizes and devices are positive whole numbers, seconds are positive, and a
    price is at least 0.
    """
    require(frame, COLUMNS, "of step times")
    for name in frame.columns.intersection([*COLUMNS, PRICE]):
        values = numbers(frame[name])
        allowed, text = (values > 0) & (values < np.inf), "a positive number"
        if name == PRICE:
            allowed, text = allowed | (values == 0), "a number of at least 0"
        elif name != "seconds":
            allowed, text = allowed & (values % 1 == 0), "a positive whole number"
        refuse_first(~allowed, frame[name], "of step times", text)
        frame = frame.assign(**{name: values})
    return frame


def recorded_step_times(work: pd.DataFrame) -> pd.DataFrame:
    """Returns the step times of a sweep's own training, as a table for one device.

    The seconds of a cell are the median over its trials, as the sweep ran: a slot of a
    CPU is a share of the machine, and evaluations are included.
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
        price: money per hour for all devices together; None where none is given.
        misfit: how measured times contradict the model, a clause; empty if they do not.
        draws: draws of the law with the latency as c2 (seconds of a step with a small
            batch) and 1/throughput as c1 (seconds per example of a full device).
    """

    devices: int
    assumption: str
    price: float | None
    misfit: str
    draws: Draws

    def seconds(self, batch_sizes: Floats) -> Floats:
        """Returns draws of the seconds of a step at global batch sizes, [d, n].

        They are shuffled, since they are independent of draws of K*.
        """
        order = np.random.default_rng(0).permutation(len(self.draws.scale))
        return self.draws.steps(self.devices / batch_sizes)[order]


def step_time_model(table: pd.DataFrame, devices: int) -> StepTimes:
    """Returns the model of step times on N devices, from a table of step times.

    Rows that were measured on N devices are used if they have three batch sizes: these
    include the cost of communication. Otherwise the rows on the fewest devices with
    three are used, and exchanging gradients is assumed to take no time.

    Raises:
        UserError: fewer than three batch sizes on N devices and on any fewer, or a
            value that is not allowed.
    """
    check_whole("devices", devices)
    table = checked_step_times(table)
    enough = measured_devices(table)
    if not enough or enough[0] > devices:
        sizes = table.groupby("devices")["batch_size"].nunique()
        found = [f"{n} batch sizes on {d:g} device(s)" for d, n in sizes.items()]
        raise UserError(
            f"the table of step times has {', '.join(found) or 'no rows'}; for "
            f"{devices} device(s) it needs {MINIMUM_SIZES} on that many or fewer."
        )
    measured = devices if devices in enough else enough[0]
    assumption = f"Step times were measured on {measured} device(s)"
    if devices != measured:
        assumption += (
            f"; {devices} devices are assumed to share a batch evenly and to exchange "
            "gradients in no time, so real ones are slower"
        )
    used = table[table["devices"] == measured].sort_values(["batch_size", "seconds"])
    share = used["batch_size"].to_numpy(np.float64) / measured
    seconds = used["seconds"].to_numpy(np.float64)
    prices = np.unique(used.get(PRICE, []))
    if len(prices) > 1:
        raise UserError(
            f"the table of step times has prices from {prices[0]:g} to {prices[-1]:g} "
            f"for {measured} device(s): give one price, of an hour of all of them."
        )
    price = float(prices[0] / measured * devices) if len(prices) else None
    law = posteriors([Observations.of(1 / share, seconds)])[0].draws(DRAWS)
    misfit = _misfit(used, np.median(law.steps(1 / share), axis=0))
    return StepTimes(devices, f"{assumption}.", price, misfit, law)


def measured_devices(table: pd.DataFrame) -> list[int]:
    """Returns the numbers of devices with three batch sizes or more, ascending."""
    sizes = checked_step_times(table).groupby("devices")["batch_size"].nunique()
    return [int(n) for n in sizes.index[sizes >= MINIMUM_SIZES]]


def _misfit(used: pd.DataFrame, expected: Floats) -> str:
    """Returns how seconds, by ascending batch size, contradict what is expected.

    A time that is repeated counts each time, as two kinds of devices may be in a table.
    """
    sizes, seconds = used["batch_size"].to_numpy(), used["seconds"].to_numpy(np.float64)
    most = np.maximum.accumulate(seconds)
    off = np.maximum(most / seconds, np.exp(np.abs(np.log(seconds / expected))))
    at = int(np.argmax(off))
    if off[at] <= MISFIT:
        return ""
    return (
        f"a step takes {number(seconds[at])} s at batch size {sizes[at]:g}, up to "
        f"{number(most[at])} s at smaller ones, and by latency and throughput "
        f"{number(expected[at])} s: measure step times again, or at more sizes"
    )
