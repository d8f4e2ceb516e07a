"""The files of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.assembly import ReportOptions, assemble, published_report
from dps_tf.analysis.report.best_of_n import best_of_n_table
from dps_tf.analysis.report.content import Report
from dps_tf.analysis.report.page import render
from dps_tf.analysis.report.specification import specification_table
from dps_tf.core.errors import UserError
from dps_tf.store.files import LocalFiles
from dps_tf.store.schemas import CURVES, TRIALS
from dps_tf.store.tables import encode_table

PAGE = "report.html"


def write_report(
    tables: Tables,
    out: str | Path,
    wishes: ReportOptions = ReportOptions(),  # noqa: B008 (frozen)
) -> Report:
    """Writes page, figures and tables into a directory and returns the report.

    Files of the same names are replaced, each atomically; others are left alone. The
    same tables give the same bytes with the same versions of the libraries.

    Args:
        tables: of some sweeps.
        out: the directory; made if absent.
        wishes: what else is asked for.

    Raises:
        UserError: the directory cannot be written, or a wish cannot be met.
    """
    folder = _made(Path(out))
    report = assemble(tables, wishes)
    trials = tables.bounded.drop(columns=["earliest", "latest"])
    contents = {
        PAGE: render(report, specification_table(tables.studies)).encode(),
        "results.csv": csv_bytes(tables.results),
        "best_of_n.csv": csv_bytes(best_of_n_table(tables.bounded)),
        "results.parquet": bytes(tables.results.to_parquet(index=False)),
        "trials.parquet": encode_table(trials, TRIALS.of_several_sweeps()),
        "curves.parquet": encode_table(tables.curves, CURVES.of_several_sweeps()),
    }
    _write(contents, report, folder)
    return report


def write_published(names: Sequence[str], out: str | Path) -> Report:
    """Writes a report of published curves alone; see `write_report`."""
    folder = _made(Path(out))
    report = published_report(names)
    table = published.steps_to_result(None if "all" in names else list(names))
    contents = {
        PAGE: render(report, None).encode(),
        "published.csv": csv_bytes(table),
    }
    _write(contents, report, folder)
    return report


def _made(folder: Path) -> Path:
    """Returns a folder that is there, so that a wrong one is told before the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {folder}: {error.strerror}."
        ) from error
    return folder


def _write(contents: dict[str, bytes], report: Report, folder: Path) -> None:
    for section in report.sections:
        for item in section.illustrations:
            contents[f"{item.name}.svg"] = item.svg
            if item.png:
                contents[f"{item.name}.png"] = item.png
    files = LocalFiles()
    files.remove_stale(str(folder))
    # The page last: it is complete with the figures that it was written for.
    page = contents.pop(PAGE)
    files.write_many({str(folder / k): data for k, data in contents.items()})
    files.write_atomic(str(folder / PAGE), page)


def csv_bytes(results: pd.DataFrame) -> bytes:
    """Returns results as CSV: shortest exact numbers, missing values empty."""
    return results.to_csv(index=False, na_rep="", lineterminator="\n").encode()
