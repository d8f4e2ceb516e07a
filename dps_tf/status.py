"""Shows how far a sweep is: `python -m dps_tf.status --sweep_dir=D [--sweep_dir=E]...`.

The command only reads records, so it can run beside the sweep, and does not load
TensorFlow, except for a sweep on an object store.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from absl import flags

from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, cell_statuses, command
from dps_tf.core import UserError, printable

if TYPE_CHECKING:
    from dps_tf.analysis.sweep_status import CellStatus

common.section("What is shown")
_SWEEP_DIRS = common.sweep_dirs("may be repeated, as for shards of one sweep")
_WATCH = flags.DEFINE_bool(
    "watch",
    False,
    "Show it again every ten seconds until all cells are finished, or until Ctrl-C.",
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON, one object per cell.")

_PAUSE = 10.0
"""Seconds between two looks of --watch."""


@command
def main() -> int:
    """Prints the state of every cell; returns the exit code 0."""
    common.require(_SWEEP_DIRS)
    if _JSON.value:
        if _WATCH.value:
            raise UserError("--json and --watch exclude each other: give one of them.")
        cells = cell_statuses(_SWEEP_DIRS.value, set())
        print(json.dumps([asdict(cell) for cell in cells], indent=1))
    elif _WATCH.value:
        _watch()
    else:
        print(_text(cell_statuses(_SWEEP_DIRS.value, set())))
    return FINISHED


def _text(cells: Sequence[CellStatus]) -> str:
    from dps_tf.analysis.sweep_status import progress_line

    # Errors of trials and names of files can hold any character.
    return printable("\n".join([*(cell.line for cell in cells), progress_line(cells)]))


def _watch() -> None:
    """Shows the state until all cells are finished; on a terminal in one place."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    printed: set[str] = set()
    with (
        Live(console=console, auto_refresh=False)
        if console.is_terminal
        else (contextlib.nullcontext()) as live
    ):
        try:
            while True:
                cells = cell_statuses(_SWEEP_DIRS.value, printed)
                if live is None:
                    print(_text(cells), flush=True)
                else:
                    live.update(Text(_text(cells)), refresh=True)
                if all(cell.closed for cell in cells):
                    return
                time.sleep(_PAUSE)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
