"""The exponent of c1/B^a + c2 that recorded curves have in common.

Public methods of `Exponents` are names of expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from evidence import Evidence, files, of_distribution
from workloads import estimate, independent

from dps_tf.analysis.law import (
    FEW_POINTS,
    Distribution,
    Estimate,
    Observations,
    exponent_of,
    exponent_of_all,
)
from dps_tf.analysis.wording import and_list

LAW_TABLES = (
    "lee2021/mnist_reproduction",
    "lee2021/rivals",
    "optimizers/fashion_mnist_fc",
    "optimizers/text_transformer",
    "parallelism/delay",
    "parallelism/local_sgd",
    "shallue2019/mnist_fc_sizes",
    "shallue2019/text_networks",
)
"""Recorded searches with curves of FEW_POINTS or more K* that are no bounds. Unfinished
ones, and those whose K* are those of another table, are left out."""


class Exponents:
    """What these tables say of the exponent.

    Args:
        curves_of: returns the curves of a table by name.
    """

    def __init__(self, curves_of: Callable[[str], Mapping[str, Observations]]) -> None:
        self._curves_of = curves_of
        self._exponents = functools.cache(self._exponent)

    def exponent(self, goal: str = "") -> Evidence:
        """Returns how far the exponent that recorded curves share lies from 1."""
        about = f"exponent less 1 {files(LAW_TABLES)}"
        return of_distribution(about, LAW_TABLES, self._shared(LAW_TABLES, goal))

    def shared_exponent(self, *without: str, goal: str | None = "") -> Estimate:
        """Returns a of c1/B^a + c2, one for the long curves of LAW_TABLES.

        A residual scale each table; `without` some of them. Of the same trials to
        several goals, curves to a `goal` are taken, or all as if independent (None).
        """
        kept = [study for study in LAW_TABLES if study not in without]
        return Estimate.of(self._shared(kept, goal))

    def exponent_of_table(self, study: str, goal: str | None = "") -> Estimate:
        """Returns that of the long curves of one table."""
        return Estimate.of(self._exponents(study, goal))

    def refusing(self) -> str:
        """Returns the tables whose own exponent excludes 1, with it."""
        found = {study: self.exponent_of_table(study) for study in LAW_TABLES}
        return and_list(
            [
                f"{study.rpartition('/')[2]}, {estimate(each)},"
                for study, each in found.items()
                if not each.low <= 1 <= each.high
            ]
        )

    def curves(self) -> int:
        """Returns how many curves these are."""
        return sum(len(self._long(study)) for study in LAW_TABLES)

    def _shared(self, studies: Sequence[str], goal: str | None) -> Distribution:
        return exponent_of_all([self._exponents(study, goal) for study in studies])

    def _exponent(self, study: str, goal: str | None) -> Distribution:
        return exponent_of(self._long(study, goal))

    def _long(self, study: str, goal: str | None = "") -> dict[str, Observations]:
        """Returns the long curves of a table, but those that an earlier table has."""
        earlier = {
            (*curve.high[:3],)
            for other in LAW_TABLES[: LAW_TABLES.index(study)]
            for curve in self._curves_of(other).values()
        }
        curves = self._curves_of(study)
        kept = curves if goal is None else independent(study, curves, goal)
        return {
            name: curve
            for name, curve in kept.items()
            if curve.batch_sizes >= FEW_POINTS and (*curve.high[:3],) not in earlier
        }
