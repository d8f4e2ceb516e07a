"""Reads foreign runs into a sweep directory: `python -m dps_tf.import_runs`.

With `--read=FOLDER --goal=G --sweep_dir=D`, the two tables of a folder are read, trials
and evaluations, as CSV or Parquet files. With a file, a long table is read, which has a
row per evaluation. With --format, --read names a folder of long tables or of
TensorBoard's event files, the database or journal of an Optuna study, or the unpacked
archive of Shallue et al. 2019, which has goals of its own. The commands report and
status, and `dps_tf.load`, read the directory.

One study of the archive is in memory at a time. After a stop, the same command
continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, command
from dps_tf.core import Goal, UserError, direction_of, near_matches, printable

if TYPE_CHECKING:
    from dps_tf.analysis.interchange.run_tables import Runs

_TABLES, _ROWS, _ARCHIVE = "tables", "rows", "shallue2019"
_FORMATS = (_TABLES, _ROWS, "tensorboard", "optuna", _ARCHIVE)

common.section("What is read")
_READ = flags.DEFINE_string("read", None, "Folder or file that holds the runs.")
_SWEEP_DIR = common.sweep_dirs("new, empty, or of an earlier import")
_FORMAT = flags.DEFINE_string(
    "format", _TABLES, f"What --read names, one of {', '.join(_FORMATS)}."
)
common.section("What the runs had to reach")
_GOAL = flags.DEFINE_float(
    "goal", None, "Threshold; only the archive of Shallue et al. has goals of its own."
)
_METRIC = flags.DEFINE_string(
    "metric", "validation/classification_error", "With --goal: what it is a goal for."
)
_INCLUSIVE = flags.DEFINE_bool(
    "inclusive",
    True,
    "With --goal: whether a value equal to it meets it, as in every goal of this "
    "package; --noinclusive is strict, as the published goals are.",
)
_DIRECTION = flags.DEFINE_enum(
    "direction",
    None,
    ["minimize", "maximize"],
    "With --goal: which way is better; by default what the source states, or what the "
    "name of the metric tells.",
)
common.section("With rows, tensorboard and optuna")
_SET = flags.DEFINE_multi_string(
    "set",
    [],
    "A column that the runs do not record, such as batch_size=64 or optimizer=adam; "
    "holds for all runs; may be repeated.",
)
_RENAME = flags.DEFINE_multi_string(
    "rename", [], "OLD=NEW, another name of a metric or column; may be repeated."
)
_STEPS_PER_REPORT = flags.DEFINE_integer(
    "steps_per_report",
    1,
    "Updates between two numbered reports of metrics, such as the steps of an epoch.",
    lower_bound=1,
    upper_bound=2**53,
)
_FIRST_REPORT = flags.DEFINE_integer(
    "first_report",
    1,
    "Number of the first logged report; 0 if epochs count from 0.",
    lower_bound=0,
    upper_bound=2**53,
)
_PATTERN = flags.DEFINE_string(
    "pattern",
    "",
    "Rows and tensorboard alone: columns in the names of runs, such as "
    "b{batch_size}_lr{learning_rate}*, where * is any text.",
)
_STUDY = flags.DEFINE_string(
    "study", None, "Optuna alone: name of the study, if the database holds several."
)
# Arguments of the functions that read runs, which take columns as keywords too.
_ARGUMENTS = {"about", "folder", "metric", "origin", "runs", "study", "unsplit"}
_ARGUMENTS |= {"pattern", "rename", "source", "steps_per_report", "first_report"}
_OF_LIBRARIES = (_SET, _RENAME, _STEPS_PER_REPORT, _FIRST_REPORT)
_FORMATS_OF = (
    *((flag, (_ROWS, "tensorboard", "optuna")) for flag in _OF_LIBRARIES),
    (_PATTERN, (_ROWS, "tensorboard")),
    (_STUDY, ("optuna",)),
)
"""Flags that only some formats have, with these formats."""


@command
def main() -> int:
    """Reads runs as the flags say; returns the exit code 0."""
    common.require(_READ, _SWEEP_DIR)
    if len(_SWEEP_DIR.value) > 1:
        raise UserError("--sweep_dir is given twice: runs are read into one.")
    if _FORMAT.value == _TABLES and Path(_READ.value).is_file():
        flags.FLAGS.format = _ROWS
    _check_format()
    [sweep_dir] = _SWEEP_DIR.value
    # Imported after the flags are parsed: tables take a second to load.
    from dps_tf.analysis.interchange.shallue2019 import write_archive
    from dps_tf.analysis.interchange.sweep import write_runs

    goal: Goal | None = None
    if _FORMAT.value == _ARCHIVE:
        goal = _goal() if _GOAL.value is not None else None
        written = write_archive(_READ.value, sweep_dir, goal, _print)
    elif _GOAL.value is None:
        raise UserError(
            "--goal is missing: the runs do not record what they had to reach; "
            "give --goal and --metric."
        )
    else:
        runs = _runs(_metric())
        goal = _goal(runs.direction)
        written = write_runs(runs, sweep_dir, goal, _print)
    goals = "the published goals, which are strict" if goal is None else str(goal)
    number = f"{len(written)} {'study' if len(written) == 1 else 'studies'}"
    _print(
        f"{number} in {sweep_dir}, for {goals}; see them by "
        f"python -m dps_tf.report --sweep_dir={sweep_dir}"
    )
    return FINISHED


def _check_format() -> None:
    """Raises UserError for an unknown format, or for a flag of another format."""
    chosen = _FORMAT.value
    if chosen not in _FORMATS:
        raise UserError(f"--format={chosen}: {near_matches(chosen, _FORMATS)}.")
    for flag, formats in _FORMATS_OF:
        if flag.present and chosen not in formats:
            raise UserError(
                f"--{flag.name} is of --format={' and '.join(formats)}, and not of "
                f"--format={chosen}: leave it out."
            )


def _runs(metric: str) -> Runs:
    """Returns the runs that --read names."""
    from dps_tf.analysis.interchange.event_files import from_tensorboard
    from dps_tf.analysis.interchange.optuna_studies import from_optuna, load_optuna
    from dps_tf.analysis.interchange.run_tables import read_runs
    from dps_tf.analysis.interchange.runs import from_rows

    if _FORMAT.value == _TABLES:
        return read_runs(_READ.value)
    columns = _pairs("set", _SET.value)
    for name in columns:
        if name in _ARGUMENTS:
            raise UserError(f"--set={name}=...: {name} is no column of runs.")
    options: dict[str, Any] = {
        **columns,
        "rename": _pairs("rename", _RENAME.value),
    }
    counted = (_STEPS_PER_REPORT, _FIRST_REPORT)
    options |= {flag.name: flag.value for flag in counted if flag.present}
    if _FORMAT.value == "optuna":
        study = load_optuna(_READ.value, _STUDY.value)
        for flag in counted:
            if not flag.present:
                raise UserError(
                    f"--{flag.name} is missing: Optuna numbers reports, and not the "
                    "updates between them; give both options (1 and 1 if each report "
                    "is numbered by its update)."
                )
        return from_optuna(study, metric, **options)
    read = from_rows if _FORMAT.value == _ROWS else from_tensorboard
    return read(_READ.value, pattern=_PATTERN.value, **options)


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Returns the values of a repeated flag NAME=VALUE as a mapping."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, value) in zip(texts, pairs, strict=True):
        if not (name and equals and value):
            raise UserError(f"--{flag}={text!r} is not written NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _metric() -> str:
    from dps_tf.analysis.interchange.shallue2019 import METRICS

    return METRICS.get(_METRIC.value, _METRIC.value)


def _goal(stated: str = "") -> Goal:
    """Returns the goal that the flags give, in the direction that the source states."""
    direction = direction_of(_metric(), _DIRECTION.value or "", stated)
    return Goal(_metric(), _GOAL.value, direction, _INCLUSIVE.value)


def _print(line: str) -> None:
    # Foreign names of files and runs can hold any character.
    print(printable(line), flush=True)


if __name__ == "__main__":
    main()
