"""What a report consists of, before anybody decides how it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from dps_tf.analysis.figures import saving

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Tooltip:
    """A place on a figure that tells its numbers when pointed at.

    Attributes:
        left: fraction of the figure's width.
        top: fraction of the figure's height, from the top.
        text: what it tells.
    """

    left: float
    top: float
    text: str


@dataclass(frozen=True)
class Illustration:
    """A figure with what it takes to understand it, also without seeing it.

    Attributes:
        name: file name without suffix.
        title: heading.
        caption: definitions and tolerances of everything that is drawn.
        alt: what the figure shows, for those who cannot see it.
        svg: bytes of the file.
        png: bytes of the file; empty for a folded figure, which is SVG only.
        width: CSS pixels at full size.
        height: CSS pixels at full size.
        folded: whether the reader has to open it first.
        spots: places that tell numbers.
        narrow: the figure drawn again for phones, as SVG; empty if it is the same.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: bytes
    png: bytes
    width: int
    height: int
    folded: bool = False
    spots: tuple[Tooltip, ...] = ()
    narrow: bytes = b""


@dataclass(frozen=True)
class FigureText:
    """The texts of an illustration; see there."""

    name: str
    title: str
    caption: str
    alt: str


def illustration(
    figure: Figure,
    words: FigureText,
    *,
    folded: bool = False,
    spots: Sequence[Tooltip] = (),
    narrow: bytes = b"",
) -> Illustration:
    """Returns a drawn figure as files, with its texts."""
    width, height = figure.get_size_inches()
    saving.lay_out(figure)
    return Illustration(
        name=words.name,
        title=words.title,
        caption=words.caption,
        alt=words.alt,
        svg=saving.svg(figure),
        # There are many folded ones, and drawing takes most of the time of a report.
        png=b"" if folded else saving.png(figure),
        # A CSS inch has 96 pixels.
        width=round(96 * width),
        height=round(96 * height),
        folded=folded,
        spots=tuple(spots),
        narrow=narrow,
    )


@dataclass(frozen=True)
class SortableText:
    """A cell of a table whose text is not what it is sorted by.

    Attributes:
        text: what stands there.
        key: what it is sorted by; NaN comes last.
    """

    text: str
    key: float


@dataclass(frozen=True)
class Column:
    """A column of a table on the page.

    Attributes:
        name: column of the frame.
        title: heading.
        explanation: what it holds, in a sentence.
    """

    name: str
    title: str
    explanation: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table on the page.

    Attributes:
        name: unique on the page, an HTML id.
        caption: what one row is.
        columns: in their order.
        frame: the values; texts and numbers.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading of its own; left out if it holds nothing.

    Attributes:
        name: unique on the page, an HTML id.
        title: heading.
        paragraphs: text before everything else.
        illustrations: in their order.
        tables: after the illustrations.
    """

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    illustrations: tuple[Illustration, ...] = ()
    tables: tuple[PageTable, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.illustrations or self.tables)


@dataclass(frozen=True)
class Caution:
    """Something a reader has to know before trusting a number.

    Attributes:
        title: a few words.
        text: what it means and what to do.
        cells: names of the cells it is about; empty if it is about all.
        is_note: whether nothing is wrong: it belongs to the protocol.
    """

    title: str
    text: str
    cells: tuple[str, ...] = ()
    is_note: bool = False


@dataclass(frozen=True)
class Configuration:
    """What a sweep was run with.

    Attributes:
        sweep: the directory as the user named it.
        gin: the resolved gin configuration.
        environments: builds and instruction sets that its studies have seen.
    """

    sweep: str
    gin: str
    environments: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Report:
    """All of a report.

    Attributes:
        title: of the page.
        lead: what was measured, in one or two sentences.
        state: what is missing, if the sweep is not finished; else empty.
        summary: a plain sentence per curve.
        sections: in their order, the headline first.
        cautions: those of the search first.
        configurations: one per sweep.
        results: the table of results, for files and the terminal.
    """

    title: str
    lead: str
    state: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    cautions: tuple[Caution, ...]
    configurations: tuple[Configuration, ...]
    results: pd.DataFrame
