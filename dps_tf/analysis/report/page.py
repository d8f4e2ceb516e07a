"""Renders the report as one HTML file that loads no other file.

Every text is escaped by the template engine; a content security policy forbids the
page to load or run anything that it does not hold itself.
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
from dps_tf.analysis.report.cautions import caution_text
from dps_tf.analysis.report.charts import library
from dps_tf.analysis.report.content import (
    Illustration,
    PageTable,
    Report,
    SortableText,
)
from dps_tf.analysis.wording import number

_LARGEST_SVG = 400_000
"""Bytes of an SVG beyond which a figure is embedded as PNG, for a quick page."""


@dataclass(frozen=True)
class _Cell:
    text: str
    key: str
    is_number: bool


def render(report: Report, refresh: int = 0) -> str:
    """Returns the page as HTML; a browser reloads it every `refresh` seconds.

    0 seconds stand for never.
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
    environment.filters["json_block"] = json_block
    script = _source(environment, "report.js")
    figures = [item for part in report.sections for item in part.illustrations]
    # Only what draws is embedded, and only where there is something to draw.
    scripts = [script]
    if any(item.chart for item in figures):
        scripts = [library(), script]
    return environment.get_template("report.html.j2").render(
        report=report,
        definitions={
            item.title: item.definition for item in figures if item.definition
        },
        caution_text=caution_text,
        prepared=_prepared,
        refresh=refresh,
        version=dps_tf.__version__,
        versions=_versions(),
        style=Markup(_source(environment, "report.css")),  # noqa: S704 (own file)
        scripts=[Markup(text) for text in scripts],  # noqa: S704 (no input in them)
        script_hashes=[_hash(text) for text in scripts],
    )


def _hash(script: str) -> str:
    """Returns the hash by which a content security policy allows a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def json_block(text: str) -> Markup:
    """Returns JSON that stays inside its script element, whatever its texts hold."""
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 (no tag can begin)


def _source(environment: jinja2.Environment, name: str) -> str:
    """Returns the text of a template file, not rendered."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def data_uri(item: Illustration) -> str:
    """Returns a figure as a data URI."""
    is_small = len(item.svg) <= _LARGEST_SVG or not item.png
    kind, data = ("svg+xml", item.svg) if is_small else ("png", item.png)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _prepared(table: PageTable) -> dict[str, Any]:
    """Returns the values from which the template writes a table."""
    rows = [
        [_cell(row[column.name]) for column in table.columns]
        for row in table.frame.to_dict("records")
    ]
    numbers = [
        bool(rows) and all(row[position].is_number for row in rows)
        for position in range(len(table.columns))
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
        "Bokeh": importlib.metadata.version("bokeh"),
    }
