"""The public archive of Shallue et al. 2019 as the tables that all analyses read.

The archive holds 71 million measurements in some 194,000 files. It is read one study at
a time, and `convert` writes what was read before it reads on, so that memory holds one
study. Nothing here downloads anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dps_tf.analysis.archive_layout import StudyFolder, space_of, study_folders
from dps_tf.analysis.archive_reader import ArchiveRules, StudyTables, read_study
from dps_tf.analysis.tables import IDENTITY, TRIAL_COLUMNS
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal

Goals = Goal | Callable[[StudyFolder], Goal | None]
"""One goal, or the goal of each study; None leaves the study out."""
TABLES = ("studies", "trials", "curves")


def read_studies(
    root: str | Path, goal: Goals, rules: ArchiveRules | None = None
) -> Iterator[StudyTables]:
    """Yields the tables of one study after the other.

    Args:
        root: folder that the archive unpacks to, or any folder inside of it.
        goal: strict in the publication; see Goals.
        rules: which trials count.
    """
    for folder in study_folders(Path(root)):
        wanted = goal if isinstance(goal, Goal) else goal(folder)
        if wanted is not None:
            yield read_study(folder, wanted, rules)


def read_archive(
    root: str | Path, goal: Goals, rules: ArchiveRules | None = None
) -> StudyTables:
    """Returns the tables of all studies together, for archives that fit in memory."""
    return joined(read_studies(root, goal, rules))


def joined(parts: Iterator[StudyTables]) -> StudyTables:
    """Returns the tables of several studies as one; studies tune different names."""
    found = list(parts)
    if not found:
        raise UserError("no study is left to read: no goal is given for any of them.")
    return StudyTables(
        *(
            pd.concat([getattr(part, name) for part in found], ignore_index=True)
            for name in TABLES
        )
    )


def convert(
    root: str | Path,
    out: str | Path,
    goal: Goals,
    rules: ArchiveRules | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> int:
    """Writes studies.parquet, trials.parquet and curves.parquet; returns the studies.

    Metaparameters that no study.json lists as tuned are left out.

    Args:
        root: folder that the archive unpacks to.
        out: folder for the three files; it need not exist.
        goal: strict in the publication; see Goals.
        rules: which trials count.
        progress: called with one line per study.
    """
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    names = _metaparameters(Path(root))
    writers: dict[str, pq.ParquetWriter] = {}
    number = 0
    try:
        for tables in read_studies(root, goal, rules):
            for name in TABLES:
                frame = getattr(tables, name)
                if name == "trials":
                    frame = _with_columns(frame, names)
                table = pa.Table.from_pandas(frame, preserve_index=False)
                if name not in writers:
                    schema = _schema(table.schema)
                    path = target / f"{name}.parquet"
                    writers[name] = pq.ParquetWriter(path, schema)
                writers[name].write_table(table.cast(writers[name].schema))
            number += 1
            study = tables.studies.iloc[0]
            progress(f"{study['workload']} {study['optimizer']} {study['batch_size']}")
    finally:
        for writer in writers.values():
            writer.close()
    if not number:
        raise UserError("no study is left to read: no goal is given for any of them.")
    return number


def load_converted(folder: str | Path) -> StudyTables:
    """Returns the tables that `convert` wrote."""
    try:
        return StudyTables(
            *(pd.read_parquet(Path(folder) / f"{name}.parquet") for name in TABLES)
        )
    except FileNotFoundError as error:
        raise UserError(
            f"{str(folder)!r} holds no converted archive: {error.filename!r} is absent."
        ) from error


def _metaparameters(root: Path) -> list[str]:
    """Returns every name that any study tunes, for one table of all trials."""
    names: dict[str, None] = {}
    for folder in study_folders(root):
        names.update(dict.fromkeys(space_of(folder.configuration)))
    return list(names)


def _with_columns(trials: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    fixed = [name for name in trials.columns if name in {*IDENTITY, *TRIAL_COLUMNS}]
    frame = trials.reindex(columns=[*fixed, *names])
    frame[names] = frame[names].astype(np.float64)
    return frame


def _schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with columns that hold nothing yet as text."""
    # The pandas metadata would state the first study's types for all of them.
    fields = [
        pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type)
        for f in schema
    ]
    return pa.schema(fields)


def describe(tables: StudyTables) -> str:
    """Returns one line about what was read."""
    counts = tables.trials["outcome"].value_counts().to_dict()
    return (
        f"{len(tables.studies)} studies, {len(tables.trials)} trials "
        f"({json.dumps(counts)}), {len(tables.curves)} evaluations"
    )
