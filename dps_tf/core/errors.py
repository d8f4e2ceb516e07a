"""A mistake that the user can correct, told in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can correct.

    The message is one sentence that names the value, what was allowed and what to do;
    commands print it without a traceback and exit with code 2.
    """


class GroupLost(UserError):
    """Another process that trains the same batches is gone; all have to start again.

    Commands exit with 75: run again.
    """


def near_matches(name: str, known: Iterable[str]) -> str:
    """Returns the tail of an error about an unknown name: near matches, then all."""
    names = sorted(map(printable, known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{guess}known: {', '.join(names) if names else 'none'}"


def printable(text: str) -> str:
    r"""Returns a text whose characters that steer a terminal are shown as escapes.

    Lines stay lines.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def on_one_line(error: object, longest: int = 200) -> str:
    """Returns what an error says as a printable clause on one line, without a stop."""
    text = printable(" ".join(str(error).split()))
    return (text if len(text) <= longest else f"{text[:longest]}...").rstrip(".")
