"""Can the documents be read: how many words, and how long is a sentence?

A colon or a semicolon ends no sentence. An item of a list counts as a sentence, or as
several. Code, headings, tables, captions of pictures and link targets are no sentences;
tables and captions have limits of their own.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from tests.packaging.source_tree import SOURCE_TREE

MOST_WORDS = {
    "CHANGELOG.md": 500,
    "README.md": 1_100,
    "docs/pages/explanation/decisions.md": 900,
    "docs/pages/explanation/statistics.md": 1_500,
    "docs/pages/results/index.md": 500,
    "gin_configs/README.md": 1_500,
    "gin_configs/atlas/README.md": 900,
    "gin_configs/lee2021/README.md": 2_800,
    "gin_configs/shallue2019/README.md": 2_500,
    "launch/README.md": 1_500,
}
MOST_TOGETHER = 28_000
MEAN, LONG, SHARE = 19, 30, 0.05
MOST_ROWS = 8
"""Of a table of results; longer ones are CSV files."""
CAPTION = 40


def pages() -> dict[str, str]:
    """Returns the text of every document of the source tree, by its path."""
    folders = ("docs", "gin_configs", "launch")
    found = [*SOURCE_TREE.glob("*.md")]
    found += [
        page for folder in folders for page in (SOURCE_TREE / folder).rglob("*.md")
    ]
    return {
        page.relative_to(SOURCE_TREE).as_posix(): page.read_text("utf-8")
        for page in sorted(found)
    }


def sentences(text: str) -> list[str]:
    """Returns the sentences of a page of Markdown."""
    text = re.sub(r"^(```|~~~).*?^\1", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[.*?\]\(.*?\)", "", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*(#|\||---|--8<--|:::).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([*+-]|\d+\.) +", "\n\n", text, flags=re.MULTILINE)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        # Not behind an abbreviation, nor within a number, a name of a file or code.
        code = re.sub(r"`[^`]*`", "Code", " ".join(paragraph.split()))
        code = re.sub(r"\b(et al|e\.g|i\.e|vs|cf)\.", r"\1", code)
        found += re.split(r"(?<=[.!?])[)\"*]* +(?=[^a-z])", code)
    return [sentence for sentence in found if re.search(r"\w", sentence)]


def length(sentence: str) -> int:
    """Returns the number of words."""
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def test_sentences_end_where_they_end():
    text = "# Head\n\nOne two: three; four. A `a. B` c!\n\n* seven\n* Eight nine.\n"
    assert [length(s) for s in sentences(text)] == [4, 3, 1, 2]
    assert sentences("Lee et al. 2021 say 1.5 of [it](a/b.c.md). So.")[1] == "So."


@pytest.mark.parametrize("page", pages())
def test_a_page_is_short_and_so_are_its_sentences(page):
    text = pages()[page]
    assert len(text.split()) <= MOST_WORDS.get(page, 1_000)
    lengths = [length(sentence) for sentence in sentences(text)]
    long = [s for s in sentences(text) if length(s) > LONG]
    assert sum(lengths) <= MEAN * len(lengths), sum(lengths) / len(lengths)
    assert len(long) <= max(1, SHARE * len(lengths)), long


def test_all_documents_together_are_short():
    assert sum(len(text.split()) for text in pages().values()) <= MOST_TOGETHER


REFERENCE = ("gin", "parts", "columns", "commands")
"""Pages that the site makes from the code."""


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere_in_a_checkout(page):
    text = re.sub(r"^```.*?^```", "", pages()[page], flags=re.MULTILINE | re.DOTALL)
    made = {f"docs/pages/reference/{name}.md" for name in REFERENCE}
    for link in re.findall(r"\]\((?!https?:)([^)\s#]+)", text):
        place = (SOURCE_TREE / page).parent / link
        known = os.path.relpath(place, SOURCE_TREE)
        assert place.exists() or known in made, f"{page} links to {link}"


@pytest.mark.parametrize("page", [page for page in pages() if "gin_configs/" in page])
def test_tables_and_captions_of_results_are_short(page):
    text = pages()[page]
    for caption in re.findall(r"^\*([^*].*?[^*])\*$", text, re.MULTILINE | re.DOTALL):
        assert length(caption) <= CAPTION, caption
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        is_verdicts = lines.startswith("| claim |")
        assert is_verdicts or len(lines.splitlines()) - 2 <= MOST_ROWS, lines


def test_a_claim_is_a_line():
    with (SOURCE_TREE / "gin_configs" / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(length(row["statement"]) <= 20 for row in rows)
    assert len(rows) == len({row["claim"] for row in rows})
    shown = Path(SOURCE_TREE / "gin_configs" / "README.md").read_text("utf-8")
    assert all(f"| {row['statement']} | " in shown for row in rows)
