"""Is the site whole: built without a warning and without network, and true?"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dps_tf
from dps_tf.core import Workload
from dps_tf.store import SCHEMAS
from tests.packaging.source_tree import SOURCE_TREE

PAGES = SOURCE_TREE / "docs" / "pages"
EXTENSIONS = SOURCE_TREE / "tests" / "extensions"

# Runs mkdocs in a process that may talk to nobody.
OFFLINE = """
import runpy, sys

def refuse_network(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise RuntimeError(f"{event} while building: {arguments}")

sys.addaudithook(refuse_network)
sys.argv[0] = "mkdocs"
runpy.run_module("mkdocs", run_name="__main__")
"""


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site into a folder as the command does, offline."""
    configuration = str(SOURCE_TREE / "docs" / "mkdocs.yml")
    words = ["build", "--config-file", configuration, "--site-dir", str(folder)]
    # What the theme says of its own future is no warning about these pages.
    quiet = {"NO_MKDOCS_2_WARNING": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", OFFLINE, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **quiet},
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = built(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING -" not in done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """Collects what a browser loads for a page, links that one may follow left out."""

    def __init__(self, text: str):
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "link" and named.get("rel") != "canonical":
            self.addresses.append(named.get("href") or "")
        if tag in {"script", "img", "iframe", "source"} and named.get("src"):
            self.addresses.append(str(named["src"]))


def names_on(page: Path) -> set[str]:
    """Returns what stands in the code font on a page."""
    return set(re.findall(r"<code>([^<]*)</code>", page.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_site_is_built_offline_and_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        away = [a for a in Loaded(text).addresses if re.match(r"(https?:)?//", a)]
        assert not away, f"{page.name} loads {away}"
    law = (site / "explanation" / "statistics.html").read_text(encoding="utf-8")
    assert "<mfrac>" in law
    assert "arithmatex" not in law
    assert list(site.rglob("mnist_reproduction.png"))
    shown = (site / "results" / "tables" / "evidence.html").read_text(encoding="utf-8")
    assert shown.count("<tr") > 140 and 'class="filter"' in shown
    method = (site / "how-to" / "sparsity_method.html").read_text(encoding="utf-8")
    assert 'register_sparsity_method</span><span class="p">(</span>' in method


@pytest.mark.slow
def test_the_reference_has_every_gin_name_part_and_column(site):
    gin = names_on(site / "reference" / "gin.html")
    own = {"explicit_points", "evaluation_interval"}
    fields = set(Workload.__dataclass_fields__) - own
    assert {f"workload.{name}" for name in fields} <= gin
    parts = "sweep|goal|evaluation|step_budget|scaling_rule|pruning"
    shipped = re.compile(rf"^(?:\w+/)?((?:{parts})\.\w+) = ", re.M)
    for file in (SOURCE_TREE / "gin_configs").rglob("*.gin"):
        assert set(shipped.findall(file.read_text())) <= gin, file
    columns = names_on(site / "reference" / "columns.html")
    for schema in SCHEMAS.values():
        assert set(schema.names) <= columns
    assert {"steps_low", "best_trial", "lone_winner"} <= columns
    named = names_on(site / "reference" / "parts.html")
    assert {"digits", "resnet50", "snip", "n_of_m", "cosine", "soap"} <= named
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    public = set(dps_tf.__all__) - {"__version__"}
    assert not [name for name in public if f"{name}</span>" not in python]


def test_every_extension_is_shown_and_every_kind_has_one():
    shown = "".join(p.read_text(encoding="utf-8") for p in PAGES.glob("how-to/*.md"))
    files = [*EXTENSIONS.glob("*.gin")]
    files += [p for p in EXTENSIONS.glob("*.py") if not p.stem.endswith("_test")]
    assert len(files) > 10
    included = '--8<-- "tests/extensions/{}"\n'
    missing = [
        path.name
        for path in files
        if f"```python\n{path.read_text()}```" not in shown
        and (path.suffix == ".py" or included.format(path.name) not in shown)
    ]
    assert not missing, "copy the file into the page that shows it"
    trees = [ast.parse(p.read_text()) for p in files if p.suffix == ".py"]
    called = {
        node.func.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    public = {name for name in dps_tf.__all__ if name.startswith("register_")}
    assert public | {"register_report_section"} <= called


def test_code_of_documents_is_that_of_files_which_are_run():
    """Pages are read in a checkout too, where an include would show no code."""
    folders = (EXTENSIONS, PAGES / "tutorial")
    files = {p.read_text() for folder in folders for p in folder.glob("*.[gp][iy]*")}
    for page in [*PAGES.glob("how-to/*.md"), PAGES / "tutorial" / "python.md"]:
        text = page.read_text("utf-8")
        for block in re.findall(r"```python\n(.*?)```", text, re.S):
            is_included = re.fullmatch(r'--8<-- "\S+\.gin"\n', block)
            assert is_included or block in files, f"{page.name} shows code of its own"
