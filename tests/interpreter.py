"""Forked interpreters run programs that would take seconds to import what they need.

`run` is what `subprocess.run([sys.executable, *arguments])` is: the program is
`__main__`, with a folder, an environment, standard streams and an exit code of its own,
and ends as interpreters do. What was imported before it began is not imported anew, so
the time of a start, and an import that a module forgets, are seen by fresh interpreters
only: `tests/commands/command_line_test.py` starts every command in one.

There are two to fork from. TABLES has not imported TensorFlow, and so can show that a
program does without it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dps_tf._tensorflow import import_tensorflow

ROOT = Path(__file__).parents[1]
TABLES = (
    "dps_tf.analysis.fit_table",
    "dps_tf.analysis.interchange.event_files",
    "dps_tf.analysis.interchange.optuna_studies",
    "dps_tf.analysis.interchange.shallue2019",
    "dps_tf.analysis.report",
    "dps_tf.analysis.sweep_status",
    "dps_tf.cli.notebook",
)
TENSORFLOW = (
    "dps_tf.cli.sweep_run",
    "dps_tf.data.preparation",
    "dps_tf.probing.trained_trial",
    *TABLES,
)
"""What is imported before programs are begun. Not the commands: their flags clash."""
COLLECTED = 200_000
"""New objects between collections: Python's own take a tenth of what tests trace."""
_ONE_AT_A_TIME = threading.Lock()


class Process:
    """A program that runs in a fork.

    Attributes:
        pid: its number.
        returncode: None until it has ended; negative after a signal.
    """

    def __init__(self, words: Sequence[str], answers: socket.socket) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._answers = answers.makefile("r")
        answers.close()
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code once there is one."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
        return self.returncode

    def poll(self) -> int | None:
        """Returns the exit code if there is one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start(
    words: Sequence[object],
    *,
    modules: Sequence[str] = TENSORFLOW,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: IO[Any] | int = subprocess.DEVNULL,
    stdout: IO[Any] | int = subprocess.DEVNULL,
    stderr: IO[Any] | int = subprocess.DEVNULL,
) -> Process:
    """Begins a program: `-m MODULE`, `-c CODE` or FILE, and its arguments.

    `-W error` may come first. Streams are files or numbers of descriptors.
    """
    given = [str(word) for word in words]
    order = {
        "words": given,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    mine, theirs = socket.socketpair()
    with Path(os.devnull).open("r+b") as nothing, theirs:
        streams = [
            nothing.fileno() if stream == subprocess.DEVNULL else _descriptor(stream)
            for stream in (stdin, stdout, stderr)
        ]
        message = json.dumps(order).encode()
        with _ONE_AT_A_TIME:
            orders = _forker(modules)
        socket.send_fds(orders, [message], [*streams, theirs.fileno()])
    return Process(given, mine)


def run(
    words: Sequence[object],
    *,
    input: str = "",
    stdout: IO[Any] | int | None = None,
    timeout: float = 600,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; returns what it wrote and its exit code."""
    with (
        tempfile.TemporaryFile("w+") as told,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as errors,
    ):
        told.write(input)
        told.seek(0)
        heard = said if stdout is None else stdout
        process = start(words, stdin=told, stdout=heard, stderr=errors, **options)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            raise
        said.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(
            process.args, code, said.read(), errors.read()
        )


def _descriptor(stream: IO[Any] | int) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


@functools.cache
def _forker(modules: Sequence[str]) -> socket.socket:
    """Returns where orders go to the interpreter that has imported the modules.

    The processes among which pytest-xdist divides the tests share one.
    """
    tests = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    place = Path(tempfile.gettempdir(), f"dps_tf-{tests}-{len(modules)}")
    orders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            orders.connect(str(place))
        except (FileNotFoundError, ConnectionRefusedError):
            place.unlink(missing_ok=True)
            _start_forker(place, modules)
            orders.connect(str(place))
    atexit.register(orders.close)
    return orders


def _start_forker(place: Path, modules: Sequence[str]) -> None:
    """Starts an interpreter, which ends when nobody is left to give it orders."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        listener.listen()
        number = listener.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.interpreter", str(number), *modules],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
        )
    # Others may need it after this process has ended, which is not to wait for it.
    server.returncode = 0


def _main(descriptor: int, modules: Sequence[str]) -> None:
    """Takes orders, and becomes each program that is ordered in a fork of its own."""
    _import(modules)
    gc.freeze()  # Forks share these objects while nobody counts them anew.
    gc.set_threshold(COLLECTED)
    listener = socket.socket(fileno=descriptor)
    places = [listener, listener.accept()[0]]
    while len(places) > 1:
        place = select.select(places, [], [])[0][0]
        _reap()
        if place is listener:
            places.append(listener.accept()[0])
            continue
        message, descriptors, _, _ = socket.recv_fds(place, 1 << 20, 4)
        if not message:
            place.close()
            places.remove(place)
        elif _fork() == 0:
            break
        for number in descriptors:
            os.close(number)
    else:
        Path(listener.getsockname()).unlink()
        return
    for place in places:
        place.close()
    # A fork that waits for the program, so that others can be begun meanwhile.
    *streams, answers = descriptors
    child = _fork()
    if child:
        for number in streams:
            os.close(number)
        os.write(answers, b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(answers)
    _become(json.loads(message), streams)


def _run(words: Sequence[str]) -> None:
    """Runs a program and ends as the interpreter does, save that nothing is taken down.

    To free all that was imported takes as long as to import it.
    """
    code = 0
    try:
        kind, *rest = words
        if kind == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = [kind, *rest[1:]]
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), module.__dict__)
        else:
            sys.argv = list(words)
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored: {error!r}", file=sys.stderr)
        code = 120
    sys.stderr.flush()
    os._exit(code)


def _import(modules: Sequence[str]) -> None:
    # TensorFlow's libraries warn of themselves; nothing else may.
    with warnings.catch_warnings():
        if modules == list(TENSORFLOW):
            import_tensorflow()
        else:
            warnings.simplefilter("error")
        for name in modules:
            importlib.import_module(name)


def _reap() -> None:
    """Takes leave of forks that have ended; what they used counts as used here."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork() -> int:
    # Threads of numerical libraries rest, and are made anew in a fork.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _become(order: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Runs the program of an order as a fresh interpreter would."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    if os.environ.get("PYTHONUNBUFFERED"):
        raw = io.FileIO(1, "w", closefd=False)
        sys.stdout = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    words = list(order["words"])
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    # The first is the folder of this module's package.
    rest = [place for place in sys.path[1:] if place not in inherited]
    mine = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    first = {"-m": str(Path.cwd()), "-c": ""}.get(words[0], str(Path(words[0]).parent))
    sys.path[:] = [first, *mine, *rest]
    importlib.invalidate_caches()
    _run(words)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
