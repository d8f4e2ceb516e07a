"""The report as one HTML file that loads nothing.

Every text is escaped by the template engine; a content security policy forbids the
page to load or run anything but what it holds itself.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import platform
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import scipy
from markupsafe import Markup

import dps_tf
from dps_tf.analysis.report.citations import BIBTEX, CITATIONS
from dps_tf.analysis.report.content import (
    Illustration,
    PageTable,
    Report,
    SortableText,
)
from dps_tf.analysis.report.wording import number

_LARGEST_SVG = 400_000
"""Bytes from which a figure is embedded as pixels, to keep the page quick."""


@dataclass(frozen=True)
class _Cell:
    text: str
    key: str
    is_number: bool


def render(report: Report, specification: PageTable | None) -> str:
    """Returns the page.

    Args:
        report: what it shows.
        specification: the table of what was asked of each cell, if there are any.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dps_tf.analysis", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["data_uri"] = data_uri
    environment.filters["narrow_uri"] = narrow_uri
    script = _source(environment, "report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        report=report,
        specification=_prepared(specification) if specification else None,
        prepared=_prepared,
        citations=CITATIONS,
        bibtex=BIBTEX,
        version=dps_tf.__version__,
        versions=_versions(),
        style=Markup(_source(environment, "report.css")),  # noqa: S704 (own file)
        script=Markup(script),  # noqa: S704 (own file)
        script_hash=f"sha256-{digest}",
    )


def _source(environment: jinja2.Environment, name: str) -> str:
    """Returns a file of the templates as it is."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def data_uri(item: Illustration) -> str:
    """Returns a figure as an address that holds it."""
    is_small = len(item.svg) <= _LARGEST_SVG or not item.png
    kind, data = ("svg+xml", item.svg) if is_small else ("png", item.png)
    return _address(kind, data)


def narrow_uri(item: Illustration) -> str:
    """Returns the figure for phones as an address that holds it."""
    return _address("svg+xml", item.narrow)


def _address(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _prepared(table: PageTable) -> dict[str, Any]:
    """Returns a table as the template writes it."""
    rows = [
        [_cell(row[column.name]) for column in table.columns]
        for row in table.frame.to_dict("records")
    ]
    numbers = [
        bool(rows) and all(row[place].is_number for row in rows)
        for place in range(len(table.columns))
    ]
    return {
        "name": table.name,
        "caption": table.caption,
        "columns": [
            {"title": column.title, "is_number": is_number}
            for column, is_number in zip(table.columns, numbers, strict=True)
        ],
        "rows": rows,
        "explained": [column for column in table.columns if column.explanation],
    }


def _cell(value: Any) -> _Cell:
    if isinstance(value, SortableText):
        missing = np.isnan(value.key)
        return _Cell(value.text, "" if missing else repr(value.key), True)
    if isinstance(value, str):
        return _Cell(value, value, False)
    if pd.isna(value):
        return _Cell("", "", True)
    if isinstance(value, (bool, np.bool_)):
        return _Cell("yes" if value else "no", str(int(value)), False)
    if isinstance(value, (int, np.integer)):
        return _Cell(f"{value:,}", str(int(value)), True)
    return _Cell(number(float(value), 4), repr(float(value)), True)


def _versions() -> dict[str, str]:
    return {
        "dps_tf": dps_tf.__version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
        "pandas": pd.__version__,
        "Matplotlib": importlib.metadata.version("matplotlib"),
    }
