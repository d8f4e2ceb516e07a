"""Registries hold what gin files can name, and the arguments that each entry reads.

An entry declares what it reads as a mapping of names to `Argument`. So a value that is
missing, unknown or outside of its range is refused before anything is trained.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from dps_tf.core.errors import UserError, is_number, near_matches

Entry = TypeVar("Entry")
Make = TypeVar("Make", bound=Callable[..., Any])


@dataclass(frozen=True)
class Range:
    """The finite numbers between two ends; each end may be left out.

    Attributes:
        low: lower end.
        high: upper end; infinity bounds nothing.
        without_low: whether the lower end is not in the range.
        without_high: whether the upper end is not in the range.
        whole: whether only whole numbers are in the range.
    """

    low: float = 0.0
    high: float = math.inf
    without_low: bool = False
    without_high: bool = False
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        if not is_number(value) or (self.whole and value % 1):
            return False
        above = value > self.low if self.without_low else value >= self.low
        below = value < self.high if self.without_high else value <= self.high
        return above and below

    def encloses(self, low: float, high: float) -> bool:
        """Returns whether every number strictly between two ends is in the range."""
        return self.low <= low and high <= self.high

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a finite number"
        if math.isinf(self.high):
            if math.isinf(self.low):
                return kind
            return f"{kind} {'>' if self.without_low else '>='} {self.low:g}"
        opening = "(" if self.without_low else "["
        closing = ")" if self.without_high else "]"
        kind = kind.replace("finite ", "")
        return f"{kind} in {opening}{self.low:g}, {self.high:g}{closing}"


NOT_NEGATIVE = Range()
POSITIVE = Range(without_low=True)
FRACTION = Range(high=1.0, without_high=True)
"""The range [0, 1), for example of a momentum or a decay."""
SHARE = Range(high=1.0)
"""The range [0, 1], for example of a part of a whole."""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
"""The default of an argument that has to be given."""


@dataclass(frozen=True)
class Argument:
    """A value that an entry reads.

    Attributes:
        default: its value where none is given; REQUIRED if one must be given.
        range: allowed values; None leaves the check to the entry.
    """

    default: Any = REQUIRED
    range: Range | None = None

    def __post_init__(self) -> None:
        allowed, default = self.range, self.default
        if allowed is None or default is REQUIRED or default in allowed:
            return
        # An infinite default bounds nothing, and no value is given as infinity.
        if default != allowed.high or allowed.without_high:
            raise UserError(
                f"the default of an argument is {default!r}, and it must be {allowed}: "
                "change the default or the range."
            )


Reads = Mapping[str, Argument]


def arguments_of(function: Callable[..., Any], handed: int) -> Reads | None:
    """Returns the arguments of a function, without the first `handed` ones.

    Returns None if it takes any (`**arguments`). The signature has the defaults.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {
        parameter.name: Argument(
            REQUIRED if parameter.default is parameter.empty else parameter.default
        )
        for parameter in parameters[handed:]
    }


def resolve(owner: str, reads: Reads, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each argument that is read, its default where none is given.

    Raises UserError for a name that is not read or is missing, and for a value outside
    of its range. `owner` names the reader in messages: `optimizer 'momentum'`.
    """
    check_names(owner, reads, given)
    for name, value in given.items():
        allowed = reads[name].range
        if allowed is not None and value not in allowed:
            raise UserError(f"{name} of {owner} must be {allowed}, not {value!r}")
    return {name: given.get(name, read.default) for name, read in reads.items()}


def check_names(owner: str, reads: Reads, given: Iterable[str]) -> None:
    """Raises UserError for a name that is not read, or a missing required one."""
    names = list(given)
    for name in names:
        if name not in reads:
            raise UserError(
                f"{owner} reads nothing named {name!r}: {near_matches(name, reads)}"
            )
    missing = [
        name
        for name, argument in reads.items()
        if argument.default is REQUIRED and name not in names
    ]
    if missing:
        raise UserError(
            f"{owner} needs {', '.join(missing)}: got {', '.join(names) or 'nothing'}"
        )


def _place(entry: object) -> tuple[str, str]:
    """Returns where an entry is defined; a lambda and a value are nowhere."""
    name = getattr(entry, "__qualname__", "<")
    return getattr(entry, "__module__", ""), str(id(entry)) if "<" in name else name


class Registry(Generic[Entry]):
    """The entries of one kind by name.

    An unknown name with dots names a function in a module, which is imported.

    Attributes:
        kind: name of one entry in messages, such as `data set`.
        handed: number of arguments with which functions are called, besides what a gin
            file gives; None if entries are no such functions.
        replaced: number of entries of all registries that were defined again.
    """

    replaced: ClassVar[int] = 0

    def __init__(self, kind: str, handed: int | None = None):
        self.kind = kind
        self.handed = handed
        self._entries: dict[str, Entry] = {}
        self._reads: dict[str, Reads | None] = {}

    def register(self, name: str, entry: Entry, reads: Reads | None = None) -> None:
        """Adds an entry and the arguments that it reads; None stands for any arguments.

        An entry may be registered again, also when its definition was run again, as in
        a cell of a notebook; UserError if another entry has the name.
        """
        for read, argument in (reads or {}).items():
            if not isinstance(argument, Argument):
                raise UserError(
                    f"{self.kind} {name!r} reads {read!r}: {argument!r}; it must be an "
                    "Argument, such as Argument(0.1)."
                )
        held = self._entries.setdefault(name, entry)
        if _place(held) != _place(entry):
            raise UserError(
                f"a {self.kind} named {name!r} is registered already: choose another "
                "name"
            )
        Registry.replaced += held is not entry
        self._entries[name] = entry
        self._reads[name] = reads

    def names(self) -> tuple[str, ...]:
        """Returns the registered names, in alphabetical order."""
        return tuple(sorted(self._entries))

    def __getitem__(self, name: str) -> Entry:
        """Returns an entry; UserError with near matches for an unknown name."""
        if name not in self._entries and "." in str(name) and self.handed is not None:
            entry = self._imported(name)
            self.register(name, entry, arguments_of(entry, self.handed))
        if name not in self._entries:
            near = near_matches(str(name), self._entries)
            raise UserError(
                f"{self.kind} {name!r} is unknown: {near}; a module of your own that "
                "registers it is named with --import, and in Python it is given again."
            )
        return self._entries[name]

    def _imported(self, path: str) -> Any:
        module, _, name = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except Exception as error:
            raise UserError(
                f"{self.kind} {path!r} cannot be imported ({error}): run from the "
                "folder of its module, or put that on PYTHONPATH."
            ) from error

    def reads(self, name: str) -> Reads | None:
        """Returns the arguments that an entry reads; None if it takes any."""
        self[name]
        return self._reads[name]

    def resolve(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments to call an entry with; see `resolve` for errors."""
        reads = self.reads(name)
        if reads is None:
            return dict(given)
        return resolve(f"{self.kind} {name!r}", reads, given)


def remembered(size: int) -> Callable[[Make], Make]:
    """Makes a function keep its latest results by its arguments, which are JSON values.

    The function gets the arguments as JSON has them, with lists in place of tuples.
    Nothing is kept once an entry of a registry is defined again.
    """

    def decorated(make: Make) -> Any:
        @functools.lru_cache(maxsize=size)
        def of_text(text: str, replaced: int) -> Any:
            del replaced
            return make(*json.loads(text))

        @functools.wraps(make)
        def kept(*arguments: Any) -> Any:
            text = json.dumps(arguments, sort_keys=True, default=dict)
            return of_text(text, Registry.replaced)

        return kept

    return decorated
