"""Renders the report as one HTML file that loads no other file.

Every text is escaped by the template engine; a content security policy forbids the
page to load or run anything that it does not hold itself.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
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
    Column,
    Illustration,
    PageTable,
    Report,
    SortableText,
    page_table,
)
from dps_tf.analysis.report.curves import axis_texts
from dps_tf.analysis.tables import axes_of
from dps_tf.analysis.wording import number

_LARGEST_SVG = 400_000
"""Bytes of an SVG beyond which a figure is embedded as PNG, for a quick page."""
_COLUMNS = (
    Column("workload", "Workload"),
    Column("optimizer", "Optimizer"),
    Column("sparsity_method", "Sparsity method"),
    Column("sparsities", "Sparsities"),
    Column("batch_sizes", "Batch sizes"),
    Column("seeds", "Study seeds"),
    Column("goal", "Goal of training"),
    Column("points", "N", "Trials, or feasible trials, that each study pays for."),
    Column("count", "Counted", "Whether N counts all trials or feasible ones."),
    Column("search_mode", "Search", "With m, the finishers that are exact in a race."),
    Column("step_budget", "Step budget", "Steps a trial may run."),
    Column("interval", "Evaluated every", "Steps between evaluations."),
    Column("examples", "Examples", "For training, and for each evaluation."),
    Column("space", "Space", "Range and scale of each tuned metaparameter."),
    Column("precision", "Precision", "In which the networks compute."),
    Column("prunable", "Prunable", "Which parameters are ranked for pruning."),
)
_SAME = [
    "workload",
    "optimizer",
    "sparsity_method",
    "precision",
    "goal",
    "points",
    "count",
    "search_mode",
    "finishers",
    "step_budget",
    "training_examples",
    "evaluation_examples",
    "space",
    "prunable",
]


@dataclass(frozen=True)
class _Cell:
    text: str
    key: str
    is_number: bool


def render(report: Report, specification: PageTable | None, refresh: int = 0) -> str:
    """Returns the page as HTML, with the table of configurations if one is given.

    A browser reloads the page every `refresh` seconds; 0 for never.
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
        specification=_prepared(specification) if specification else None,
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


def specification_table(studies: pd.DataFrame) -> PageTable:
    """Returns one row per group of cells of equal configuration."""
    rows = []
    axes = axes_of(studies)
    for _, group in studies.groupby([*_SAME, *axes], sort=False):
        first = group.iloc[0]
        race = first["search_mode"] == "race"
        finishers = f", m = {first['finishers']}" if race else ""
        examples = first["training_examples"], first["evaluation_examples"]
        row: dict[str, Any] = {
            **{name: first[name] for name in _SAME},
            "sparsities": _listed(group["sparsity"]),
            "batch_sizes": _listed(group["batch_size"]),
            "seeds": _listed(group["seed"]),
            "search_mode": first["search_mode"] + finishers,
            "interval": _listed(group["evaluation_interval"]),
            "examples": " and ".join(f"{size:,}" for size in examples),
            "space": space_text(str(first["space"])),
            "axes": ", ".join(axis_texts(first, axes)),
        }
        rows.append(row)
    caption = "Configuration, one row per group of equal cells"
    further = (Column("axes", "Axes", "Further axes of the cells."),) if axes else ()
    return page_table("specification", caption, (*_COLUMNS, *further), rows)


def _listed(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values.unique()))


def space_text(space: str) -> str:
    """Returns a space, given as JSON, in words.

    >>> space_text('{"learning_rate": ["log", 0.0001, 1.0]}')
    'learning_rate 0.0001 to 1 (log)'
    """
    parts = []
    for name, (scale, *rest) in json.loads(space).items():
        if scale == "discrete":
            parts.append(f"{name} in {', '.join(f'{x:g}' for x in rest[0])}")
        else:
            parts.append(f"{name} {rest[0]:g} to {rest[1]:g} ({scale})")
    return "; ".join(parts) or "explicit points"
