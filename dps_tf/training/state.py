"""What a trial is between two slices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TrialState:
    """Everything that a trial's future depends on, beside its seeds and point.

    Attributes:
        step: updates made.
        arrays: the variables of the program in its own order: weights, optimizer
            slots, carrier variables, and what the last evaluation got wrong.
    """

    step: int
    arrays: tuple[np.ndarray, ...]

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        return sum(array.nbytes for array in self.arrays)
