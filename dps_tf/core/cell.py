"""One place of the grid that a sweep measures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dps_tf.core.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9._-]+")
DENSE = "none"
"""The sparsity method of cells that prune nothing."""


def checked_name(kind: str, name: str) -> str:
    """Returns the name if it can be a path, else raises UserError."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise UserError(
            f"{kind} {name!r} cannot be part of a path: use letters, digits, '.', '_' "
            "and '-' only."
        )
    return name


@dataclass(frozen=True, order=True)
class Cell:
    """(workload, optimizer, sparsity method, study seed, batch size, sparsity).

    Attributes:
        workload: name of the data set and network.
        optimizer: name of the optimizer family.
        sparsity_method: `none` if and only if the sparsity is 0.
        seed: study seed, at least 0.
        batch_size: global batch size, at least 1.
        sparsity: zero fraction of the prunable parameters, in [0, 1).
    """

    workload: str
    optimizer: str
    sparsity_method: str
    seed: int
    batch_size: int
    sparsity: float

    def __post_init__(self) -> None:
        checked_name("workload", self.workload)
        checked_name("optimizer", self.optimizer)
        checked_name("sparsity method", self.sparsity_method)
        _whole("batch size", self.batch_size, 1)
        _whole("seed", self.seed, 0)
        check_sparsity(self.sparsity)
        object.__setattr__(self, "sparsity", float(self.sparsity))

    @property
    def name(self) -> str:
        """A unique name that is a safe folder name."""
        return (
            f"{self.workload}-{self.optimizer}-{self.sparsity_method}"
            f"-seed{self.seed}-b{self.batch_size}-s{self.sparsity!r}"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the identity columns of the result tables."""
        return {
            "workload": self.workload,
            "optimizer": self.optimizer,
            "sparsity_method": self.sparsity_method,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "sparsity": self.sparsity,
        }


def check_sparsity(sparsity: object) -> None:
    """Raises UserError unless this is a number in [0, 1)."""
    is_number = isinstance(sparsity, (int, float)) and not isinstance(sparsity, bool)
    if not is_number or not 0 <= sparsity < 1:  # type: ignore[operator]
        raise UserError(
            f"sparsity {sparsity!r} is outside of [0, 1): give the fraction of "
            "parameters to remove, for example 0.9."
        )


def _whole(kind: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(
            f"{kind} {value!r} is not a whole number of at least {least}: correct it "
            "in the gin file."
        )
