"""Signals that ask a run to save and leave."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Interrupted(Exception):
    """Everything is saved; the same command goes on from here (exit code 75)."""


PARENT_VARIABLE = "DPS_TF_PARENT"
"""Number of the process that started this one as a worker."""


def stop_with_parent(stop: StopRequest, every: float = 1.0) -> None:
    """Asks a worker to stop once the process that started it is gone.

    Does nothing in a process that is no worker.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(every)
        stop.set("the end of the process that started it")

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


class StopRequest:
    """Whether a signal has asked to stop. A second Ctrl-C stops at once.

    Attributes:
        signal_name: the signal that came, or None.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal_name: str | None = None

    def __call__(self) -> bool:
        """Returns whether to stop."""
        return self._event.is_set()

    def set(self, name: str = "request") -> None:
        """Asks to stop."""
        self.signal_name = self.signal_name or name
        self._event.set()

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Listens for SIGNALS while the block runs; main thread only."""
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def heard(number: int, frame: FrameType | None) -> None:
            del frame
            if self() and number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            self.set(signal.Signals(number).name)

        for number in SIGNALS:
            signal.signal(number, heard)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
