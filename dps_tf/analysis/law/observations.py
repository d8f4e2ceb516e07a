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
        low: [n] K* lies above it; NaN where K* is exact.
        high: [n] K* lies at or below it, positive.
    """

    batch_size: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(
        cls,
        batch_size: ArrayLike,
        steps_to_result: ArrayLike,
        bracket_low: ArrayLike | None = None,
    ) -> Observations:
        """Returns checked observations.

        Args:
            batch_size: [n] examples per step.
            steps_to_result: [n] steps.
            bracket_low: [n] the evaluation before, NaN where K* is exact; by default
                everywhere.

        Raises:
            UserError: a value that is not finite or not positive, a bracket that does
                not lie below its K*, or different lengths.
        """
        b = _checked("batch_size", batch_size)
        high = _checked("steps_to_result", steps_to_result)
        if bracket_low is None:
            low = np.full(len(high), np.nan)
        else:
            low = np.asarray(bracket_low, np.float64)
        if not len(b) == len(high) == len(low):
            raise UserError(
                f"batch_size, steps_to_result and bracket_low have {len(b)}, "
                f"{len(high)} and {len(low)} values: give one of each per batch size."
            )
        wrong = (low >= high) | (low < 0)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise UserError(
                f"bracket_low is {low[i]:g} at batch size {b[i]:g}; it must be at "
                f"least 0 and below steps_to_result, {high[i]:g}."
            )
        order = np.argsort(b, kind="stable")
        return cls(b[order], low[order], high[order])

    @classmethod
    def from_results(cls, results: pd.DataFrame) -> Observations:
        """Returns the observations of one curve of a results table.

        Cells without K* or with one of 0, and those whose K* has no lower bound worth
        the name (a bracket that starts at 0 though K* is only bounded), are left out:
        nothing is known of them that a fit could use.

        Args:
            results: rows of `reduce.results` that differ in batch size (and seed) only.
        """
        require(results, ["steps_to_result", "bracket_low", "steps_bound"], "results")
        low = (
            results["bracket_low"]
            .astype("Float64")
            .to_numpy(np.float64, na_value=np.nan)
        )
        known = (results["steps_to_result"] > 0).fillna(False).to_numpy(bool)
        bounded = (results["steps_bound"] != "").to_numpy(bool)
        used = known & ~(bounded & (low == 0))
        rows = results.loc[used]
        return cls.of(
            rows["batch_size"].to_numpy(np.float64),
            rows["steps_to_result"].astype(np.float64).to_numpy(),
            low[used],
        )

    def __len__(self) -> int:
        return len(self.batch_size)

    @property
    def is_exact(self) -> NDArray[np.bool_]:
        """Which steps-to-result have no bracket, [n]."""
        return np.isnan(self.low)

    @property
    def middle(self) -> Floats:
        """The middle of each bracket, or K* itself where it is exact, [n]."""
        return np.where(self.is_exact, self.high, (self.low + self.high) / 2)

    @property
    def batch_sizes(self) -> int:
        """The number of distinct batch sizes."""
        return len(np.unique(self.batch_size))


def _checked(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        raise UserError(
            f"{name} is {array[int(np.argmax(wrong))]:g} in row "
            f"{int(np.argmax(wrong)) + 1}; it must be a positive number."
        )
    return array
