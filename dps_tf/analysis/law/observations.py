"""What a fit is given: steps-to-result, each known to lie in its bracket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from dps_tf.analysis.tables import Floats, require
from dps_tf.core.errors import UserError


@dataclass(frozen=True)
class Observations:
    """Steps-to-result of one curve, in the order of the batch sizes.

    Attributes:
        batch_size: [n] examples per step, positive.
        low: [n] K* lies above it; NaN where K* is exact, 0 where it is only known not
            to be more than `high`.
        high: [n] K* lies at or below it, positive; infinity where K* is only known to
            be more than `low`.
        noise: [n] octaves, standard deviation of log2 K* that is known beforehand, for
            example from repeats; 0 where nothing is. It adds to the residual scale of
            the fit, in squares, so that noisy cells weigh less.
    """

    batch_size: Floats
    low: Floats
    high: Floats
    noise: Floats

    @classmethod
    def of(
        cls,
        batch_size: ArrayLike,
        steps_to_result: ArrayLike,
        bracket_low: ArrayLike | None = None,
        noise: ArrayLike | None = None,
    ) -> Observations:
        """Returns checked observations.

        Args:
            batch_size: [n] examples per step.
            steps_to_result: [n] steps; infinity where only a lower bound is known.
            bracket_low: [n] the evaluation before, NaN where K* is exact; by default
                everywhere.
            noise: [n] octaves; see the class.

        Raises:
            UserError: a value that is not positive, or not finite without a bracket, a
                bracket that does not lie below its K*, or different lengths.
        """
        b = _checked("batch_size", batch_size)
        high = np.asarray(steps_to_result, np.float64)
        low, spread = np.full(len(high), np.nan), np.zeros(len(high))
        if bracket_low is not None:
            low = np.asarray(bracket_low, np.float64)
        if noise is not None:
            spread = np.nan_to_num(np.asarray(noise, np.float64), nan=0.0)
        if not len(b) == len(high) == len(low) == len(spread):
            raise UserError(
                f"batch_size, steps_to_result, bracket_low and noise have {len(b)}, "
                f"{len(high)}, {len(low)} and {len(spread)} values: give one of each "
                "per batch size."
            )
        _checked("steps_to_result", np.where(np.isinf(high) & (low > 0), 1.0, high))
        wrong = (low >= high) | (low < 0)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise UserError(
                f"bracket_low is {low[i]:g} at batch size {b[i]:g}; it must be at "
                f"least 0 and below steps_to_result, {high[i]:g}."
            )
        if (spread < 0).any() or not np.isfinite(spread).all():
            raise UserError(
                f"noise is {spread[int(np.argmin(spread))]:g}; it must be a number of "
                "octaves of at least 0."
            )
        order = np.argsort(b, kind="stable")
        return cls(b[order], low[order], high[order], spread[order])

    @classmethod
    def from_results(cls, results: pd.DataFrame) -> Observations:
        """Returns the observations of one curve of a results table.

        What is only known as a bound enters as one: a cell that nobody is known to
        have solved, by the steps that were followed; a K* whose best metaparameters
        lie at an end of their range, from above, since a wider range may give less.
        Cells with a K* of 0 and those in which every trial diverged are left out. A
        column `noise` (octaves), as of `repeats.with_noise`, makes noisy cells weigh
        less.

        Args:
            results: rows of `reduce.results` that differ in batch size (and seed) only.
        """
        require(results, ["steps_to_result", "bracket_low", "steps_bound"], "results")
        steps = _floats(results, "steps_to_result")
        low = _floats(results, "bracket_low")
        if "at_boundary" in results.columns:
            # A column of empty cells is read as numbers.
            ends = [pd.notna(text) and text != "" for text in results["at_boundary"]]
            low = np.where(np.array(ends, bool) & ~np.isnan(steps), 0.0, low)
        bounded = (results["steps_bound"] != "").to_numpy(bool)
        beyond = _followed(results)
        is_beyond = np.isnan(steps) & bounded & (beyond > 0)
        used = (steps > 0) | is_beyond
        return cls.of(
            results["batch_size"].to_numpy(np.float64)[used],
            np.where(is_beyond, np.inf, steps)[used],
            np.where(is_beyond, beyond, low)[used],
            _floats(results, "noise")[used] if "noise" in results.columns else None,
        )

    def located(self) -> Observations:
        """Returns those that are bounded on both sides, or exact."""
        kept = ~self.is_bound
        return Observations(
            self.batch_size[kept], self.low[kept], self.high[kept], self.noise[kept]
        )

    def __len__(self) -> int:
        return len(self.batch_size)

    @property
    def is_exact(self) -> NDArray[np.bool_]:
        """Which steps-to-result have no bracket, [n]."""
        return np.isnan(self.low)

    @property
    def middle(self) -> Floats:
        """The middle of each bracket; K* itself if exact; or the bound; [n]."""
        half = np.where(self.is_exact, self.high, (self.low + self.high) / 2)
        return np.where(np.isinf(self.high), self.low, half)

    @property
    def is_bound(self) -> NDArray[np.bool_]:
        """Which steps-to-result are bounded on one side only, [n]."""
        return np.asarray(np.isinf(self.high) | (self.low == 0), np.bool_)

    @property
    def batch_sizes(self) -> int:
        """The number of distinct batch sizes with more than a bound."""
        return len(np.unique(self.batch_size[~self.is_bound]))


def _checked(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        raise UserError(
            f"{name} is {array[int(np.argmax(wrong))]:g} in row "
            f"{int(np.argmax(wrong)) + 1}; it must be a positive number."
        )
    return array


def _floats(results: pd.DataFrame, name: str) -> Floats:
    values = results[name].astype("Float64").to_numpy(np.float64, na_value=np.nan)
    return np.asarray(values, np.float64)


def _followed(results: pd.DataFrame) -> Floats:
    """Returns the evaluation up to which no trial of a cell had met the goal, [n].

    NaN where the table does not say.
    """
    columns = ["steps_low", "step_budget", "evaluation_interval"]
    if not set(columns) <= set(results.columns):
        return np.full(len(results), np.nan)
    low, budget, interval = (_floats(results, name) for name in columns)
    interval = np.maximum(interval, 1)
    last = np.floor(budget / interval) * interval
    return np.where(np.isnan(low), last, low - interval)
