"""Shows how a sweep stands: `python -m dps_tf.status --sweep_dir=D`.

Reads records only, so it may be asked while the sweep runs, and does not load
TensorFlow, except for a sweep on an object store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from absl import flags

from dps_tf.analysis.sweep_status import CellStanding, standing
from dps_tf.cli.command_line import FINISHED, run
from dps_tf.cli.sweep_files import files_of
from dps_tf.core.errors import UserError

_SWEEP_DIR = flags.DEFINE_string("sweep_dir", None, "Where the sweep is kept.")
_JSON = flags.DEFINE_bool("json", False, "Print JSON, one object per cell.")


def main(argv: Sequence[str]) -> int:
    """Prints the state of every cell; returns the exit code."""
    del argv
    if not _SWEEP_DIR.value:
        raise UserError("--sweep_dir is missing: name the directory of a sweep.")
    cells = standing(files_of(_SWEEP_DIR.value), _SWEEP_DIR.value)
    if _JSON.value:
        print(json.dumps([cell.to_json() for cell in cells], indent=1))
    else:
        print("\n".join(_line(cell) for cell in cells))
        closed = sum(cell.closed for cell in cells)
        print(f"{closed} of {len(cells)} cells finished")
    return FINISHED


def _line(cell: CellStanding) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in cell.outcomes.items() if n)
    reached = "none reached" if cell.steps_to_result is None else cell.reached
    left = "finished" if cell.closed else cell.left
    return f"{cell.name}: {reached}; {counts or 'not started'}; {left}"


def entry_point() -> None:
    """Runs the command as the console script `dps-status`."""
    run(main)


if __name__ == "__main__":
    run(main)
