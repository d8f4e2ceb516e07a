"""Which two curves differ in one thing only, so that their ratio has one cause?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dps_tf.analysis.report.curves import Curves, place_of
from dps_tf.core.cell import DENSE

Key = tuple[str, str]
"""(panel, curve)."""


@dataclass(frozen=True)
class _About:
    """What a curve is of, beside its workload and goal."""

    name: str
    optimizer: str
    method: str
    sparsity: float
    precision: str


_THINGS = ("optimizer", "method", "sparsity", "precision")


def effects(curves: Curves, keys: Sequence[Key]) -> list[tuple[str, str]]:
    """Returns pairs (curve, reference) of names that differ in one thing only.

    A sparser curve is compared with the least sparse one of the same optimizer (and
    method, or dense), then an optimizer, a method and a precision each with the first,
    all else equal. Where no two curves are alike enough, all are compared with the
    first.

    Args:
        curves: of the report.
        keys: curves with the same workload and goal, in the order of the report.
    """
    cells = curves.cells.drop_duplicates(["panel", "curve"])
    about = {}
    for row in cells.to_dict("records"):
        key = (str(row["panel"]), str(row["curve"]))
        about[key] = _About(
            place_of(curves, *key),
            str(row["optimizer"]),
            str(row["sparsity_method"]),
            float(row["sparsity"]),
            str(row["precision"]),
        )
    mine = [about[key] for key in keys]
    found = [
        *((one.name, other.name) for one in mine for other in _less_sparse(one, mine)),
        *(
            (one.name, other.name)
            for what in ("optimizer", "method", "precision")
            for one in mine
            for other in _first_with_another(what, one, mine)
        ),
    ]
    return found or [(one.name, mine[0].name) for one in mine[1:]]


def _less_sparse(one: _About, curves: Sequence[_About]) -> list[_About]:
    """Returns the least sparse curve that differs in sparsity, if there is one."""
    alike = [
        other
        for other in curves
        if (other.optimizer, other.precision) == (one.optimizer, one.precision)
        and other.sparsity < one.sparsity
        and other.method in (one.method, DENSE)
    ]
    return sorted(alike, key=lambda other: other.sparsity)[:1]


def _first_with_another(
    what: str, one: _About, curves: Sequence[_About]
) -> list[_About]:
    """Returns the first curve that is alike in all but one thing, if that differs."""
    others = [thing for thing in _THINGS if thing != what]
    alike = [
        other
        for other in curves
        if all(getattr(other, thing) == getattr(one, thing) for thing in others)
    ]
    return alike[:1] if alike[0] is not one else []
