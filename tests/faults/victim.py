"""Forks children that train, to be killed: `python -m tests.faults.victim`.

Importing TensorFlow takes seconds and forking takes milliseconds, so a hundred kills
fit into a minute. Reads one JSON object per line; prints `started <pid>` and, when that
child has ended, `ended <exit code>`, -9 after kill -9. Kinds:

    {"kind": "synthetic", "directory": D, "slots": n, "seconds": s}
        a study of trials that are known beforehand
    {"kind": "train", "arguments": [...]}
        the command dps_tf.train
    {"kind": "command", "command": "status", "arguments": [...], "output": F}
        a command, and the file for what it prints

All take `kill_after`, seconds, `file_limit`, the largest file in bytes, `environment`,
further variables, and `output`, a file for what is printed. One with `background` is
waited for by an order of its own, {"wait": its number}.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from dps_tf.cli.command_line import FINISHED, RUN_AGAIN, USER_ERROR
from dps_tf.core import UserError
from dps_tf.store import StoreError
from tests import interpreter
from tests.core.naive_race import Study, WholeTrial

SNAPSHOT_SECONDS = 0.05
"""Between snapshots, so that kills meet many of them."""

STUDY = Study(0.25, 10, 100, points=10, finishers=3, feasible=True, max_draws=14)
TRIALS = [
    WholeTrial(
        tuple(0.2 if step > 5 + trial % 7 else 0.9 for step in range(10)),
        diverges_at=25 + trial if trial % 4 == 1 else None,
    )
    for trial in range(14)
]


def results(directory: Path) -> dict[str, bytes]:
    """Returns the bytes of every result table, by cell and name."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for name in ("trials.parquet", "curves.parquet")
        for path in sorted(directory.glob(f"cells/*/{name}"))
    }


def logged(directory: Path) -> int:
    """Returns the bytes of all logs; training that is under way adds to them."""
    return sum(path.stat().st_size for path in directory.glob("cells/*/log/*"))


class Victim:
    """The forking process, seen from a test."""

    def __init__(self, orders: TextIO) -> None:
        self._orders = orders

    def start(self, **order: Any) -> int:
        """Starts a child and returns its number."""
        print(json.dumps(order), file=self._orders, flush=True)
        return self._answer("started")

    def end(self) -> int:
        """Waits for the child and returns its exit code."""
        return self._answer("ended")

    def wait(self, child: int) -> int:
        """Waits for a child in the background and returns its exit code."""
        print(json.dumps({"wait": child}), file=self._orders, flush=True)
        return self.end()

    def _answer(self, word: str) -> int:
        line = self._orders.readline().split()
        while word == "started" and line[:1] == ["ended"]:
            # The child of a test that has failed and did not wait for it.
            line = self._orders.readline().split()
        assert line[:1] == [word], line
        return int(line[1])


@contextmanager
def victim() -> Iterator[Victim]:
    """Runs the forking process; what its children print is in its standard error."""
    mine, theirs = socket.socketpair()
    words = ["-m", "tests.faults.victim"]
    with theirs:
        streams = {"stdin": theirs.fileno(), "stdout": theirs.fileno(), "stderr": 2}
        process = interpreter.start(words, cwd=interpreter.ROOT, **streams)
    with mine, mine.makefile("rw") as orders:
        yield Victim(orders)
    assert process.wait(120) == 0


def main() -> None:
    # What children would import; not the commands, whose flags have the same names.
    from dps_tf.store import saving
    from dps_tf.tuning import backends, sweep  # noqa: F401
    from dps_tf.workloads import reading  # noqa: F401

    saving.SNAPSHOT_SECONDS = SNAPSHOT_SECONDS
    saving.SNAPSHOT_SHARE = 1.0
    gc.freeze()  # As in tests/conftest.py.
    for line in sys.stdin:
        order = json.loads(line)
        child = order.get("wait") or os.fork()
        if child == 0:
            _live(order)
        if "wait" not in order:
            print(f"started {child}", flush=True)
        if order.get("background"):
            continue
        # Killed from here, where its number surely is its own until it is waited for.
        time.sleep(order.get("kill_after", 0.0))
        if "kill_after" in order:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def _live(order: dict[str, Any]) -> None:
    """Does what was ordered and ends the process."""
    os.dup2(2, 1)  # standard output is for the answers of the parent
    code = 1
    try:
        os.environ.update(order.get("environment", {}))
        if "output" in order:
            with Path(order["output"]).open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
        if "file_limit" in order:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            # What is printed may go to a file, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            # Python takes a compiled module of half its size for a whole one, and so
            # would everybody who imports it later.
            sys.dont_write_bytecode = True
            limit = order["file_limit"]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        does = {"train": _train, "command": _command, "synthetic": _synthetic}
        code = does[order["kind"]](order)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _train(order: dict[str, Any]) -> int:
    from dps_tf import train

    sys.argv = ["train", *order["arguments"]]
    train.main()
    return 0


def _command(order: dict[str, Any]) -> int:
    sys.argv = [order["command"], *order["arguments"]]
    importlib.import_module(f"dps_tf.{order['command']}").main()
    return 0


def _synthetic(order: dict[str, Any]) -> int:
    from tests.made_up.studies import SyntheticRunner, launch, study_of

    runner = SyntheticRunner(
        TRIALS,
        slots=order.get("slots", 1),
        slice_steps=5,
        before_slice=lambda trial, step: time.sleep(order.get("seconds", 0.0)),
    )
    try:
        outcome = launch(order["directory"], [study_of(STUDY)], runner)
    except (UserError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return RUN_AGAIN if outcome.busy else FINISHED


if __name__ == "__main__":
    main()
