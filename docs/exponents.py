"""The exponent of c1/B^a + c2 that recorded curves have in common.

Public methods of `Exponents` are names of expressions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

from evidence import Evidence, files, of_distribution
from workloads import estimate

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

_SAME_TRIALS = {"lee2021/rivals": "goal 0.1[59]"}
"""Curves whose trials are those of another curve of the table, to another goal. A fit
takes curves as independent, so that these are left out: of rivals, the goal 0.17 stays,
which both networks have."""


class Exponents:
    """What these tables say of the exponent.

    Args:
        curves_of: returns the curves of a table by name.
    """

    def __init__(self, curves_of: Callable[[str], Mapping[str, Observations]]) -> None:
        self._curves_of = curves_of
        self._exponents = functools.cache(self._exponent)

    def exponent(self) -> Evidence:
        """Returns how far the exponent that recorded curves share lies from 1."""
        about = f"exponent less 1 {files(LAW_TABLES)}"
        return of_distribution(about, LAW_TABLES, self._shared(LAW_TABLES), 0)

    def shared_exponent(self, *without: str) -> Estimate:
        """Returns a of c1/B^a + c2, one for the long curves of LAW_TABLES.

        A residual scale each table; `without` some of them.
        """
        kept = [study for study in LAW_TABLES if study not in without]
        return Estimate.of(self._shared(kept))

    def exponent_of_table(self, study: str) -> Estimate:
        """Returns that of the long curves of one table."""
        return Estimate.of(self._exponents(study))

    def every_goal(self) -> Estimate:
        """Returns that of LAW_TABLES, with the same trials to several goals."""
        found = [self._exponents(study, every_goal=True) for study in LAW_TABLES]
        return Estimate.of(exponent_of_all(found))

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

    def _shared(self, studies: Sequence[str]) -> Distribution:
        return exponent_of_all([self._exponents(study) for study in studies])

    def _exponent(self, study: str, every_goal: bool = False) -> Distribution:
        return exponent_of(self._long(study, every_goal))

    def _long(self, study: str, every_goal: bool = False) -> dict[str, Observations]:
        """Returns the long curves of a table, but those that an earlier table has."""
        same_trials = "^$" if every_goal else _SAME_TRIALS.get(study, "^$")
        earlier = {
            (*curve.high[:3],)
            for other in LAW_TABLES[: LAW_TABLES.index(study)]
            for curve in self._curves_of(other).values()
        }
        return {
            name: curve
            for name, curve in self._curves_of(study).items()
            if curve.batch_sizes >= FEW_POINTS
            and (*curve.high[:3],) not in earlier
            and not re.search(same_trials, name)
        }
