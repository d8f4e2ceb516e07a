"""Reports on sweeps: `python -m dps_tf.report --sweep_dir=D [--sweep_dir=E]...`.

The command reads records only, so it can run beside a sweep, and does not load
TensorFlow, except for a sweep on an object store. It writes a page, its figures and
tables, and prints the results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from dps_tf.cli import flags as common
from dps_tf.cli.command_line import (
    FINISHED,
    cell_statuses,
    command,
    import_modules,
    tell_of_damage,
)
from dps_tf.core import Goal, UserError, printable

if TYPE_CHECKING:
    import pandas as pd

    from dps_tf.analysis.loading import Tables

common.section("What is shown")
_SWEEP_DIRS = common.sweep_dirs()
_OUT = flags.DEFINE_string(
    "out", None, "Folder of the report; by default `report` in the first sweep."
)
_GOAL = flags.DEFINE_float(
    "goal", None, "Another threshold for each study's own metric; needs no training."
)
_METRIC = flags.DEFINE_string(
    "metric",
    None,
    "Another metric of the curves, for which --goal is the threshold, such as "
    "`validation/accuracy`.",
)
_DIRECTION = flags.DEFINE_enum(
    "direction",
    None,
    ["minimize", "maximize"],
    "Direction in which --metric gets better; by default as its name tells.",
)
_LABELS = flags.DEFINE_multi_string(
    "label",
    [],
    "A name for a sweep, one for each --sweep_dir in their order: sweeps of the same "
    "cells then lie side by side. Tables have it in the column workload.label.",
)
_PUBLISHED = flags.DEFINE_string(
    "published",
    None,
    "CSV with curve, batch_size, steps_to_result (and relative_error, goal): published "
    "curves to show beside the sweep's, or a shipped table such as "
    "`shallue2019/published.csv`.",
)
_PUBLISHED_CURVES = flags.DEFINE_list(
    "published_curves",
    [],
    "Curves of --published, or patterns such as `*mnist*sgd`; all by default.",
)
common.section("How it is shown")
_IMPORT = common.imports("sections")
_WATCH = flags.DEFINE_bool(
    "watch",
    False,
    "Write the page again while the sweep runs; an open one loads itself again. Ends "
    "when all studies are closed, or with Ctrl-C.",
)

_PAUSE = 30
"""Seconds between two reports of --watch, from the end of one to the next."""


@command
def main() -> int:
    """Reports on the sweeps that the flags name; returns the exit code 0."""
    if not _SWEEP_DIRS.value:
        raise UserError("--sweep_dir is missing: name the directory of a sweep.")
    if _PUBLISHED_CURVES.value and not _PUBLISHED.value:
        raise UserError(
            "--published_curves needs a table: name one with --published, for example "
            "--published=shallue2019/published.csv."
        )
    out = report_folder(_SWEEP_DIRS.value, _OUT.value)
    import_modules(_IMPORT.value)
    published = None
    if _PUBLISHED.value:
        # Imported after the flags are parsed: drawing and tables take seconds to load.
        from dps_tf.analysis.published import read_published

        published = read_published(_PUBLISHED.value, _PUBLISHED_CURVES.value)
    write = _watch if _WATCH.value else _report_sweeps
    write(out, published)
    print(f"\nreport: {out / 'report.html'}")
    return FINISHED


def _tables(printed: set[str]) -> Tables:
    """Returns the tables of the sweeps; prints notes that are not in `printed` yet."""
    from dps_tf.cli.notebook import load

    tables = load(*_SWEEP_DIRS.value, goal=_wanted_goal(), labels=_LABELS.value)
    tell_of_damage(tables.problems, printed)
    return tables


def _wanted_goal() -> Goal | float | None:
    """Returns the goal that the flags ask for; None for each study's own."""
    if _METRIC.value is None:
        if _DIRECTION.value is not None:
            raise UserError("--direction needs --metric: name what gets better.")
        return _GOAL.value
    if _GOAL.value is None:
        raise UserError(
            f"--metric={_METRIC.value} needs --goal: give the threshold to reach."
        )
    return Goal(_METRIC.value, _GOAL.value, _DIRECTION.value or "")


def _report_sweeps(out: Path, published: pd.DataFrame | None) -> None:
    from dps_tf.analysis import report

    tables = _tables(set())
    written = report.write_report(tables, out, published)
    print(printable(report.terminal_text(written, tables)), end="")


def _watch(out: Path, published: pd.DataFrame | None) -> None:
    """Writes the page again and again until all studies are closed."""
    from dps_tf.analysis import report
    from dps_tf.analysis.sweep_status import progress_line

    printed: set[str] = set()
    print(f"watching: open {out / 'report.html'} (Ctrl-C ends it)", flush=True)
    try:
        while True:
            tables = _tables(printed)
            waiting = any(sweep.not_begun for sweep in tables.sweeps)
            is_done = bool(tables.studies["closed"].all()) and not waiting
            if is_done:
                report.write_report(tables, out, published)
                break
            progress = progress_line(cell_statuses(_SWEEP_DIRS.value, printed))
            report.write_report(tables, out, published, _PAUSE, progress)
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        pass


def report_folder(sweep_dirs: Sequence[str], out: str | None) -> Path:
    """Returns the folder of the report: `out`, or `report` in the first sweep."""
    if out:
        return Path(out)
    if "://" in sweep_dirs[0]:
        raise UserError(
            f"--out is missing: {sweep_dirs[0]} is on no disk of this machine; name a "
            "folder to write the report to."
        )
    return Path(sweep_dirs[0]) / "report"


if __name__ == "__main__":
    main()
