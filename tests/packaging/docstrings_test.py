"""Can docstrings of public names be read: short sentences, a noun as the subject?"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import dps_tf
from dps_tf.workloads import configuration
from tests.packaging.prose_test import LONG, length, sentences
from tests.packaging.source_tree import SOURCE_TREE

GIN = "sweep workload goal evaluation step_budget scaling_rule pruning".split()
AVOIDED = re.compile(r"\b(that of|those|of which|of whom)\b")


def described() -> Iterator[tuple[str, Any]]:
    """Yields every public function and class, its public methods, and gin names."""
    for name in dps_tf.__all__:
        public = getattr(dps_tf, name)
        if not callable(public):
            continue
        yield name, public
        for method, value in vars(public).items() if inspect.isclass(public) else ():
            if not method.startswith("_") and inspect.getdoc(value):
                yield f"{name}.{method}", value
    yield from ((f"gin {name}", getattr(configuration, name)) for name in GIN)


DOCSTRINGS = {name: inspect.getdoc(value) or "" for name, value in described()}


def prose(docstring: str) -> list[str]:
    """Returns the sentences of a docstring; an entry of a list is of its own."""
    text = re.sub(r"^ *(>>>|\.\.\.) .*(?:\n(?!\s*\n).*)*", "", docstring, flags=re.M)
    text = re.sub(
        r"^(Args|Attributes|Returns|Raises|Examples?|Yields):$", "", text, flags=re.M
    )
    text = re.sub(r"^ *[\w*]+(?:, [\w*]+)*(?: \([^)]*\))?: ", "\n\n", text, flags=re.M)
    return sentences(text)


def test_entries_and_examples_end_sentences():
    found = prose(
        "Returns x.\n\nArgs:\n    a: one two\n        three.\n    b: four.\n\n>>> y\nz"
    )
    assert found == ["Returns x.", "one two three.", "four."]


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_a_docstring_can_be_read(name):
    found = prose(DOCSTRINGS[name])
    assert found, name
    long = [s for s in found if length(s) > LONG]
    assert not long, long
    assert not AVOIDED.findall(" ".join(found))


def _text(node: ast.expr) -> str:
    """Returns the text of a message, with X in the place of each value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return "X"


def test_refusals_are_short_and_plain():
    said = []
    for path in (SOURCE_TREE / "dps_tf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and "UserError" in ast.unparse(node.func):
                said += re.split(r"(?<=[.!?])\s+", "".join(map(_text, node.args[:1])))
    lengths = [len(sentence.split()) for sentence in said]
    assert len(said) > 300 and sum(lengths) / len(said) <= 19
    assert sum(number > 30 for number in lengths) <= len(said) / 20
    assert [sentence for sentence in said if AVOIDED.search(sentence)] == []
