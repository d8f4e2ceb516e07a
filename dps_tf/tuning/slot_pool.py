"""Which study has which slots of a cluster: a pool from which studies lease slots.

Studies that began earlier go first. A study says how many trials it could run now; what
it does not need is lent to the next one, and goes back when the earlier one needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection


class SlotPool:
    """Slots by number, and the studies that lease them. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[int] = []
        self._holder: dict[int, str] = {}
        self._wanted: dict[str, int] = {}

    def add(self, slot: int) -> None:
        """Takes in a slot that can be leased from now on."""
        with self._lock:
            self._slots.append(slot)

    def remove(self, slot: int) -> None:
        """Forgets a slot that is lost or leaving, whoever has it."""
        with self._lock:
            if slot in self._slots:
                self._slots.remove(slot)
            self._holder.pop(slot, None)

    def enter(self, study: str, wanted: int) -> None:
        """Lets a study lease slots, after those that came before it."""
        with self._lock:
            self._wanted[study] = wanted

    def leave(self, study: str) -> None:
        """Takes back all that a study has."""
        with self._lock:
            self._wanted.pop(study, None)
            self._holder = {s: who for s, who in self._holder.items() if who != study}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def spare(self) -> int:
        """Slots that no study wants now."""
        with self._lock:
            return max(0, len(self._slots) - sum(self._wanted.values()))

    def lease(self, study: str, busy: Collection[int], wanted: int) -> list[int]:
        """Returns the slots of a study in which nothing runs.

        Args:
            study: that has entered.
            busy: its slots in which a trial runs; these are never taken away.
            wanted: trials that it could run now, those that run included.
        """
        with self._lock:
            self._wanted[study] = wanted
            granted = self._granted(study)
            mine = [slot for slot in self._slots if self._holder.get(slot) == study]
            idle = [slot for slot in mine if slot not in busy]
            while idle and len(mine) > granted:
                returned = idle.pop()
                mine.remove(returned)
                del self._holder[returned]
            for slot in self._slots:
                if len(mine) >= granted:
                    break
                if slot not in self._holder:
                    self._holder[slot] = study
                    mine.append(slot)
                    idle.append(slot)
            return idle

    def _granted(self, study: str) -> int:
        """Returns how many slots a study may have, those before it served first."""
        left = len(self._slots)
        for name, wanted in self._wanted.items():
            if name == study:
                return min(wanted, left)
            left -= min(wanted, left)
        return 0
