"""A cell is one place of the grid that a sweep measures."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from dps_tf.core.errors import UserError, check_whole, is_number

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_AXIS = re.compile(r"(workload|pruning)(\.[A-Za-z_]\w*){1,2}", re.ASCII)
DENSE = "none"
"""The sparsity method of cells that prune nothing."""


def checked_name(kind: str, name: str) -> str:
    """Returns a name that can be a part of a path, else raises UserError."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise UserError(
            f"{kind} {name!r} cannot be part of a path: use letters, digits, '.', '_' "
            "and '-' only."
        )
    return name


@dataclass(frozen=True)
class Curve:
    """The cells that are equal in all but the batch size and the seed.

    `precision` and `goal` are empty where all curves have the same; `Cell` describes
    the other attributes. A label is made where a curve is drawn.
    """

    workload: str
    optimizer: str
    sparsity_method: str
    sparsity: float
    axes: tuple[tuple[str, str], ...] = ()
    precision: str = ""
    goal: str = ""

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Curve:
        """Returns the curve of a row of a table that has the columns of a cell.

        >>> row = Cell("mlp", "sgd", "none", 0, 64, 0.0).to_json()
        >>> Curve.of({**row, "goal": "error < 0.1"}).goal
        'error < 0.1'
        """
        texts = {name: row[name] for name in cell_key(row) if is_axis(name)}
        # A cell without the axis has an empty text, which a CSV file reads as NaN.
        axes = tuple((k, str(v)) for k, v in texts.items() if v == v and v != "")
        return cls(
            workload=str(row["workload"]),
            optimizer=str(row["optimizer"]),
            sparsity_method=str(row["sparsity_method"]),
            sparsity=float(row["sparsity"]),
            axes=axes,
            precision=str(row.get("precision", "")),
            goal=str(row.get("goal", "")),
        )

    @property
    def values(self) -> dict[str, str | float]:
        """The attributes by name, and each further axis by its name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        axes = named.pop("axes")
        return {**named, **dict(axes)}

    @property
    def is_pruned(self) -> bool:
        """Whether the networks are pruned."""
        return self.sparsity_method != DENSE


@dataclass(frozen=True, order=True)
class Cell:
    """A cell of a sweep; its fields except `axes` are the first columns of tables.

    Attributes:
        workload: name of the data set and network.
        optimizer: name of the optimizer family.
        sparsity_method: `none` if and only if the sparsity is 0.
        seed: study seed, at least 0.
        batch_size: global batch size, at least 1.
        sparsity: zero fraction of the prunable parameters, in [0, 1).
        axes: further axes in alphabetical order, each the gin name of a value of the
            workload or of pruning, and the text of that value (`axis_text`).
    """

    workload: str
    optimizer: str
    sparsity_method: str
    seed: int
    batch_size: int
    sparsity: float
    axes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        checked_name("workload", self.workload)
        checked_name("optimizer", self.optimizer)
        checked_name("sparsity method", self.sparsity_method)
        check_whole("batch_size", self.batch_size)
        check_whole("seed", self.seed, 0)
        check_sparsity(self.sparsity)
        object.__setattr__(self, "sparsity", float(self.sparsity) + 0.0)  # no -0.0
        for name, _ in self.axes:
            if not is_axis(name):
                raise UserError(
                    f"axis {name!r} is no value of a workload or of pruning: write for "
                    "example 'workload.network_arguments.width'."
                )
        object.__setattr__(self, "axes", tuple(sorted(self.axes)))

    @property
    def name(self) -> str:
        """A unique name that is a safe folder name."""
        axes = "".join(f"-{axis_part(name, text)}" for name, text in self.axes)
        return (
            f"{self.workload}-{self.optimizer}-{self.sparsity_method}"
            f"-seed{self.seed}-b{self.batch_size}-s{self.sparsity!r}{axes}"
        )

    @property
    def curve(self) -> Curve:
        """The curve that the cell is a point of.

        >>> cell = Cell("mlp", "sgd", "none", 0, 64, 0.0)
        >>> cell.curve == Cell("mlp", "sgd", "none", 1, 128, 0.0).curve
        True
        """
        return Curve.of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns the identity columns of the result tables, for `from_json`."""
        return {**{name: getattr(self, name) for name in CELL_KEY}, **dict(self.axes)}

    @classmethod
    def from_json(cls, value: Mapping[Any, Any]) -> Cell:
        """Returns the cell of `to_json`, or of a row of a table with other columns.

        Axes with an empty text are left out: the cell does not have them.
        """
        axes = [(k, value[k]) for k in cell_key(value) if is_axis(k) and value[k] != ""]
        return cls(**{name: value[name] for name in CELL_KEY}, axes=tuple(axes))


CELL_KEY = tuple(field.name for field in fields(Cell) if field.name != "axes")
"""The columns that name a cell without further axes; they come first in every table."""
CELL_TYPES = {name: get_type_hints(Cell)[name] for name in CELL_KEY}
"""The types of CELL_KEY: str, int or float. Columns of further axes hold text."""


def is_axis(column: object) -> bool:
    """Returns whether a column is a further axis, named by its gin name."""
    return isinstance(column, str) and bool(_AXIS.fullmatch(column))


def cell_key(columns: Iterable[object]) -> list[str]:
    """Returns the columns of a table that name a cell: CELL_KEY, then sorted axes.

    An axis is empty text in the rows of cells that do not have it.
    """
    return [*CELL_KEY, *sorted(str(name) for name in columns if is_axis(name))]


def axis_text(value: object) -> str:
    """Returns the text of an axis's value in tables: `32`, `0.1`, `cosine`.

    Raises UserError unless it is a text, number, flag, None, or list of such.
    """
    if isinstance(value, str) and value:
        return value
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        text = '""'
    if text == '""':
        raise UserError(
            f"{value!r} cannot be the value of an axis: give a number, a text that is "
            "not empty, or a list of such."
        )
    return text


def axis_part(name: str, text: str) -> str:
    """Returns an axis and its value as part of a path, different for each value."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "_", text)[:40]
    if plain != text:
        plain += f"_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{name}-{plain}"


def check_sparsity(sparsity: object) -> None:
    """Raises UserError unless a sparsity is a number in [0, 1)."""
    if not is_number(sparsity) or not 0 <= sparsity < 1:
        raise UserError(
            f"sparsity {sparsity!r} is outside of [0, 1): give the fraction of "
            "parameters to remove, for example 0.9."
        )
