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
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{guess}known: {', '.join(names) if names else 'none'}"
