"""Reads runs from elsewhere, and writes the archive format of Shallue et al. 2019.

`python -m dps_tf.archive --read=batch_science --sweep_dir=D` reads the published
archive, unpacked, into a sweep directory, where report, status and load find it. One
study is in memory at a time; run the command again to go on after a stop.

With --format, the runs of anybody are read: --read names a folder of two tables (CSV or
Parquet), of TensorBoard's event files or of exported charts of Weights & Biases, or the
database of MLflow or of an Optuna study. A goal has to be given.

`python -m dps_tf.archive --write=FOLDER --sweep_dir=D` writes your own studies in the
same layout: study.json, and metadata.json and measurements.csv per trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from dps_tf.cli.command_line import FINISHED, command, tell_of_damage
from dps_tf.core import Goal, UserError, near_matches

if TYPE_CHECKING:
    from dps_tf.analysis.interchange.runs import Runs
    from dps_tf.analysis.interchange.sweep import Conversion

_ARCHIVE = "shallue2019"
_FORMATS = (_ARCHIVE, "tables", "tensorboard", "mlflow", "wandb", "optuna")

_READ = flags.DEFINE_string("read", None, "Folder that an archive unpacks to.")
_FORMAT = flags.DEFINE_string(
    "format", _ARCHIVE, f"With --read: what is there, one of {', '.join(_FORMATS)}."
)
_SET = flags.DEFINE_multi_string(
    "set",
    [],
    "With --format: a column of all runs that they do not tell, such as batch_size=64 "
    "or optimizer=adam; repeatable.",
)
_RENAME = flags.DEFINE_multi_string(
    "rename",
    [],
    "With --format: OLD=NEW, another name of a metric or column; repeatable.",
)
_LEAVE_OUT = flags.DEFINE_multi_string(
    "leave_out", [], "With --format: a metric or column that is not read; repeatable."
)
_STEPS_PER_REPORT = flags.DEFINE_integer(
    "steps_per_report",
    1,
    "With --format: updates between two numbers under which metrics were logged, such "
    "as the steps of an epoch.",
    lower_bound=1,
)
_FIRST_REPORT = flags.DEFINE_integer(
    "first_report",
    1,
    "With --format: number of the first logged report; 0 if epochs count from 0.",
)
_STUDY = flags.DEFINE_string(
    "study",
    None,
    "Name of the study of --format=optuna, or of the experiment of --format=mlflow, if "
    "there are several.",
)
_DIRECTION = flags.DEFINE_enum(
    "direction",
    None,
    ["minimize", "maximize"],
    "With --goal: which way is better; by default from the name of the metric.",
)
_WRITE = flags.DEFINE_string("write", None, "Folder to write an archive to.")
_SWEEP_DIRS = flags.DEFINE_multi_string(
    "sweep_dir", [], "Where to read to; or what to write, then it may be repeated."
)
_ONLY = flags.DEFINE_multi_string(
    "only",
    [],
    "With --read: studies such as `mnist/*` or `*/simple_cnn_base/sgd/*`; repeatable.",
)
_GOAL = flags.DEFINE_float(
    "goal", None, "With --read: threshold; without, the goal of the published figures."
)
_METRIC = flags.DEFINE_string(
    "metric", "validation/classification_error", "With --goal: what it is a goal for."
)
_INCLUSIVE = flags.DEFINE_bool(
    "inclusive", False, "With --goal: whether a value equal to it meets it."
)
_TRIALS = flags.DEFINE_integer(
    "trials",
    None,
    "With --read: reads the first N COMPLETE trials of a study only; by default all.",
)
_KEEP_INCOMPLETE = flags.DEFINE_bool(
    "keep_incomplete", False, "With --read: trials that were cut off count up to there."
)
_DIVERGED_MAY_REACH = flags.DEFINE_bool(
    "diverged_may_reach",
    False,
    "With --read: a trial that diverged after it had met the goal has met it.",
)
_NAME = flags.DEFINE_multi_string(
    "name",
    [],
    "With --write: WORKLOAD=DATASET/MODEL, names in the archive; repeatable.",
)


@command
def main() -> int:
    """Reads or writes an archive, as the flags say; returns the exit code 0."""
    if bool(_READ.value) == bool(_WRITE.value):
        raise UserError(
            "give exactly one of --read (an archive into a sweep directory) and "
            "--write (sweeps as an archive)."
        )
    if not _SWEEP_DIRS.value:
        raise UserError("--sweep_dir is missing: name the directory of a sweep.")
    if len(_SWEEP_DIRS.value) > 1 and _READ.value:
        raise UserError("--sweep_dir is given twice: runs are read into one.")
    if _FORMAT.value not in _FORMATS:
        raise UserError(
            f"--format={_FORMAT.value}: {near_matches(_FORMAT.value, _FORMATS)}."
        )
    if _WRITE.value:
        _write()
    elif _FORMAT.value == _ARCHIVE:
        _read()
    else:
        _read_runs()
    return FINISHED


def _read() -> None:
    # After the flags are parsed: tables take a second to load.
    from dps_tf.analysis.interchange.foreign_study import ArchiveRules
    from dps_tf.analysis.interchange.sweep import convert

    if _TRIALS.value is not None and _TRIALS.value < 1:
        raise UserError(f"--trials is {_TRIALS.value}; it must be at least 1.")
    [sweep_dir] = _SWEEP_DIRS.value
    done = convert(
        _READ.value,
        sweep_dir,
        _goal(),
        ArchiveRules(_TRIALS.value, _KEEP_INCOMPLETE.value, _DIVERGED_MAY_REACH.value),
        only=_ONLY.value,
        progress=lambda line: print(line, flush=True),
    )
    if done.without_goal:
        print(
            f"left out for want of a goal: {_studies(len(done.without_goal))}, such as "
            f"{done.without_goal[0]!r}; give --goal and --metric for them."
        )
    _tell(done, sweep_dir)


def _tell(done: Conversion, sweep_dir: str) -> None:
    print(
        f"{_studies(len(done.read) + len(done.kept))} in {sweep_dir}; see them by "
        f"python -m dps_tf.report --sweep_dir={sweep_dir}"
    )


def _read_runs() -> None:
    """Reads the runs of other software."""
    from dps_tf.analysis.interchange.runs import write_runs

    goal = _goal()
    if goal is None:
        raise UserError(
            "--goal is missing: runs from elsewhere do not tell what they had to "
            "reach; give --goal and --metric."
        )
    [sweep_dir] = _SWEEP_DIRS.value
    done = write_runs(_runs(goal), sweep_dir, goal, lambda line: print(line))
    _tell(done, sweep_dir)


def _runs(goal: Goal) -> Runs:
    """Returns the runs that --read names."""
    from dps_tf.analysis.interchange import event_files, runs, trackers

    if _FORMAT.value == "tables":
        return runs.read_runs(_READ.value)
    options: dict[str, Any] = dict(_pairs("set", _SET.value))
    options |= {
        "rename": _pairs("rename", _RENAME.value),
        "leave_out": _LEAVE_OUT.value,
        "steps_per_report": _STEPS_PER_REPORT.value,
        "first_report": _FIRST_REPORT.value,
    }
    if _FORMAT.value == "optuna":
        study = trackers.load_optuna(_READ.value, _STUDY.value)
        return trackers.from_optuna(study, goal.metric, **options)
    if _FORMAT.value == "mlflow":
        return trackers.from_mlflow(_READ.value, _STUDY.value, **options)
    readers: dict[str, Callable[..., Runs]] = {
        "tensorboard": event_files.from_tensorboard,
        "wandb": trackers.from_wandb,
    }
    return readers[_FORMAT.value](_READ.value, **options)


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Returns what a repeated flag OLD=NEW says, as a mapping."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, value) in zip(texts, pairs, strict=True):
        if not (name and equals and value):
            raise UserError(f"--{flag}={text!r} is not written NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _studies(number: int) -> str:
    return f"{number} {'study' if number == 1 else 'studies'}"


def _goal() -> Goal | None:
    """Returns the goal that the flags give, or None."""
    from dps_tf.analysis.interchange.shallue2019 import METRICS, direction_of

    if _GOAL.value is None:
        return None
    metric = METRICS.get(_METRIC.value, _METRIC.value)
    direction = _DIRECTION.value or direction_of(metric)
    return Goal(metric, _GOAL.value, direction, _INCLUSIVE.value)


def _write() -> None:
    from dps_tf.analysis.interchange.writer import write_archive
    from dps_tf.cli.notebook import load

    tables = load(*_SWEEP_DIRS.value)
    tell_of_damage(tables.problems, set())
    folders = write_archive(
        tables.studies,
        tables.trials,
        tables.curves,
        _WRITE.value,
        _names(),
        progress=lambda line: print(line, flush=True),
    )
    print(f"{_studies(len(folders))} written below {_WRITE.value}")


def _names() -> Mapping[str, tuple[str, str]]:
    names = {}
    for text in _NAME.value:
        workload, equals, place = text.partition("=")
        dataset, slash, model = place.rpartition("/")
        if not (workload and equals and dataset and slash and model):
            raise UserError(
                f"--name={text!r} is not WORKLOAD=DATASET/MODEL: write for example "
                "--name=mnist_simple_cnn=mnist/simple_cnn_base."
            )
        names[workload] = (dataset, model)
    return names


if __name__ == "__main__":
    main()
