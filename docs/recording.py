"""A sweep recorded as tables beside a document: K*, trials, curves, measurements."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.loading import Tables, load
from dps_tf.analysis.report.generalization import at_result
from dps_tf.analysis.tables import axes_of, metaparameter_names, study_key, with_axes


def record(sweep_dir: str, stem: str) -> None:
    """Writes the tables of a sweep beside a document.

    STEM.csv has K*, and STEM_trials.csv the trials. STEM_evaluations.csv.gz has each
    evaluation of the goal's metric, so that anyone can ask for another goal. Where
    trials were measured along training, STEM_measurements.csv has the measurements.
    """
    tables = load(sweep_dir)
    results = with_splits(tables)
    finished = results[results["closed"]]
    ends = ("", "_trials", "_measurements")
    cells, trials, measured = (f"{stem}{end}.csv" for end in ends)
    evaluations = f"{stem}_evaluations.csv.gz"
    written = {
        cells: cells_of(finished, finished, cells),
        trials: cells_of(trainings(tables), finished, trials),
        evaluations: cells_of(
            curves_of(tables), finished, evaluations, float_format="%.6g"
        ),
    }
    if len(tables.measurements) or Path(measured).exists():
        names = [*study_key(tables.measurements), "trial", "step", "examples"]
        wide = tables.measurements.pivot(
            index=names, columns="quantity", values="value"
        ).reset_index()
        written[measured] = cells_of(wide, finished, measured, float_format="%.6g")
    for path, table in written.items():
        # Without the time of writing, the same table gives the same bytes.
        packed = {"method": "gzip", "mtime": 0} if path.endswith(".gz") else None
        table.to_csv(path, index=False, compression=packed)


def curves_of(tables: Tables) -> pd.DataFrame:
    """Returns the evaluations of the goal's metric, one row each, in their order.

    Columns: `study_key`, trial, step, is_bound (the value is then the least possible
    one), and the metric.
    """
    names = [*study_key(tables.curves), "trial", "step"]
    metrics = sorted({goal.metric for goal in tables.goals})
    return tables.curves[[*names, "is_bound", *metrics]].sort_values(names)


def cells_of(
    table: pd.DataFrame, finished: pd.DataFrame, path: str, **options: Any
) -> pd.DataFrame:
    """Returns a CSV file with rows of finished cells in the place of their old ones."""
    key = study_key(finished)
    new = as_text(pd.merge(table, finished[key], on=key)[table.columns], **options)
    if Path(path).exists():
        old = pd.read_csv(path, dtype=str, keep_default_na=False)
        missing = sorted(set(study_key(old)) - set(old))
        if missing:
            sys.exit(
                f"error: {path} has no column {missing[0]!r}: choose another STEM."
            )
        axes = {*axes_of(old), *axes_of(finished)}
        replaced = as_text(finished[key], **options)
        replaced, old, new = (with_axes(rows, axes) for rows in (replaced, old, new))
        key = study_key(replaced)
        cells = set(replaced[key].itertuples(index=False, name=None))
        others = [
            cell not in cells for cell in old[key].itertuples(index=False, name=None)
        ]
        new = pd.concat([old[others], new], ignore_index=True).fillna("")
    by = pd.read_csv(io.StringIO(new[key].to_csv(index=False)))
    return new.iloc[by.sort_values(key, kind="stable").index]


def as_text(table: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Returns a table with each value as a CSV file has it."""
    text = io.StringIO(table.to_csv(index=False, **options))
    return pd.read_csv(text, dtype=str, keep_default_na=False)


def with_splits(tables: Tables) -> pd.DataFrame:
    """Returns the results, with the metric of the best trial at K* on each split.

    Columns train_at_result, validation_at_result and test_at_result, where there is a
    test set.
    """
    found = at_result(tables.results, tables)
    if found["test"].isna().all():
        return tables.results
    values = found[["train", "validation", "test"]].add_suffix("_at_result")
    return tables.results.join(values)


def trainings(tables: Tables) -> pd.DataFrame:
    """Returns the trials of a sweep and the repeats of its best points, one row each.

    Columns: `study_key`, trial, repeat (empty for a trial of the search),
    metaparameters, outcome, steps_to_result, bracket_low.
    """
    names = [*study_key(tables.results), "trial"]
    points = metaparameter_names(tables.trials)
    last = [*points, "outcome", "steps_to_result", "bracket_low"]
    where = tables.trials[[*names, *points]]
    found = [tables.trials.assign(repeat=pd.NA)]
    if len(tables.repeats):
        found.append(tables.repeats.merge(where, on=names))
    every = pd.concat([table[[*names, "repeat", *last]] for table in found])
    every = every.astype({"repeat": "Int64"})
    ran_on = tables.studies[tables.studies["search_mode"] == "exhaustive"]
    return every.merge(least_errors(tables, ran_on), "left") if len(ran_on) else every


def least_errors(tables: Tables, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the least validation error of trials, which ran to their ends.

    Columns: `study_key`, trial, least_validation, and test_at_least where a test set
    was evaluated.
    """
    key = study_key(studies)
    curves = tables.curves[~tables.curves["is_bound"].astype(bool)]
    curves = curves.merge(studies[key], on=key)
    split, _, metric = tables.goals[0].metric.partition("/")
    least = curves.loc[curves.groupby([*key, "trial"])[f"{split}/{metric}"].idxmin()]
    named = {f"{split}/{metric}": "least_validation", f"test/{metric}": "test_at_least"}
    measured = [name for column, name in named.items() if column in least]
    return least.rename(columns=named)[[*key, "trial", *measured]]
