"""Signals and requests that make a run save and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Interrupted(Exception):
    """A run has saved everything and stopped; the same command continues it.

    The exit code of a command that raises this is 75.
    """


class StopRequest:
    """A request to save and stop, made by a signal or by `set`.

    A second Ctrl-C stops at once. `signal_name` is the first signal or name, or None.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal_name: str | None = None

    def __call__(self) -> bool:
        """Returns whether a stop was requested."""
        return self._event.is_set()

    def set(self, name: str = "request") -> None:
        """Requests a stop; `name` says what asks for it."""
        self.signal_name = self.signal_name or name
        self._event.set()

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Listens for SIGNALS while the block runs; main thread only.

        SIGHUP stays ignored in a process that was started by `nohup`.
        """
        before = {number: signal.getsignal(number) for number in SIGNALS}
        if before[signal.SIGHUP] == signal.SIG_IGN:
            del before[signal.SIGHUP]

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            if self() and number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            self.set(signal.Signals(number).name)

        for number in before:
            signal.signal(number, on_signal)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
