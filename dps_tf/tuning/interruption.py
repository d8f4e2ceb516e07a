"""How a run is asked to save and leave, and the worker processes that share a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
RUN_AGAIN = 75
PARENT_VARIABLE = "DPS_TF_PARENT"
"""Number of the process that started this one as a worker."""
_MAX_RESTARTS = 20
"""How often a worker which was killed is started again, over all workers."""
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 15.0
"""How long workers may take to save and leave before they are killed."""


class Interrupted(Exception):
    """Everything is saved; the same command goes on from here (exit code 75)."""


class StopRequest:
    """Whether a signal has asked to stop, and which. A second Ctrl-C stops at once."""

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


def stop_with_parent(stop: StopRequest, every: float = 1.0) -> None:
    """Asks a worker, if this is one, to stop once its parent process is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(every)
        stop.set("the end of the process that started it")

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA names them."""
    # Not asked of TensorFlow, which would take hold of a device in the parent.
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip() not in ("", "-1")]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i, _ in enumerate(folder.iterdir())] if folder.exists() else []


def run_workers(command: Sequence[str], workers: int, stop: StopRequest) -> int:
    """Runs the command in N processes and returns the exit code of them all.

    A worker that was killed is started again, _MAX_RESTARTS times in all. Each is
    pinned to one GPU where there are several. When this process is asked to stop it
    asks the workers to; when it dies they stop by themselves.
    """
    running = {number: _start(command, number) for number in range(workers)}
    codes: dict[int, int] = {}
    restarts = 0
    try:
        while running:
            if stop():
                return _stop_all(list(running.values()))
            time.sleep(_POLL_SECONDS)
            for number, process in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[number]
                if code < 0 and restarts < _MAX_RESTARTS:
                    restarts += 1
                    print(f"worker {number} was killed; it is started again.")
                    running[number] = _start(command, number)
                else:
                    codes[number] = code
    finally:
        _stop_all(list(running.values()))
    return _joint_code(list(codes.values()))


def _joint_code(codes: Sequence[int]) -> int:
    """Returns the code that tells the user most: a mistake, a defect, finished."""
    # A worker leaves with 75 while others still run cells, and with 0 only after it has
    # seen every cell finished: one 0 speaks for the sweep.
    for code in (2, 1, 0):
        if code in codes:
            return code
    return RUN_AGAIN


def _start(command: Sequence[str], number: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    gpus = visible_gpus()
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    return subprocess.Popen(command, env=environment)


def _stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Asks workers to save and leave, and kills those that do not; returns 75."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return RUN_AGAIN
