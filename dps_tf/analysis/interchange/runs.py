"""Converts runs as libraries record them into the two tables of `run_tables`.

The reader of a library returns a `Run` for each recorded run, and `runs_of` does what
all readers need: it adds columns that the library does not record, renames metrics, and
counts steps in updates of the network.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.checks import (
    COMPLETE,
    INCOMPLETE,
    INFEASIBLE,
    checked_numbers,
    measured,
    named,
)
from dps_tf.analysis.interchange.run_tables import DEFAULTS, Runs
from dps_tf.analysis.tables import numbers, refuse_first, require, row_number
from dps_tf.core import CELL_TYPES, UserError, is_axis, is_whole, near_matches, whole

_TEXTS = ("precision", *(name for name, kind in CELL_TYPES.items() if kind is str))
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "validation",
    "test": "test",
}
"""Spellings of the splits in other software, before `_` or `/`."""
_UNKNOWN_SPLIT = "logged"
OTHER_STEPS = re.compile(
    "epoch|example|image|sample|sequence|token|word|frame|env|episode|time|second|"
    "minute|hour|^_step$",  # W&B's own `_step` counts calls of `log`
    re.IGNORECASE,
)
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?!\d|\.\d|[eE][-+]?\d)"
_WHOLE = r"(?![,pPxX×*^'’]\d|[eE][_−–]\d|[dD]-\d|[kKM](?![A-Za-z0-9]))"
"""Before any text: no number goes on here, as 1k, 1,5, 0p1, 64x8 and 1e_3 would."""


@dataclass(frozen=True)
class Run:
    """One run as a library has recorded it.

    Attributes:
        name: name of the run in the library.
        curve: one row per evaluation, with the number `step` under which it was logged,
            and metrics by their names in the library.
        columns: recorded columns of the cell, and metaparameters.
        status: COMPLETE, INFEASIBLE or INCOMPLETE.
        note: a sentence on what could not be read, or "".
    """

    name: str
    curve: pd.DataFrame
    columns: Mapping[str, Any] = field(default_factory=dict)
    status: str = COMPLETE
    note: str = ""


def runs_of(  # noqa: PLR0913 - each is independent of the others
    runs: Iterable[Run],
    origin: str,
    *,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    rename: Mapping[str, str] | None = None,
    unsplit: str = _UNKNOWN_SPLIT,
    steps_per_report: int = 1,
    first_report: int = 1,
    pattern: str = "",
    **common: Any,
) -> Runs:
    """Returns the tables of some runs, numbered in their order.

    Metrics become `split/metric`: `val_loss`, `val/loss` and `eval_loss` are
    `validation/loss`. Metaparameters that are texts are left out: the K* of a cell is
    over all of its runs, whatever their texts. To give such runs cells of their own,
    rename the text to a further axis: `workload.network_arguments.activation`.

    Args:
        runs: runs in an order that stays the same when more are added.
        origin: source of the runs, for messages.
        about: further columns by the name of a run, also `status` and `steps`. They
            override `common`, which overrides the columns that the run records.
        rename: new names of metrics and columns.
        unsplit: split of metrics without one in their names.
        steps_per_report: updates of the network between two numbers under which metrics
            were logged, such as the steps of an epoch.
        first_report: number of the first report; 0 where epochs count from 0.
        pattern: how the name of each run tells columns, such as
            `b{batch_size}_lr{learning_rate}*`; `*` stands for any text.
        common: columns of all runs, such as `batch_size=64`, `optimizer="adam"`.

    Raises:
        UserError: no runs, one without a batch size, two metrics of one name, or a name
            that cannot be renamed.
    """
    steps_per_report = whole("steps_per_report", steps_per_report)
    first_report = whole("first_report", first_report, 0)
    renamed = dict(rename or {})
    listed = _checked(runs, renamed, common, *(about or {}).values())
    rows, curves, names, notes, empty = [], [], [], [], []
    overridden: dict[str, str] = {}
    for number, run in enumerate(listed):
        if run.curve.empty and not run.note and run.status != INFEASIBLE:
            empty.append(run.name)
            continue
        own = _renamed(run.columns, renamed)
        _check_columns(run.name, own, ("trial", "status", "steps"), origin)
        given = {**common, **(about or {}).get(run.name, {})}
        _check_columns(run.name, given, ("trial",), origin)
        overridden = {**_overridden(run.name, own, common), **overridden}
        columns = {**own, **_renamed(given, renamed)}
        for name, value in (_told(pattern, run.name) if pattern else {}).items():
            if _columns({name: columns.setdefault(name, value)}) != _columns(
                {name: value}
            ):
                raise UserError(
                    f"{name} of run {run.name!r} is {value} by its name, and "
                    f"{columns[name]!r} besides: correct one of them, or the pattern."
                )
        if "batch_size" not in columns:
            raise UserError(
                f"run {run.name!r} of {origin} has no batch size: give "
                "batch_size for all runs, or for this one."
            )
        rows.append({"status": run.status, **_columns(columns), "trial": number})
        require(run.curve, ["step"], f"of run {run.name!r}")
        curve = _with_splits(run.curve.rename(columns=renamed), unsplit)
        # In floating point, so that what is too large is refused and does not wrap.
        step = curve["step"].to_numpy(np.float64) - first_report + 1
        curves.append(curve.assign(trial=number, step=step * steps_per_report))
        names.append(run.name)
        notes += [run.note] if run.note else []
    _check_names([*names, *empty], about or {}, origin)
    if empty:
        first = ", ".join(map(repr, empty[:5])) + (", ..." if empty[5:] else "")
        notes.append(f"without numbers by updates, {first} are no runs and left out.")
    if not names:
        raise UserError(f"no run of {origin} has an evaluation: {notes[-1]}")
    trials = _with_defaults(rows, names)
    evaluations = pd.concat(curves)
    if not evaluations.index.is_unique:  # else it is the index of one file
        evaluations = evaluations.reset_index(drop=True)
    least = evaluations["step"].min() / steps_per_report + first_report - 1
    reported = report_notes(least, first_report, steps_per_report, trials.batch_size)
    notes += [*overridden.values(), *reported]
    return Runs(trials, evaluations, origin, notes=tuple(notes))


def _overridden(
    run: str, own: Mapping[str, Any], common: Mapping[str, Any]
) -> dict[str, str]:
    """Returns sentences on what a run records and the caller states otherwise."""
    return {
        name: f"{name} of run {run!r} is {own[name]}, and given for all runs as "
        f"{value}, which counts."
        for name, value in common.items()
        if str(own.get(name, value)) != str(value)
        and _number(own[name]) != _number(value)
    }


def report_notes(least: float, first: int, unit: Any, sizes: Any) -> Iterator[str]:
    """Yields notes if reports may count from another number, or be epochs."""
    if unit != 1 and abs(least - first) == 1:
        yield (
            f"the first report is {least:g}, and first_report is {first}: if reports "
            f"count from {least:g}, give first_report={least:g}, or each K* is one "
            f"report too {'early' if least < first else 'late'}."
        )
    if unit != 1 and not callable(unit) and sizes.nunique() > 1:
        yield (
            f"a report stands for {unit:g} updates at each of {sizes.nunique()} batch "
            "sizes: if reports are epochs, import each batch size into a directory of "
            "its own, with the updates of its epoch."
        )


def _told(pattern: str, name: str) -> dict[str, str]:
    """Returns the columns that a name tells by a pattern; UserError if not in one way.

    >>> _told("b{batch_size}_lr{learning_rate}*", "b8_lr1e-3_again")
    {'batch_size': '8', 'learning_rate': '1e-3'}
    """
    columns, ways = re.findall(r"\{([^{}]*)\}", pattern), []
    for lazy in ("", "?"):
        whole = re.escape(pattern).replace(r"\}\*", rf"\}}{_WHOLE}\*")
        whole = whole.replace(r"\*", f".*{lazy}")
        for column in columns:
            is_text = column in _TEXTS or is_axis(column)
            piece = f"([^/]+{lazy})" if is_text else f"({_NUMBER})"
            whole = whole.replace(re.escape(f"{{{column}}}"), piece, 1)
        found = re.fullmatch(whole, name)
        ways.append(found and found.groups())
    if not ways[0] or ways[0] != ways[1] or len(set(columns)) < len(columns):
        raise UserError(
            f"run {name!r} fits the pattern {pattern!r} in "
            f"{'no' if not ways[0] else 'more than one'} way: write one such as "
            "b{batch_size}_lr{learning_rate}, with * for any other text."
        )
    return dict(zip(columns, ways[0], strict=True))


def _renamed(columns: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Returns columns under their new names; UserError if two would be the same."""
    names = [renamed.get(name, name) for name in columns]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two columns would both be called {name!r}: rename only one of them."
            )
    return dict(zip(names, columns.values(), strict=True))


def _check_renaming(renamed: Mapping[str, str]) -> None:
    """Raises UserError for a renaming of steps, or to the name of steps or trials."""
    if "step" in renamed:
        raise UserError("step numbers the evaluations of a run: it cannot be renamed.")
    for old, new in renamed.items():
        if new in ("trial", "step"):
            raise UserError(
                f"{old!r} cannot be renamed to {new!r}, which numbers "
                f"{'runs' if new == 'trial' else 'evaluations'}: choose another name."
            )


def _checked(
    runs: Iterable[Run],
    renamed: Mapping[str, str],
    common: Mapping[str, Any],
    *about: Mapping[str, Any],
) -> list[Run]:
    """Returns the runs; UserError for what a caller states and no run can have."""
    _check_renaming(renamed)
    listed = [*runs]
    held = [[*run.columns, *run.curve.columns] for run in listed]
    _check_there(renamed, *held, common, *about)
    for name, value in _renamed(common, renamed).items():
        is_text = name in ("status", *_TEXTS) or is_axis(name)
        if not is_text and _number(value) is None:
            raise UserError(
                f"{name} is {value!r}; it must be a number. Texts are the columns "
                f"{', '.join(_TEXTS)}, and further axes."
            )
    return listed


def _check_there(renamed: Iterable[str], *held: Iterable[str]) -> None:
    """Raises UserError for a renaming of what no run holds."""
    every = {str(name) for names in held for name in names}
    for old in [old for old in renamed if old not in every]:
        raise UserError(
            f"{old!r} is to be renamed, and no run has it: {near_matches(old, every)}."
        )


def _check_columns(
    run: str, columns: Iterable[str], others: Sequence[str], origin: str
) -> None:
    """Raises UserError for a column with another meaning in the table of trials."""
    for name in columns:
        if name in others:
            raise UserError(
                f"run {run!r} of {origin} has a column {name!r}, which the table of "
                "trials has for something else: rename it."
            )


def _check_names(names: Sequence[str], about: Iterable[str], origin: str) -> None:
    """Raises UserError if there is no run, or none of a name in `about`."""
    if not names:
        raise UserError(f"{origin} holds no run.")
    for name in about:
        if name not in names:
            near = near_matches(name, names[:20])
            raise UserError(f"{origin} has no run {name!r}: {near}.")


def _with_defaults(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> pd.DataFrame:
    """Returns a table of trials with all columns of a cell, and the status."""
    # Names as objects: the name of a folder may not be UTF-8.
    index = pd.Index(list(names), dtype=object, name="run")
    trials = pd.DataFrame(list(rows), index=index)
    defaults = {"workload": "runs", "optimizer": "unknown", **DEFAULTS}
    missing: dict[str, Any] = {
        name: value for name, value in defaults.items() if name not in trials.columns
    }
    return trials.assign(**missing).fillna(defaults)


def _columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that a table can hold; texts of numbers become numbers."""
    columns: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TEXTS or is_axis(name):
            columns[name] = str(value)
            if not columns[name].isprintable():
                raise UserError(f"{name} is {value!r}; it must be printable text.")
            continue
        is_flag = isinstance(value, bool | np.bool_) and name in CELL_TYPES
        number = None if is_flag else _number(value)
        if name in (*CELL_TYPES, "steps") and (number is None or np.isnan(number)):
            raise UserError(f"{name} is {value!r}; it must be a number.")
        if name in ("status", "trial"):
            columns[name] = value
        elif number is not None:
            columns[name if name in CELL_TYPES else _identifier(name)] = number
    return columns


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _identifier(name: str) -> str:
    """Returns a name as an identifier: `adam.beta1` becomes `adam_beta1`."""
    word = re.sub(r"\W", "_", name)
    return word if word.isidentifier() else f"_{word}"


def _with_splits(curve: pd.DataFrame, unsplit: str) -> pd.DataFrame:
    """Returns a curve whose metrics are called `split/metric`."""
    names = {
        name: metric_name(str(name), unsplit)
        for name in curve.columns
        if name != "step"
    }
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    if twice:
        both = [old for old, new in names.items() if new == twice[0]]
        raise UserError(
            f"the metrics {' and '.join(map(repr, both))} would both be called "
            f"{twice[0]!r}: rename one of them."
        )
    return curve.rename(columns=names).dropna(how="all", subset=list(names.values()))


def metric_name(name: str, unsplit: str = _UNKNOWN_SPLIT) -> str:
    """Returns the name of a metric of other software as `split/metric`.

    >>> metric_name("val_loss"), metric_name("eval/top-5 error"), metric_name("loss")
    ('validation/loss', 'validation/top-5_error', 'logged/loss')
    """
    if split := split_of(name):
        return f"{split}/{_words(name).partition('_')[2]}"
    return f"{unsplit}/{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}"


def split_of(name: str) -> str:
    """Returns the split that the name of a metric begins with, or ""."""
    start, _, rest = _words(name).partition("_")
    return SPLITS.get(start.lower(), "") if rest else ""


def _words(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def curve_of(values: Mapping[int, Mapping[str, float]]) -> pd.DataFrame:
    """Returns the curve of a run, given its metrics by step."""
    rows = [{"step": step, **values[step]} for step in sorted(values)]
    return pd.DataFrame(rows, columns=None if rows else ["step"])


def from_rows(
    source: str | Path, *, rename: Mapping[str, str] | None = None, **options: Any
) -> Runs:
    """Returns the runs of long tables, with a row per evaluation.

    A table has `step`, metrics, and columns of the cell, metaparameters, `status` and
    `steps` as a table of trials. Rows with the same `run` (or `trial`) are one run.
    Without such a column, rows are one run where all columns but `step` and metrics
    are equal. Metrics are named by their split, as `validation/error` or `val_error`;
    with a column of runs, so is what varies within a run.

    Args:
        source: a CSV or Parquet file, or a folder of them with a run or more in each.
        rename: new names of columns, also to `run` and `step`.
        options: see `runs_of`.

    Raises:
        UserError: no table, or rows that may not be runs; see also `runs_of`.
    """
    root = Path(source).expanduser().absolute()
    is_folder = foreign_files.kind_of(root) == "folder"
    files = sorted(root.rglob("*")) if is_folder else [root]
    # Jupyter keeps older copies in hidden folders.
    files = [p for p in files if "/." not in str(p).removeprefix(str(root))]
    paths = [path for path in files if path.suffix in (".csv", ".parquet")]
    others = sorted(p for p in {*files} - {*paths} if p.is_symlink() or p.is_file())
    if not paths:
        raise UserError(f"{str(root)!r} holds no .csv and no .parquet file.")
    old = {new: name for name, new in (rename or {}).items()}
    if "steps_per_report" not in options and OTHER_STEPS.search(old.get("step", "")):
        raise UserError(
            f"{old['step']!r} is to be the step, which counts updates: divide it, or "
            "give steps_per_report, the updates of each (1 if it counts them)."
        )
    given = dict(options.pop("about", None) or {})
    runs, about, frames = [], {}, []
    for path in paths:
        base = path.relative_to(root).with_suffix("").as_posix() if is_folder else ""
        # The names of runs are texts: 01 is another run than 1.
        texts = [old.get(name, name) for name in ("run", "trial")]
        frame = foreign_files.read_table(path, nan_is_a_value=True, texts=texts)
        frames.append(frame.columns)
        with named(str(path)):
            names = _renamed(dict.fromkeys(frame.columns), rename or {})
            for run in _runs_of_rows(frame.set_axis(list(names), axis=1), base):
                if run.name in about:
                    raise UserError(f"another file has a run {run.name!r}: rename one.")
                own, held = dict(run.columns), {}
                for column in [n for n in own if n in options]:
                    held[column] = own.pop(column)
                held = {n: x for n, x in held.items() if n not in ("status", "steps")}
                runs.append(Run(run.name, run.curve, held))
                about[run.name] = {**own, **given.get(run.name, {})}
    _check_there(rename or {}, *frames)
    read = runs_of(runs, str(root), about={**given, **about}, **options)
    kind = f"one of {len(others)} whose names do not end in .csv or .parquet"
    notes = [f"{str(path)!r} is left out, {kind}." for path in others[:1]]
    return replace(read, notes=(*read.notes, *notes))


def _runs_of_rows(frame: pd.DataFrame, base: str) -> Iterator[Run]:
    require(frame, ["step"], "of evaluations")
    if frame.empty:
        yield Run(base or "row 1", frame)
        return
    keys = [name for name in ("run", "trial") if name in frame.columns][:1]
    others = [
        name
        for name in frame.columns
        if name not in ("step", *keys) and metric_name(name).startswith(_UNKNOWN_SPLIT)
    ]
    metrics = [n for n in frame.columns if n not in ("step", *keys, *others)]
    if keys:
        empty = frame[keys[0]].isna()
        refuse_first(empty, frame[keys[0]], "of evaluations", "the name of a run")
        several = frame.groupby(keys[0])[others].nunique() > 1
        varying = [name for name in others if several[name].any()]
        texts = [name for name in varying if numbers(frame[name]).isna().all()]
        for name in texts:
            told = frame.dropna(subset=name).sort_values(
                "step", kind="stable", key=numbers
            )
            by_run = told.groupby(keys[0])[name]
            begun = (told[name] != by_run.shift()).groupby(told[keys[0]]).sum()
            # A host, which a restart changes, does not come back; a kind of rows does.
            is_kind = (begun > by_run.nunique()).any()
            if is_kind or {str(x).lower() for x in told[name]} <= SPLITS.keys():
                raise UserError(
                    f"{name} tells rows of a run apart: give each of its values "
                    "columns of its own, such as train_error and val_error, or leave "
                    f"{name} out."
                )
        for name in {*varying} & {*CELL_TYPES, "precision", "status", "steps"}:
            run = several.index[several[name]][0]
            raise UserError(f"run {run!r} has several values of {name}: give it one.")
        metrics += [name for name in varying if name not in texts]
        others = [name for name in others if name not in varying]
    for name in ("step", *metrics):
        checked_numbers(frame, name)  # here, where rows have the numbers of the file
    by = keys or others
    groups = frame.groupby(by, sort=False, dropna=False) if by else [("", frame)]
    steps = numbers(frame["step"]).dropna()
    for key, part in groups:
        name = str(key[0]) if keys else f"row {row_number(part, 0)}"
        if not keys:
            _check_run(part, metrics, frame[by], steps)
        if base:
            name = f"{base}/{name}" if len(groups) > 1 else base
        rows = part[others].bfill().iloc[0].dropna()
        columns = {str(column): value for column, value in rows.items()}
        yield Run(name, part[["step", *metrics]], columns)


def _check_run(
    part: pd.DataFrame, metrics: Sequence[str], equal: pd.DataFrame, every: pd.Series
) -> None:
    """Raises UserError for rows, equal in some columns, that may not be one run.

    `equal`: these columns, of all rows of the table; `every`: the steps of these rows.
    """
    rows = f"the run that begins in row {row_number(part, 0)}"
    advice = "add a column `run`, or rename one to it"
    if (part.groupby("step")[list(metrics)].count() > 1).any(axis=None):
        raise UserError(f"{rows} has several values of a metric for a step: {advice}.")
    steps = np.unique(numbers(part["step"]).dropna())
    gap = np.diff(steps if len(steps) > 1 else np.unique(every)).max(initial=0)
    # A file of several runs begins anew somewhere.
    gap = 0 if (every.diff()[1:] > 0).all() else gap
    if len(steps) and steps[0] > max(gap, every.min()):
        empty = [
            f"row {row_number(equal[equal[name].isna()], 0)} has no {name}"
            for name in equal
            if equal[name].isna().any()
        ]
        cause = f" ({' and '.join(empty[:3])})" if empty else ""
        raise UserError(
            f"{rows} begins at step {steps[0]:g}, as if {' or '.join([*equal][:5])} "
            f"changed within a run{cause}: {advice}, leave out columns that count what "
            "`step` counts, and name metrics as split/metric."
        )


def from_keras(
    histories: Mapping[str, Any],
    *,
    validation_freq: int | Collection[int] = 1,
    **options: Any,
) -> Runs:
    """Returns runs of `model.fit`, from the `History` objects that it returned.

    An epoch's evaluation belongs to the update at which the epoch ended. A run that
    ended before its last epoch, by early stopping or a kill, was cut off.

    Args:
        histories: histories by the names of the runs, which the user chooses.
        validation_freq: the argument of `fit` of that name, which no history records.
        options: see `runs_of`; `batch_size` has to be among them, and the number and
            unit of reports must not, which histories state.

    Raises:
        UserError: a history without its steps per epoch, of fewer updates than batches,
            or not validated after the epochs of `validation_freq`; see also `runs_of`.

    Example, after `history = model.fit(...)`:

        runs = from_keras({"first": history}, batch_size=64)
    """
    if not isinstance(histories, Mapping):
        raise UserError(
            f"histories is a {type(histories).__name__}: give a dict of what fit "
            'returned, as {"first": history}.'
        )
    for name in ("steps_per_report", "first_report"):
        if name in options:
            raise UserError(
                f"{name} is given, and a history of Keras states the steps of its "
                f"epochs: leave {name} out."
            )
    every = _epochs(validation_freq)
    runs = (_run_of_keras(name, h, every) for name, h in histories.items())
    return runs_of(runs, "histories of Keras", unsplit="train", **options)


def _epochs(every: Any) -> Container[int]:
    """Returns the epochs, from 1, after which `fit` has validated."""
    listed = every.tolist() if isinstance(every, np.ndarray | np.integer) else every
    if is_whole(listed, 1):
        return range(listed, 10**9, listed)
    if not isinstance(listed, str) and isinstance(listed, Collection):
        epochs = [operator.index(x) if hasattr(x, "__index__") else x for x in listed]
        if all(is_whole(epoch, 1) for epoch in epochs):
            return epochs
    raise UserError(
        f"validation_freq is {every!r}; it must be a whole number of epochs of at "
        "least 1, or a list of such numbers."
    )


def _run_of_keras(name: str, history: Any, every: Container[int]) -> Run:
    steps: Any = (getattr(history, "params", None) or {}).get("steps")
    if not is_whole(steps, 1):
        raise UserError(
            f"the history {name!r} has no number of steps per epoch: give what fit "
            "returned, and fit a data set of known size, or steps_per_epoch."
        )
    epochs = list(history.epoch)
    if epochs != sorted(set(epochs)):
        raise UserError(
            f"the epochs of history {name!r} do not go up, as of several calls of fit: "
            "give each call an initial_epoch, or its history a name of its own."
        )
    optimizer = getattr(getattr(history, "model", None), "optimizer", None)
    made, batches = int(getattr(optimizer, "iterations", 0)), len(epochs) * steps
    note = (
        f"the {len(epochs)} epochs of history {name!r} are {batches} batches, and the "
        f"optimizer has made {made} updates"
    )
    if 0 < made < batches:
        raise UserError(
            f"{note} (accumulated, or stopped within an epoch): use StepsToResult, or "
            "read a history before its model is compiled again."
        )
    # The last fit, which may go on from an earlier one.
    is_less = made > batches and getattr(history.model, "history", None) is history
    if optimizer is not None and batches and not made:
        note = (
            f"{note} (compiled again): each K* is too large if it accumulated batches."
        )
    else:
        note = f"{note}: each K* is too small if a batch had several." * is_less
    validated = [epoch for epoch in epochs if epoch + 1 in every]
    columns = {}
    for column, values in history.history.items():
        of = validated if column.startswith("val_") else epochs
        if len(values) != len(of):
            raise UserError(
                f"the history {name!r} has {len(values)} values of {column!r} for "
                f"{len(of)} epochs: give validation_freq as fit had it."
            )
        if np.ndim(values) > 1:
            raise UserError(
                f"the history {name!r} has several numbers in one value of "
                f"{column!r}: leave that metric out."
            )
        # What is NaN in a history was measured, and not finite.
        columns[column] = pd.Series(values, of, np.float64).map(measured)
    curve = pd.DataFrame(columns, epochs)
    curve.insert(0, "step", [(epoch + 1) * steps for epoch in epochs])
    is_done = bool(epochs) and epochs[-1] + 1 >= history.params["epochs"]
    return Run(name, curve, {}, COMPLETE if is_done else INCOMPLETE, note)
