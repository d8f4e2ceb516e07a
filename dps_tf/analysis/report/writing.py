"""The files of a report."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.assembly import assemble
from dps_tf.analysis.report.content import Report
from dps_tf.analysis.report.page import render
from dps_tf.analysis.report.specification import specification_table
from dps_tf.core.errors import UserError
from dps_tf.store.errors import StoreError
from dps_tf.store.files import LocalFiles
from dps_tf.store.schemas import CURVES, TRIALS
from dps_tf.store.tables import encode_table

PAGE = "report.html"


def write_report(tables: Tables, out: str | Path) -> Report:
    """Writes page, figures and tables into a directory and returns the report.

    Files of the same names are replaced, each atomically; others are left alone. The
    same tables give the same bytes with the same versions of the libraries.

    Args:
        tables: of some sweeps.
        out: the directory; made if absent.

    Raises:
        UserError: the directory cannot be written.
    """
    report = assemble(tables)
    contents = {
        PAGE: render(report, specification_table(tables.studies)).encode(),
        "results.csv": csv_bytes(tables.results),
        "results.parquet": _parquet(tables.results),
        "trials.parquet": encode_table(
            tables.bounded.drop(columns=["earliest", "latest"]), TRIALS
        ),
        "curves.parquet": encode_table(tables.curves, CURVES),
    }
    for section in report.sections:
        for item in section.illustrations:
            contents[f"{item.name}.svg"] = item.svg
            contents[f"{item.name}.png"] = item.png
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {str(folder / name): data for name, data in contents.items()}
        LocalFiles().write_many(files)
    except (OSError, StoreError) as error:
        raise UserError(f"the report cannot be written to {out}: {error}") from error
    return report


def csv_bytes(results: pd.DataFrame) -> bytes:
    """Returns results as CSV: shortest exact numbers, missing values empty."""
    return results.to_csv(index=False, na_rep="", lineterminator="\n").encode()


def _parquet(results: pd.DataFrame) -> bytes:
    return bytes(results.to_parquet(index=False))
