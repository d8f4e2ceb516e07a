"""Reports on sweeps: `python -m dps_tf.report --sweep_dir=D [--sweep_dir=E]...`.

Reads records only, so it may be asked while a sweep runs, and does not load TensorFlow.
Writes a page, its figures and tables, and prints the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dps_tf.command_line import FINISHED, run
from dps_tf.core.errors import UserError

_SWEEP_DIRS = flags.DEFINE_multi_string(
    "sweep_dir", [], "A sweep directory; may be repeated."
)
_OUT = flags.DEFINE_string(
    "out", None, "Folder of the report; by default `report` in the first sweep."
)
_GOAL = flags.DEFINE_float(
    "goal", None, "Another threshold for each study's own metric; needs no training."
)
_PUBLISHED = flags.DEFINE_list(
    "published",
    [],
    "Published curves to lay beside, dataset/model/optimizer, or `all`.",
)
_TENSORBOARD = flags.DEFINE_bool(
    "tensorboard", False, "Also write curves and metaparameters for TensorBoard."
)


def main(argv: Sequence[str]) -> int:
    """Reports on the sweeps that the flags name; returns the exit code 0."""
    del argv
    if not _SWEEP_DIRS.value:
        raise UserError("--sweep_dir is missing: name the directory of a sweep.")
    # After the flags are parsed: drawing and tables take a second to load.
    from dps_tf.analysis.loading import load
    from dps_tf.analysis.report import terminal_text, write_report

    tables = load(*_SWEEP_DIRS.value, goal=_GOAL.value)
    out = Path(_OUT.value or Path(_SWEEP_DIRS.value[0]) / "report")
    report = write_report(tables, out)
    if _TENSORBOARD.value:
        from dps_tf.analysis.tensorboard import write_events

        write_events(tables, out / "tensorboard")
    print(terminal_text(report, tables), end="")
    print(f"\nreport: {out / 'report.html'}")
    return FINISHED


def entry_point() -> None:
    """Runs the command as the console script `dps-report`."""
    run(main)


if __name__ == "__main__":
    run(main)
