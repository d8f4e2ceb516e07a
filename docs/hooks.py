"""What the site takes from the code: reference tables, results and equations.

mkdocs calls the functions named `on_...`. Pages below `reference/` are written from
signatures, docstrings, registries and flags; a name without a description is an error,
so that the reference cannot fall behind the code.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import gin
import griffe
import pandas
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from dps_tf import data, models, objectives, optim, sparsity
from dps_tf.__main__ import COMMANDS
from dps_tf.analysis import loading, repeats, tables
from dps_tf.core import cell, registry, study, sweep, workload
from dps_tf.core import goal as goals
from dps_tf.store import schemas
from dps_tf.workloads import configuration

ROOT = Path(__file__).resolve().parents[1]
PROJECT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
TABLES = {
    "evidence": "Evidence: every comparison",
    "fits": "Fits: the constants of every curve",
    "ratios": "Ratios of pairs of curves",
}
"""Tables of gin_configs/ that have a page of their own, with its title."""
_ENTRY = re.compile(r"( +)(\w+(?:, \w+)*)(?: \(.*?\))?: (.*)")
_MATH = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL
)


def on_files(files: Files, config: Any) -> Files:
    """Adds pages that are made from the code, and pages that lie elsewhere."""
    pages: dict[str, Callable[[], str]] = {
        "gin": gin_page,
        "parts": parts_page,
        "columns": columns_page,
        "commands": commands_page,
    }
    for name, page in pages.items():
        place = f"reference/{name}.md"
        files.append(File.generated(config, place, content=page()))
    for name, title in TABLES.items():
        path = ROOT / "gin_configs" / f"{name}.csv"
        text = table_page(title, pandas.read_csv(path))
        files.append(File.generated(config, f"results/tables/{name}.md", content=text))
        files.append(_file(config, f"results/{name}.csv", path))
    for name in PROJECT_PAGES:
        files.append(_file(config, f"project/{name}", ROOT / name))
    verdicts = ROOT / "gin_configs" / "README.md"
    files.append(_file(config, "results/verdicts.md", verdicts))
    for readme in sorted((ROOT / "gin_configs").glob("*/README.md")):
        for path in sorted(readme.parent.iterdir()):
            if path.suffix in {".csv", ".gin", ".gz", ".md", ".png", ".svg"}:
                place = f"results/{readme.parent.name}/{path.name}"
                files.append(_file(config, place, path))
    return files


def table_page(title: str, shown: pandas.DataFrame) -> str:
    """Returns a page with a table and a field that filters its rows."""
    field = (
        '<input class="filter" placeholder="Show rows with ..." oninput="for (const '
        "row of document.querySelectorAll('tbody tr')) row.hidden = !row.innerText"
        '.toLowerCase().includes(this.value.toLowerCase())">'
    )
    shown = shown.drop(columns="command", errors="ignore")
    html = shown.to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)
    html = f'<div class="filtered">{html}</div>'.replace("\n", "")
    return f"# {title}\n\n{field}\n\n{html}\n"


def _file(config: Any, place: str, path: Path) -> File:
    return File.generated(config, place, abs_src_path=str(path))


_OUTSIDE = re.compile(r"\]\((?:\.\./)+(gin_configs|docs/pages)/([^)#]*)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns a page with the links of the site between gin_configs/ and docs/.

    The links of the source lead somewhere in a checkout, too.
    """
    top = "../" * page.file.src_uri.count("/")

    def moved(match: re.Match[str]) -> str:
        folder, place = match.groups()
        name = place.removesuffix(".csv")
        place = f"tables/{name}.md" if name in TABLES else place
        place = "verdicts.md" if place == "README.md" else place
        return f"]({top}{place if folder == 'docs/pages' else f'results/{place}'}"

    return _OUTSIDE.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Returns a page whose equations are MathML, which browsers draw by themselves."""

    def mathml(match: re.Match[str]) -> str:
        source = match[2].replace("&lt;", "<").replace("&gt;", ">")
        source = source.replace("&amp;", "&")
        return convert(source, display="block" if match[1] == "div" else "inline")

    return _MATH.sub(mathml, html)


# Docstrings.


def described(docstring: str | None, heading: str) -> dict[str, str]:
    """Returns the entries below a heading of a docstring: text by name.

    Args:
        docstring: with entries `name: text`, or `name, name: text` for several.
        heading: for example `Args` or `Attributes`, at the start of a line.
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((n for n, x in enumerate(lines) if x.startswith(f"{heading}:")), None)
    found: dict[str, str] = {}
    names: list[str] = []
    indent = 0
    for line in lines[start + 1 :] if start is not None else ():
        if line and not line.startswith(" "):
            break
        entry = _ENTRY.fullmatch(line)
        if entry and (not indent or len(entry[1]) == indent):
            indent = len(entry[1])
            names = entry[2].split(", ")
            found.update(dict.fromkeys(names, entry[3]))
        elif line.strip():
            for name in names:
                found[name] += f" {line.strip()}"
    return found


def _attribute_docstring(module: str, name: str) -> str:
    """Returns the docstring below a constant of a module, which only its source has."""
    found = griffe.load(module, search_paths=[str(ROOT)])[name].docstring
    return found.value if found else ""


def opening(thing: Any) -> str:
    """Returns the first sentence or line of a docstring as Markdown."""
    text = inspect.getdoc(thing)
    if not text:
        raise PluginError(f"{thing!r} has no docstring, and stands in the reference")
    first = text.split("\n\n")[0].replace("\n", " ").removeprefix("Returns ")
    return escaped(first[0].upper() + first[1:])


def escaped(text: str) -> str:
    """Returns text that stands in a cell of a Markdown table as it is."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "&#124;"))
    parts[::2] = [re.sub(r"([*_<])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def meaning(name: str, owner: str, *sources: Mapping[str, str]) -> str:
    """Returns the first description of a name; PluginError if there is none."""
    for source in sources:
        if name in source:
            return escaped(source[name])
    raise PluginError(f"{name} of {owner} is described nowhere: add it to a docstring")


# Gin names.

_BOUND: dict[str, type] = {
    "sweep": sweep.SweepSpecification,
    "workload": workload.Workload,
    "goal": goals.Goal,
    "evaluation": workload.EvaluationInterval,
    "step_budget": workload.StepsInExamples,
    "scaling_rule": sweep.ScalingRule,
    "pruning": study.Pruning,
}
"""What a gin file binds, with the class that describes what it does not itself."""


def gin_page() -> str:
    """Returns the reference of every name that a gin file can bind."""
    text = [
        "# Gin names\n\nEvery name that a gin file can bind, from the code of this "
        "version. `--gin_bindings` takes the same, for example "
        '`--gin_bindings="workload.points = 8"`. Names of parts (`workload.dataset` '
        "and the like) are those of [the registries](parts.md).\n\n"
        "A section counts where a value refers to it: `pruning.scope` by "
        "`sweep.pruning = @pruning()`. What a file named by `--gin_file`, or "
        "`--gin_bindings`, binds in a section to which nothing refers is refused; what "
        "an included file binds may be unused.\n"
    ]
    for name in _BOUND:
        function = getattr(configuration, name)
        text.append(f"\n## {name}\n\n{opening(function)}\n\n")
        text.append(table(("name", "default", "meaning"), list(_bindings(function))))
    return "".join(text)


def _bindings(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    """Yields (name, default, meaning) of all that can be bound of a configurable."""
    owner = function.__name__
    own = described(function.__doc__, "Args")
    fields_of = described(_BOUND[owner].__doc__, "Attributes")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            default = parameter.default
            shown = "required" if default is gin.REQUIRED else f"`{default!r}`"
            yield (
                f"`{owner}.{name}`",
                shown,
                meaning(name, owner, own, fields_of),
            )
    if owner == "workload":
        bound = {*inspect.signature(function).parameters, "explicit_points"}
        for field in fields(_BOUND[owner]):
            if field.name not in bound | {"evaluation_interval"}:
                yield (
                    f"`workload.{field.name}`",
                    _default(field),
                    meaning(field.name, owner, fields_of),
                )


def _default(field: Any) -> str:
    missing = type(field.default).__name__ == "_MISSING_TYPE"
    if not missing:
        return f"`{field.default!r}`"
    made = type(field.default_factory).__name__ != "_MISSING_TYPE"
    return f"`{field.default_factory()!r}`" if made else "required"


# Registries.


def parts_page() -> str:
    """Returns the reference of everything that is registered by name."""
    text = [
        "# Built-in parts\n\nWhat a gin file can name, and what each part reads. "
        "Parts of your own are [registered](../how-to/data_and_network.md) and then "
        "named alike.\n"
    ]
    kinds: list[tuple[str, str, registry.Registry[Any]]] = [
        ("Data sets", "workload.dataset", data.DATASETS),
        ("Networks", "workload.network", models.NETWORKS),
        ("Objectives", "workload.objective", objectives.OBJECTIVES),
        ("Schedules", "workload.learning_rate_schedule", optim.SCHEDULES),
        ("Sparsity methods", "sweep.sparsity_methods", sparsity.SPARSITY_METHODS),
        ("Selections", "pruning.scope", sparsity.SELECTIONS),
    ]
    head = ("name", "what it is", "reads")
    for title, bound, known in kinds:
        rows = [
            (f"`{name}`", opening(_documented(known[name])), _reads(known.reads(name)))
            for name in known.names()
        ]
        text.append(f"\n## {title}\n\n`{bound}`\n\n{table(head, rows)}")
        if known is objectives.OBJECTIVES:
            text.append(f"\n### Their metrics\n\n{_metrics()}")
    text.append(_optimizers())
    return "".join(text)


def _metrics() -> str:
    rows = []
    for name in objectives.OBJECTIVES.names():
        metrics = [f"`{metric.name}`" for metric in objectives.build(name).metrics]
        rows.append((f"`{name}`", ", ".join(metrics)))
    return table(("objective", "metrics without further arguments"), rows)


def _documented(entry: Any) -> Any:
    """Returns the function that says what an entry computes, or the entry."""
    if isinstance(entry, optim.Schedule):
        return entry.rate
    return getattr(entry, "score", entry)


def _reads(reads: registry.Reads | None) -> str:
    if reads is None:
        return "whatever it is given"
    return "<br>".join(f"`{name}`: {_argument(a)}" for name, a in reads.items())


def _argument(argument: registry.Argument) -> str:
    required = argument.default is registry.REQUIRED
    default = "required" if required else f"`{argument.default!r}`"
    allowed = "" if argument.range is None else f", {escaped(str(argument.range))}"
    return f"{default}{allowed}"


def _optimizers() -> str:
    rows = []
    for name in optim.OPTIMIZERS.names():
        rule = optim.OPTIMIZERS[name]
        space = "<br>".join(f"`{k}`: {v}" for k, v in optim.default_space(name).items())
        rows.append(
            (f"`{name}`", opening(rule.update), _reads(rule.reads), space),
        )
    head = ("name", "update", "reads beside `learning_rate`", "default space")
    texts = described(_attribute_docstring("dps_tf.optim.base", "OPTIONS"), "Options")
    options = [
        (f"`{name}`", _argument(argument), meaning(name, "OPTIONS", texts))
        for name, argument in optim.base.OPTIONS.items()
    ]
    return (
        f"\n## Optimizers\n\n`workload.optimizer`\n\n{table(head, rows)}\n"
        "Every optimizer offers these metaparameters as well; each is in use where a "
        "point or `workload.fixed` holds it:\n\n"
        f"{table(('name', 'default and range', 'meaning'), options)}"
    )


# Tables.


def columns_page() -> str:
    """Returns the reference of every column of every table."""
    text = [
        "# Columns of tables\n\nThe tables that `dps_tf.load(sweep_dir)` returns as "
        "DataFrames; `tables.columns` has the same for the tables of a sweep, its "
        "metaparameters and metrics included. All of them begin with the columns of "
        "the cell; rows of one cell are joined by these and `precision`.\n\n"
        "## Columns of the cell\n\n"
    ]
    of_cell = described(cell.Cell.__doc__, "Attributes")
    kinds = dict(schemas.STUDIES.columns)
    rows = [
        (f"`{name}`", _kind(kinds[name]), meaning(name, "the cell", of_cell))
        for name in cell.CELL_KEY
    ]
    text.append(table(("column", "kind", "meaning"), rows))
    text.append(
        "\nFurther axes (`sweep.axes`) have a column each, of text, under their gin "
        "names.\n"
    )
    text.append(_computed("results", "One row per cell: K\\*."))
    for name, schema in schemas.SCHEMAS.items():
        docstring = _attribute_docstring("dps_tf.store.schemas", name.upper())
        text.append(_stored(schema, docstring))
    text.append(_computed("repeats", opening(repeats.repeats_of)))
    about = described(loading.Tables.__doc__, "Attributes")["bounded"]
    text.append(_computed("bounded", f"As `trials`: {escaped(about)}"))
    return "".join(text)


def _kind(kind: str) -> str:
    kinds = {
        "text": "text",
        "whole": "whole number",
        "number": "number",
        "flag": "true or false",
    }
    optional = ", or missing" if kind.endswith("?") else ""
    return kinds[kind.rstrip("?")] + optional


def _stored(schema: schemas.TableSchema, docstring: str) -> str:
    texts = tables.entries(schema.name)
    rows = [
        (f"`{name}`", _kind(kind), meaning(name, f"table {schema.name}", texts))
        for name, kind in schema.columns
        if name not in cell.CELL_KEY
    ]
    first = escaped(docstring.split("\n\n")[0].replace("\n", " "))
    head = table(("column", "kind", "meaning"), rows)
    return f"\n## {schema.name}\n\n{first}\n\n{head}"


def _computed(name: str, first: str) -> str:
    texts = tables.entries(name)
    rows = [(f"`{column}`", escaped(text)) for column, text in texts.items()]
    return f"\n## {name}\n\n{first}\n\n{table(('column', 'meaning'), rows)}"


# Commands.


def commands_page() -> str:
    """Returns what every command says of itself and of its options."""
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(_help, COMMANDS))
    text = ["# Commands\n\nWhat `--help` says of each.\n"]
    for name, said in zip(COMMANDS, texts, strict=True):
        text.append(f"\n## dps_tf.{name}\n\n```text\n{said}\n```\n")
    return "".join(text)


def _help(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"dps_tf.{name}", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise PluginError(f"{name} --help ended with {done.returncode}: {done.stderr}")
    return done.stdout.rstrip()
