"""The other workers of a cell, as a driver sees them; see `sharing` for real ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Company(Protocol):
    """The other workers of a cell, as a driver sees them.

    Attributes:
        is_shared: whether there may be others.
    """

    is_shared: bool

    def news(self) -> set[int]:
        """Returns the trials of which others have told something new."""

    def tell(self) -> None:
        """Lets the others know at once what is known here."""

    def take(self, trial: int) -> bool:
        """Returns whether this worker may run a trial; look at the news after it."""

    def rest(self, idle: Iterable[int]) -> None:
        """Is told which trials could be run now and are not; may let some go."""

    def starve(self) -> None:
        """Is told that there is nothing to run; waits a moment."""


class Alone:
    """The company of a worker that has the cell for itself: nobody."""

    is_shared = False

    def news(self) -> set[int]:
        """Returns nothing."""
        return set()

    def tell(self) -> None:
        """Does nothing."""

    def take(self, trial: int) -> bool:
        """Returns True."""
        del trial
        return True

    def rest(self, idle: Iterable[int]) -> None:
        """Does nothing."""

    def starve(self) -> None:
        """Never happens: what is pending can be run."""
        raise RuntimeError("nothing can be run although the study is not decided")
