"""How often the log and the states of a running study are saved."""

from __future__ import annotations

import time

SNAPSHOT_SECONDS = 30.0
"""Seconds of work that a kill may cost; more where states are large: SNAPSHOT_SHARE."""
SNAPSHOT_SHARE = 0.05
"""Largest share of the time that is spent on saving, while slots may wait."""
SNAPSHOT_LIMIT = 600.0
"""Longest time without saving, in seconds, however long the last saving took."""


class SavingTimes:
    """The times of saving: SNAPSHOT_SECONDS apart for the log, and at least for states.

    States are saved later where that takes more than SNAPSHOT_SHARE of the time, at the
    latest after SNAPSHOT_LIMIT.
    """

    def __init__(self) -> None:
        self._begun = self._log_at = self._states_at = time.monotonic()
        self._took = 0.0

    def due(self, *, force: bool = False) -> tuple[bool, bool]:
        """Returns whether to write the log now, and whether to save the states too."""
        self._begun = now = time.monotonic()
        with_log = force or now - self._log_at >= SNAPSHOT_SECONDS
        if with_log:
            self._log_at = now
        apart = min(max(SNAPSHOT_SECONDS, self._took / SNAPSHOT_SHARE), SNAPSHOT_LIMIT)
        return with_log, force or (with_log and now - self._states_at >= apart)

    def saved(self) -> None:
        """Notes that the states that were due are saved."""
        self._log_at = self._states_at = time.monotonic()
        self._took = self._states_at - self._begun
