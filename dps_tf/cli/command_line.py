"""The frame of every command: exit codes, one-line errors, imports of the user.

Exit codes: 0 finished; 1 a defect, or a trial that keeps failing; 2 an error that the
user can correct; 75 run the same command again (EX_TEMPFAIL: schedulers requeue on it).
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util  # gin reports a missing file wrongly without it
import os
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import app

from dps_tf.cli import flags
from dps_tf.core import UserError, own_code, printable

if TYPE_CHECKING:
    from dps_tf.analysis.sweep_status import CellStatus

FINISHED, DEFECT, USER_ERROR, RUN_AGAIN = 0, 1, 2, 75
_SHOWN = 60  # characters of a path that is too long


def command(main: Callable[[], int | None]) -> Callable[[], None]:
    """Makes a function the command of its module; `--help` shows the module's text.

    The command parses the flags, calls the function and exits with the code that it
    returns; None is 0. An error that the user can correct is printed as one line on
    standard error, with exit code 2. A defect keeps its traceback and exits with 1. If
    no process reads the output any more, as after `| head`, the command ends without a
    message: with its own exit code if it was done, else with the code of a stop.
    """

    @functools.wraps(main)
    def run() -> None:
        try:
            try:
                app.run(lambda argv: guarded(main, argv), flags_parser=parser_of(main))
            except SystemExit:
                if not _output_is_closed():
                    sys.stdout.flush()
                raise
        except OSError as error:
            # A broken pipe that is not the output is a defect.
            if isinstance(error, BrokenPipeError) and _output_is_closed():
                sys.exit(RUN_AGAIN)
            sentence = _sentence_of(error)
            if sentence is None:
                raise
            print(f"error: {sentence}", file=sys.stderr)
            sys.exit(USER_ERROR)

    return run


def parser_of(main: Callable[[], int | None]) -> Callable[[Sequence[str]], list[str]]:
    """Returns the function that parses the flags of a command; see `flags.parser`."""
    module = sys.modules[main.__module__]
    # absl registers the flags of a program under its path.
    name = sys.argv[0] if module.__name__ == "__main__" else module.__name__
    return flags.parser(name, module.__doc__ or "", FINISHED, USER_ERROR)


def guarded(main: Callable[[], int | None], argv: Sequence[str]) -> int:
    """Returns the exit code of a command; prints errors of the user in one line."""
    try:
        if len(argv) > 1:
            raise UserError(
                f"argument {argv[1]!r} is not understood: every option is a flag, "
                "see --help."
            )
        return main() or FINISHED
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return USER_ERROR
    except Exception as error:
        # Imported here: the tables of the store take a second to load.
        from dps_tf.store import LockLost, StoreError

        if isinstance(error, LockLost):
            print(error, file=sys.stderr)
            return RUN_AGAIN
        if not isinstance(error, StoreError):
            raise
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return USER_ERROR


def _output_is_closed() -> bool:
    """Returns whether no process reads standard output; then mutes Python's exit."""
    try:
        output = sys.stdout.fileno()
    except (AttributeError, ValueError, OSError):
        return False
    watch = select.poll()
    watch.register(output, 0)
    events = dict(watch.poll(0)).get(output, 0)
    if not events & (select.POLLERR | select.POLLHUP):
        return False
    # Python writes the rest of the buffer once more at the exit.
    _discard_output(output)
    return True


def _discard_output(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def import_ray(name: str, address: str | None) -> Any:
    """Returns a module of `dps_tf.tuning` that needs Ray.

    Without the address of a cluster, a Ray that is started listens on 127.0.0.1 alone.

    Raises:
        UserError: Ray is not installed.
    """
    from dps_tf.tuning.options import LOOPBACK_ONLY

    if address is None:
        # Ray reads the variable once, when it is imported.
        os.environ[LOOPBACK_ONLY] = "0"
    try:
        return importlib.import_module(f"dps_tf.tuning.{name}")
    except ImportError as error:
        raise UserError(
            f"--engine=ray needs Ray ({error}): pip install 'dps_tf[ray]'."
        ) from error


def import_modules(names: Sequence[str]) -> None:
    """Imports modules of the user, also from the current folder, as `python -m` does.

    Raises:
        UserError: a module is missing, or it fails, with the place.
    """
    here = str(Path.cwd())
    if names and not {here, ""} & set(sys.path):
        sys.path.insert(0, here)
    for name in names:
        with own_code(f"--import={name}", "correct the module"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                raise UserError(
                    f"--import={name}: {error}; run from its folder or put that on "
                    "PYTHONPATH."
                ) from error


def tell_of_damage(problems: Iterable[str], printed: set[str]) -> None:
    """Prints notes on damaged files to standard error, except notes in `printed`."""
    for problem in problems:
        if problem not in printed:
            printed.add(problem)
            # A name of a file can hold any character.
            print(printable(f"note: {problem}"), file=sys.stderr)


def cell_statuses(sweep_dirs: Sequence[str], printed: set[str]) -> list[CellStatus]:
    """Returns the state of every cell of some sweeps; prints notes on damaged files."""
    # Imported after the flags are checked: tables take a second to load.
    from dps_tf.analysis.sweep_status import merged_status, sweep_status
    from dps_tf.store import SweepReader, files_for

    statuses = []
    for directory in sweep_dirs:
        files = files_for(directory)
        sweep = SweepReader(files, directory)
        statuses.append(sweep_status(files, sweep))
        tell_of_damage(sweep.problems, printed)
    return merged_status(statuses)


def _sentence_of(error: OSError) -> str | None:
    """Returns advice on an error of a path or a full disk; None for other errors."""
    if error.errno == errno.ENAMETOOLONG:
        return (
            f"the path {printable(str(error.filename))[:_SHOWN]}... is too long for "
            "this system: choose shorter names."
        )
    if "temporary directory" in str(error):
        return (
            "no folder for temporary files can be written, such as "
            f"{os.environ.get('TMPDIR', '/tmp')}: free some space there, or name "
            "another one by TMPDIR."
        )
    # Errors of files carry their names: without one, it is a stream that failed.
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    if error.errno not in full or error.filename is not None:
        return None
    # The rest of its buffer would fail once more at the exit.
    _discard_output(sys.stdout.fileno())
    return (
        f"the printed output cannot be written: {error.strerror}; if it is sent to a "
        "file, free some space on that disk, and run the command again."
    )
