"""Recorded curves of dense networks, and the regimes that each of them shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dps_tf.analysis.fit_table import observations_by_curve, read_table
from dps_tf.analysis.law import Estimate, LawFit, Observations, joinable, misfits
from dps_tf.analysis.wording import with_interval

TOLERANCE = 0.2
"""Of K* beside c1/B, or c2, within which a regime holds."""
DENSE = {
    "lee2021/mnist_reproduction": "SGD, sparsity 0|Nesterov, 0$",
    "lee2021/mnist_sgd_sparsity": "sparsity 0$",
    "lee2021/rivals": "dense, goal 0.17",
    "optimizers/fashion_mnist_fc": "",
    "optimizers/text_transformer": "",
    "shallue2019/cifar_10_optimizers": "",
    "shallue2019/mnist_fc_ghosts": "search",
    "shallue2019/mnist_fc_sizes": "",
    "shallue2019/mnist_optimizers": "",
    "shallue2019/mnist_subsets": "",
    "shallue2019/text_networks": "",
}
"""Recorded searches, and which of their curves are of dense, plainly updated networks.

Left out are studies that are not finished, rates that are not searched, and curves made
of the trials of another table (no delay, H = 1)."""


_SAME_TRIALS = {"lee2021/rivals": "goal 0.1[59]"}
"""Curves of trials that other curves of the table have, to another goal (of rivals, the
goals 0.15 and 0.19 beside 0.17). A fit takes its curves as independent."""
T = TypeVar("T")


@dataclass(frozen=True)
class Curve:
    """One of these curves.

    Attributes:
        name: the table, and the curve in it.
        end: c1/c2, with open ends.
        sizes: the least and the largest batch size.
        averaged: c1/c2 averaged over the exponent, where `fit` says to take that.
    """

    name: str
    end: Estimate
    sizes: tuple[float, float]
    averaged: Estimate | None = None

    @property
    def is_open(self) -> bool:
        """Whether an end of the interval is open."""
        return not 0 < self.end.low <= self.end.high < float("inf")

    @property
    def has_regimes(self) -> bool:
        """Whether it was measured within TOLERANCE of c1/B and of c2.

        That holds at both ends of the interval of c1/c2.
        """
        return self._has_regimes(self.end)

    @property
    def has_averaged_regimes(self) -> bool:
        """Whether it was by the c1/c2 that `fit` says to take."""
        return self._has_regimes(self.averaged or self.end)

    def _has_regimes(self, end: Estimate) -> bool:
        least, largest = self.sizes
        return TOLERANCE * end.low > least and end.high / TOLERANCE < largest


def is_dense(study: str, curve: str) -> bool:
    """Returns whether a curve of a table is one of these."""
    return study in DENSE and re.search(DENSE[study], curve) is not None


def independent(study: str, curves: Mapping[str, T], of: str) -> dict[str, T]:
    """Returns the curves that can be in one fit with those of a name such as `of`."""
    same = re.compile(_SAME_TRIALS.get(study, "(?!)"))
    is_same = bool(same.search(of))
    return {n: c for n, c in curves.items() if bool(same.search(n)) == is_same}


def fitted_curves(path: Path) -> dict[str, Observations]:
    """Returns the curves of a table that a joint fit can have."""
    return joinable(observations_by_curve(read_table(path), seeds_together=True))


def refuses_law(exponent: Estimate) -> bool:
    """Returns whether the interval of an exponent leaves 1 out."""
    return not exponent.low <= 1 <= exponent.high


def averaged(fit: LawFit) -> Estimate | None:
    """Returns c1/c2 averaged over the exponent, where `fit` says to take that."""
    return fit.critical_averaged if "exponent" in misfits(fit) else None


def estimate(shown: Estimate) -> str:
    """Returns a value with its interval; where an end is open, the bound alone."""
    return with_interval(shown.value, shown.low, shown.high, digits=3)


def plain_name(curve: str) -> str:
    """Returns a curve's name without the column that its axis stands in."""
    return re.sub(r"^(workload\.fixed\.|optimizer |workload )", "", curve)
