"""Shows how far a sweep is: `python -m dps_tf.status --sweep_dir=D [--sweep_dir=E]...`.

Reads records only, so it may be asked while the sweep runs, and does not load
TensorFlow, except for a sweep on an object store.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from absl import flags

from dps_tf.cli.command_line import FINISHED, require, run
from dps_tf.core.errors import printable

_SWEEP_DIRS = flags.DEFINE_multi_string(
    "sweep_dir", [], "A sweep directory; may be repeated, as for shards of one sweep."
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON, one object per cell.")


def main(argv: Sequence[str]) -> int:
    """Prints the state of every cell; returns the exit code 0."""
    del argv
    require(_SWEEP_DIRS)
    # After the flags are checked: tables take a second to load.
    from dps_tf.analysis.sweep_status import merged_status, sweep_status
    from dps_tf.cli.sweep_files import files_of
    from dps_tf.store.sweep_reader import SweepReader

    statuses = []
    for directory in _SWEEP_DIRS.value:
        files = files_of(directory)
        sweep = SweepReader(files, directory)
        statuses.append(sweep_status(files, sweep))
        for problem in sweep.problems:
            print(printable(f"note: {problem}"), file=sys.stderr)
    cells = merged_status(statuses)
    if _JSON.value:
        print(json.dumps([cell.to_json() for cell in cells], indent=1))
    else:
        # Errors of trials and names of files hold what their makers wanted.
        print(printable("\n".join(cell.line for cell in cells)))
        print(f"{sum(cell.closed for cell in cells)} of {len(cells)} cells finished")
    return FINISHED


def entry_point() -> None:
    """Runs the command as the console script `dps-status`."""
    run(main)


if __name__ == "__main__":
    run(main)
