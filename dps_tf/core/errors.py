"""The error that users can correct, and the parts of messages to users."""

from __future__ import annotations

import contextlib
import difflib
import math
import numbers
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

_OF_OTHERS = (
    "site-packages",
    "<frozen",
    sysconfig.get_path("stdlib"),
    str(Path(__file__).parents[1]),
)
"""What is in the names of files that no user wrote."""


class UserError(ValueError):
    """A mistake that the user can correct.

    The message is one sentence that names the value, what was allowed and what to do;
    commands print it without a traceback and exit with code 2.
    """


@contextlib.contextmanager
def own_code(
    what: str, advice: str, kinds: tuple[type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Makes an error of a user's own code a UserError that names its place.

    `kinds`: of errors; `advice`: what to do about them.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not any(p in f.filename for p in _OF_OTHERS)]
        place = (own or frames)[-1]
        raise UserError(
            f"{what} fails with {type(error).__name__}: {on_one_line(error)} "
            f"({place.filename}, line {place.lineno}); {advice}."
        ) from error


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a real number that is finite as a float; no flag is.

    >>> is_number(0.1), is_number(10**400), is_number(True)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # a timedelta64 of NumPy
        return False


def is_whole(value: object, least: int) -> bool:
    """Returns whether a value is a whole number, at least `least` and below 2^63."""
    return is_number(value) and isinstance(value, int) and least <= value < 2**63


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raises UserError unless the value called `name` is a whole number."""
    if not is_whole(value, least):
        most = ", below 2**63" if isinstance(value, int) and value > least else ""
        raise UserError(
            f"{name} is {value!r}; it must be a whole number, at least {least}{most}."
        )


def check_keys(name: str, value: object) -> None:
    """Raises UserError unless all keys inside of a value are texts, as JSON has."""
    entries = value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, Mapping):
        entries = tuple(value.values())
        for key in value:
            if not isinstance(key, str):
                raise UserError(
                    f"{name} holds a dictionary with the key {key!r}; keys must be "
                    f"texts, as records keep no others: write {str(key)!r}."
                )
    for entry in entries:
        check_keys(name, entry)


def whole(name: str, value: object, least: int = 1) -> int:
    """Returns a whole number as an int, also one of NumPy; UserError for others.

    >>> import numpy as np
    >>> whole("devices", np.int64(8))
    8
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        value = int(value)
    check_whole(name, value, least)
    return cast(int, value)


def check_type(name: str, value: Any, kind: type) -> Any:
    """Returns the value called `name`; UserError for one of another type."""
    if isinstance(value, kind):
        return value
    raise UserError(f"{name} is a {type(value).__name__}: give a {kind.__name__}.")


def check_positive(name: str, value: object) -> None:
    """Raises UserError unless the value called `name` is a positive, finite number."""
    if not is_number(value) or value <= 0:
        raise UserError(f"{name} is {value!r}; it must be a positive number.")


def check_known(kind: str, name: object, allowed: Collection[str]) -> None:
    """Raises UserError, with near matches, unless a name is an allowed one."""
    if name not in allowed:
        near = near_matches(str(name), allowed)
        raise UserError(f"{kind} {name!r} is unknown: {near}.")


def near_matches(name: str, allowed: Iterable[str]) -> str:
    """Returns the tail of an error about an unknown name: near matches, then all."""
    names = sorted(map(printable, allowed))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{guess}known: {', '.join(names) if names else 'none'}"


def printable(text: str) -> str:
    r"""Returns a text whose characters that steer a terminal are shown as escapes.

    Ends of lines stay.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def on_one_line(error: object) -> str:
    """Returns the text of an error, at most 200 characters without the full stop."""
    text = printable(" ".join(str(error).split()))
    return (text if len(text) <= 200 else f"{text[:200]}...").rstrip(".")


def duration(seconds: float) -> str:
    """Returns a length of time in its two largest units.

    >>> duration(12.3), duration(754), duration(7260), duration(200_000)
    ('12 s', '12 min 34 s', '2 h 1 min', '2 d 7 h')
    """
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = round(seconds)
    parts: list[str] = []
    for name, size in units:
        amount, left = divmod(left, size)
        if amount or (parts and len(parts) < 2):
            parts.append(f"{amount} {name}")
    kept = [part for part in parts[:2] if not part.startswith("0 ")]
    return " ".join(kept) or "0 s"
