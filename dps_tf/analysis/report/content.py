"""The parts of a report, as values: figures, tables, sections and cautions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from dps_tf.analysis.law import Comparison, CurveRatio, Estimate, LawFit
from dps_tf.analysis.loading import SweepRecord, Tables
from dps_tf.analysis.report import style
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.style import Figure
from dps_tf.analysis.wording import number, with_interval
from dps_tf.core import Curve

CAPTION = 400
"""Most letters of a caption: four lines of the page."""


@dataclass(frozen=True, kw_only=True)
class Illustration:
    """A figure as the bytes of its files, with its texts.

    Attributes:
        name: file name without suffix.
        title: heading.
        caption: what is drawn, in at most CAPTION letters.
        alt: what the figure shows, for a screen reader.
        definition: definitions of what is drawn, for the section of definitions that
            the caption links to; empty if the caption is enough.
        svg: bytes of the SVG file.
        png: bytes of the PNG file; empty for a folded figure, which is SVG only.
        width: CSS pixels at full size, as `height`.
        folded: whether the reader has to open the figure first.
        chart: interactive chart that replaces the figure in a browser with scripts:
            JSON for BokehJS, see `charts`; empty if there is none.
        trials: JSON of the trials that the reader may add to the chart, cell by cell;
            see `learning_curves.trials_by_cell`.
    """

    name: str
    title: str
    caption: str
    alt: str
    definition: str = ""
    svg: bytes
    png: bytes
    width: int
    height: int
    folded: bool = False
    chart: str = ""
    trials: str = ""


def illustration(
    figure: Figure, name: str, title: str, *, folded: bool = False, **texts: str
) -> Illustration:
    """Returns a drawn figure as files, with its texts.

    `texts` are caption, alt and, as needed, definition, chart and trials; see
    `Illustration`.
    """
    width, height = figure.get_size_inches()
    style.lay_out(figure)
    return Illustration(
        name=name,
        title=title,
        **texts,
        svg=style.svg(figure),
        # Folded figures are many, and drawing takes most of the time of a report.
        png=b"" if folded else style.png(figure),
        # A CSS inch has 96 pixels.
        width=round(96 * width),
        height=round(96 * height),
        folded=folded,
    )


@dataclass(frozen=True)
class SortableText:
    """A cell of a table that is sorted by a key; NaN comes last."""

    text: str
    key: float


NOTHING = SortableText("", float("nan"))


def number_text(value: Any, write: Callable[[float], str] = number) -> SortableText:
    """Returns a number as a table shows it; nothing where it is missing or infinite."""
    if pd.isna(value) or math.isinf(value):
        return NOTHING
    return SortableText(write(float(value)), float(value))


def estimate_text(estimate: Estimate) -> SortableText:
    """Returns a value with its interval, as a table shows it."""
    text = with_interval(estimate.value, estimate.low, estimate.high)
    return SortableText(text, estimate.value)


def constants(fit: LawFit | CurveRatio[Any]) -> dict[str, SortableText]:
    """Returns c1, c2 and c1/c2 (`critical`) of a curve, or the ratios of two curves."""
    return {
        "c1": estimate_text(fit.c1),
        "c2": estimate_text(fit.c2),
        "critical": estimate_text(fit.critical_batch_size),
    }


@dataclass(frozen=True)
class Column:
    """A column of a table: name in the frame, heading, and a sentence that explains."""

    name: str
    title: str
    explanation: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table on the page; `name` is an HTML id, `caption` says what a row is."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame


def page_table(
    name: str,
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
) -> PageTable:
    """Returns a table on the page from its rows, dicts by name of the column."""
    frame = pd.DataFrame(rows, columns=[column.name for column in columns])
    return PageTable(name, caption, tuple(columns), frame)


@dataclass(frozen=True)
class Part:
    """The contents of a section that one module makes.

    Attributes:
        paragraphs: texts above the illustrations.
        illustrations: figures in their order.
        tables: tables, which follow the illustrations of all parts.
        title: heading in place of the section's own; empty to keep its own.
    """

    paragraphs: Sequence[str] = ()
    illustrations: Sequence[Illustration] = ()
    tables: Sequence[PageTable] = ()
    title: str = ""


@dataclass(frozen=True)
class Section(Part):
    """A section of the report: all parts under one heading.

    Attributes:
        name: an HTML id, unique on the page.
        is_open: whether the reader sees it without opening it.
    """

    name: str = ""
    is_open: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.illustrations or self.tables)


@dataclass(frozen=True)
class ReportContext:
    """The tables, curves and fits from which every section is made.

    Attributes:
        tables: tables of all sweeps.
        curves: names, plotted rows, fits and regimes of all curves.
        joint: joint fits of comparable curves; see `law.joint_fits`.
        published: curves to compare with, as of `published.read_published`, or None.
    """

    tables: Tables
    curves: Curves
    joint: Sequence[Comparison[Curve]]
    published: pd.DataFrame | None = None


def section_of(
    name: str, title: str, parts: Sequence[Part], *, is_open: bool = False
) -> Section:
    """Returns a section: texts of all parts, then their figures, then their tables."""
    items = [item for part in parts for item in part.illustrations]
    names = [item.name.lower() for item in items]
    # Names of files are ASCII, and some disks know no cases: two curves may share one.
    for place, item in enumerate(items):
        if before := names[:place].count(names[place]):
            items[place] = replace(item, name=f"{item.name}__{before + 1}")
    return Section(
        tuple(text for part in parts for text in part.paragraphs),
        tuple(items),
        tuple(table for part in parts for table in part.tables),
        next((part.title for part in parts if part.title), title),
        name,
        is_open,
    )


@dataclass(frozen=True)
class Caution:
    """Something that a reader has to know before trusting a number.

    Attributes:
        cells: names of the cells concerned; empty if all are.
        is_note: whether it only describes the protocol, and nothing is wrong.
        unit: what `cells` are names of, in the singular.
    """

    title: str
    text: str
    cells: tuple[str, ...] = ()
    is_note: bool = False
    unit: str = "cell"


@dataclass(frozen=True)
class Report:
    """Everything that a report shows.

    Attributes:
        lead: what was measured, in a line under the title.
        sentence: the main result, with the cautions on it; may be empty.
        state: what is missing, if the sweep is not finished; else empty.
        summary: plain sentences on each curve and on how curves compare.
        results: the table of results, for files and the terminal.
        facts: when and how long the sweeps ran, as name and value.
        files: names of the tables beside the page, with what they hold.
    """

    title: str
    lead: str
    state: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    cautions: tuple[Caution, ...]
    sweeps: Sequence[SweepRecord]
    results: pd.DataFrame
    facts: Sequence[tuple[str, str]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    sentence: str = ""
