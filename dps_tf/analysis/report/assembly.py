"""Assembles the report of some sweeps: its sections, sentences and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.cautions import cautions
from dps_tf.analysis.report.content import Part, Report, ReportContext, section_of
from dps_tf.analysis.report.curves import curves_of
from dps_tf.analysis.report.effects import effects_part
from dps_tf.analysis.report.generalization import generalization_part
from dps_tf.analysis.report.headline import headline_part
from dps_tf.analysis.report.law import joint_fits, law_part
from dps_tf.analysis.report.learning_curves import training_curves_part
from dps_tf.analysis.report.learning_rates import learning_rates_part
from dps_tf.analysis.report.measurements import noise_part, smoothness_part
from dps_tf.analysis.report.metaparameters import metaparameters_part
from dps_tf.analysis.report.page import render
from dps_tf.analysis.report.pruning import pairs_part
from dps_tf.analysis.report.published import published_part
from dps_tf.analysis.report.recommendation import recommendations_of
from dps_tf.analysis.report.repeats import repeats_part
from dps_tf.analysis.report.results import health_part, results_part
from dps_tf.analysis.report.summary import first_sentence, summary
from dps_tf.analysis.search_health import best_of_n_table
from dps_tf.analysis.wording import and_list, count
from dps_tf.core import UserError, duration
from dps_tf.store import CURVES, TRIALS, LocalFiles, encode_table


class SectionEntry(NamedTuple):
    """A section of every report: HTML id, heading, and functions that make its parts.

    A section with `is_open` is unfolded when the page loads.
    """

    name: str
    title: str
    parts: tuple[Callable[[ReportContext], Part], ...]
    is_open: bool = False


PAGE = "report.html"
_FILES = {
    "results.csv": "K* of each cell",
    "trials.parquet": "all trials",
    "curves.parquet": "all evaluations",
    "best_of_n.csv": "best of n trials of each cell",
}
SECTIONS = [
    SectionEntry("headline", "K* against batch size", (headline_part,), is_open=True),
    SectionEntry("table", "Results", (results_part,), is_open=True),
    SectionEntry("effects", "Effects of the axes", (effects_part,)),
    SectionEntry("law", "The law K* = c1/B + c2", (law_part,)),
    SectionEntry("repeats", "How noisy is K*?", (repeats_part,)),
    SectionEntry("published", "Fits of published curves", (published_part,)),
    SectionEntry(
        "training",
        "Metaparameters and training",
        (metaparameters_part, learning_rates_part, training_curves_part),
    ),
    SectionEntry("generalization", "Generalization", (generalization_part,)),
    SectionEntry("causes", "Causes", (smoothness_part, pairs_part, noise_part)),
    SectionEntry("health", "Health of the search", (health_part,)),
]
"""The sections of the page in their order; one that shows nothing is left out."""
_SUMMARY = (summary, recommendations_of)
"""The sentences of the summary in their order."""


def register_report_section(
    name: str, title: str, part: Callable[[ReportContext], Part]
) -> None:
    """Adds a section at the end of every report that is made from now on.

    Args:
        name: an HTML id that no other section has.
        title: its heading.
        part: returns what the section shows, given the tables and curves of a report;
            a section without figures and tables is left out.

    Raises:
        UserError: the name is taken.

    Example:
        >>> from dps_tf.analysis.report.content import Column, PageTable
        >>> def sizes_part(context):
        ...     column = Column("batch_size", "Batch size")
        ...     frame = context.tables.results[["batch_size"]]
        ...     return Part(tables=(PageTable("sizes", "Sizes", (column,), frame),))
        >>> register_report_section("sizes", "Batch sizes", sizes_part)
    """
    taken = [entry.name for entry in SECTIONS]
    if name in taken:
        raise UserError(
            f"the report already has a section {name!r}; choose a name other than "
            f"{', '.join(taken)}."
        )
    SECTIONS.append(SectionEntry(name, title, (part,)))


def context_of(tables: Tables, published: pd.DataFrame | None = None) -> ReportContext:
    """Returns what every section and sentence is made from."""
    curves = curves_of(tables.results, tables.studies)
    return ReportContext(tables, curves, joint_fits(curves), published)


def assemble(tables: Tables, published: pd.DataFrame | None = None) -> Report:
    """Returns the report of some sweeps, with published curves if any are given."""
    context = context_of(tables, published)
    sections = [
        section_of(name, title, [part(context) for part in parts], is_open=is_open)
        for name, title, parts, is_open in SECTIONS
    ]
    warned = cautions(context)
    sentence = first_sentence(context, warned)
    return Report(
        title=_title(tables.results),
        lead=_lead(tables),
        sentence=sentence,
        state=_state(tables),
        summary=tuple(text for texts in _SUMMARY for text in texts(context)),
        sections=tuple(section for section in sections if not section.is_empty),
        cautions=warned,
        sweeps=tables.sweeps,
        results=tables.results,
        facts=_facts(tables),
        files=_FILES,
    )


def _title(results: pd.DataFrame) -> str:
    return f"Steps to result of {and_list(list(results['workload'].unique()), 3)}"


def _lead(tables: Tables) -> str:
    """Returns data set, network, optimizer, goal and amounts, for the first screen."""
    results = tables.results
    workloads, optimizers, goals = (
        and_list(list(results[name].unique()), 3)
        for name in ("workload", "optimizer", "goal")
    )
    cells, trials = len(results), int(results["trials"].sum())
    return (
        f"Data set and network: {workloads}. Optimizer: {optimizers}. Goal: {goals}. "
        f"{count(cells, 'cell')} (each a batch size with its settings), "
        f"{count(trials, 'trial')} (training runs)."
    )


def _facts(tables: Tables) -> list[tuple[str, str]]:
    """Returns when and how long the sweeps ran, as pairs (name, text)."""
    facts = []
    times = [time for sweep in tables.sweeps for time in sweep.written or ()]
    if times:
        first, last = (
            f"{datetime.fromtimestamp(time, timezone.utc):%d %B %Y, %H:%M}"
            for time in (min(times), max(times))
        )
        ran = f"{first} UTC" if first == last else f"{first} to {last} UTC"
        facts.append(("Ran (by the dates of its files)", ran))
    work = tables.work
    if len(work):
        whole = work["trial"].isna() & (work["quantity"] == "seconds")
        seconds = float(work.loc[whole, "value"].sum())
        if seconds > 0:
            facts.append(("Search, all trials together", duration(seconds)))
    return facts


def _state(tables: Tables) -> str:
    """Returns sentences on missing and open studies; empty for a finished sweep."""
    still_open = int((~tables.results["closed"]).sum())
    waiting = sum(len(sweep.not_begun) for sweep in tables.sweeps)
    if not still_open + waiting:
        return ""
    parts = []
    if still_open:
        parts.append(
            f"{count(still_open, 'study', 'studies')} of {len(tables.results)} still "
            "open: their K* may fall."
        )
    if waiting:
        have = "has" if waiting == 1 else "have"
        parts.append(f"{count(waiting, 'cell')} {have} not begun.")
    return (
        f"{' '.join(parts)} Run the same command again to continue the sweep, and this "
        "one again afterwards."
    )


def write_report(
    tables: Tables,
    out: str | Path,
    published: pd.DataFrame | None = None,
    refresh: int = 0,
    progress: str = "",
) -> Report:
    """Writes page, figures and tables into a directory and returns the report.

    Files of the same names are replaced, each atomically; others are left alone. The
    same tables give the same bytes with the same versions of the libraries. After
    `refresh` seconds a browser loads the page again, never by default; `progress` is
    how far the sweeps are while they run, for the top of the page.

    Raises:
        UserError: the directory cannot be written.
    """
    folder = made_folder(Path(out))
    report = assemble(tables, published)
    if progress:
        report = replace(report, state=f"{report.state} Now: {progress}.".strip())
    trials = tables.bounded.drop(columns=["earliest", "latest"])
    contents = {
        PAGE: render(report, refresh).encode(),
        "results.csv": csv_bytes(tables.results),
        "best_of_n.csv": csv_bytes(best_of_n_table(tables.bounded, tables.studies)),
        "trials.parquet": encode_table(trials, TRIALS.of_several_sweeps()),
        "curves.parquet": encode_table(tables.curves, CURVES.of_several_sweeps()),
    }
    write_files(contents, report, folder)
    return report


def made_folder(folder: Path) -> Path:
    """Makes a folder and returns it; UserError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {folder}: {error.strerror}."
        ) from error
    return folder


def write_files(contents: dict[str, bytes], report: Report, folder: Path) -> None:
    """Writes contents under their file names, and the figures of a report."""
    for section in report.sections:
        for item in section.illustrations:
            contents[f"{item.name}.svg"] = item.svg
            if item.png:
                contents[f"{item.name}.png"] = item.png
    files = LocalFiles()
    files.remove_stale(str(folder))
    # The page last: once it is there, so are the figures that it was written for.
    page = contents.pop(PAGE)
    files.write_many({str(folder / k): data for k, data in contents.items()})
    files.write_atomic(str(folder / PAGE), page)


def csv_bytes(results: pd.DataFrame) -> bytes:
    """Returns results as CSV: shortest exact numbers, missing values empty.

    Text that a spreadsheet would run as a formula has an apostrophe before it.
    """
    safe = results.rename(columns=_plain)
    for place, name in enumerate(results.columns):
        if not pd.api.types.is_numeric_dtype(results[name]):
            safe.isetitem(place, [_plain(value) for value in results[name]])
    return safe.to_csv(index=False, na_rep="", lineterminator="\n").encode()


def _plain(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
