"""Reports on sweeps: `python -m dps_tf.report --sweep_dir=D [--sweep_dir=E]...`.

Reads records only, so it may be asked while a sweep runs, and does not load TensorFlow,
except for a sweep on an object store. Writes a page, its figures and tables, and prints
the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dps_tf.cli.command_line import FINISHED, run
from dps_tf.cli.sweep_files import load
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
    "Published curves to lay beside, such as `mnist-simple_cnn_base-sgd` or `*mnist*`, "
    "or `all`; without a sweep, a report of them alone.",
)
_STEP_TIMES = flags.DEFINE_string(
    "step_times",
    None,
    "CSV with batch_size, devices, seconds (of a step), price (per hour of all "
    "devices): adds time-to-result and cost.",
)
_ANCHOR = flags.DEFINE_integer(
    "anchor",
    None,
    "Batch size from which rules for the learning rate and linear scaling count; the "
    "smallest of each curve by default.",
)
_TENSORBOARD = flags.DEFINE_bool(
    "tensorboard", False, "Also write curves and metaparameters for TensorBoard."
)


def main(argv: Sequence[str]) -> int:
    """Reports on the sweeps that the flags name; returns the exit code 0."""
    del argv
    if not _SWEEP_DIRS.value and not _PUBLISHED.value:
        raise UserError("--sweep_dir is missing: name the directory of a sweep.")
    out = report_folder(_SWEEP_DIRS.value, _OUT.value)
    # After the flags are parsed: drawing and tables take seconds to load.
    from dps_tf.analysis import report

    if not _SWEEP_DIRS.value:
        found = report.write_published(_PUBLISHED.value, out)
        print(report.published_text(found), end="")
    else:
        _report_sweeps(out)
    print(f"\nreport: {out / 'report.html'}")
    return FINISHED


def _report_sweeps(out: Path) -> None:
    from dps_tf.analysis import report
    from dps_tf.analysis.cost import read_step_times

    times = read_step_times(_STEP_TIMES.value) if _STEP_TIMES.value else None
    options = report.ReportOptions(_PUBLISHED.value, times, _ANCHOR.value)
    tables = load(*_SWEEP_DIRS.value, goal=_GOAL.value)
    found = report.write_report(tables, out, options)
    if _TENSORBOARD.value:
        from dps_tf.analysis.tensorboard import write_events

        write_events(tables, out / "tensorboard")
    print(report.terminal_text(found, tables), end="")


def report_folder(sweep_dirs: Sequence[str], out: str | None) -> Path:
    """Returns the folder of the report: the one asked for, or one in the first sweep.

    Raises:
        UserError: neither is given.
    """
    if out:
        return Path(out)
    if not sweep_dirs:
        raise UserError("--out is missing: without a sweep, name a folder to write to.")
    if "://" in sweep_dirs[0]:
        raise UserError(
            f"--out is missing: {sweep_dirs[0]} is on no disk of this machine; name a "
            "folder to write the report to."
        )
    return Path(sweep_dirs[0]) / "report"


def entry_point() -> None:
    """Runs the command as the console script `dps-report`."""
    run(main)


if __name__ == "__main__":
    run(main)
