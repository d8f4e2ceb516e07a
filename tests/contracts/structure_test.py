"""Is the tree laid out as the documents say, in pieces that can be read at once?"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dps_tf
from tests.packaging.source_tree import SOURCE_TREE

PACKAGE = Path(dps_tf.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
SHAPELESS_NAMES = {"common", "helpers", "manager", "misc", "utils"}

# Lines of a function, its docstring not counted: that may be as long as what it
# explains. Lines of a module are all counted: it is read as a whole.
FUNCTION_LIMIT = 40
MODULE_LIMIT = 400

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


def docstring_lines(tree: ast.AST) -> int:
    """Returns the number of lines of all docstrings inside, the tree's own included."""
    texts = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None
    ]
    return sum(text.end_lineno - text.lineno + 1 for text in texts)


def long_functions(tree: ast.AST) -> list[str]:
    """Returns the functions over the limit, with their number of lines."""
    lengths = {
        node.name: node.end_lineno - node.lineno + 1 - docstring_lines(node)
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    }
    return [
        f"{name}: {lines} lines"
        for name, lines in lengths.items()
        if lines > FUNCTION_LIMIT
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_module_and_its_functions_can_be_read_at_once(file):
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert not long_functions(tree)
    assert len(text.splitlines()) <= MODULE_LIMIT


def test_long_function_is_noticed_and_its_docstring_is_free():
    body = "\n".join(["    pass"] * FUNCTION_LIMIT)
    docstring = '    """One.\n\n    Two.\n    """\n'
    assert long_functions(ast.parse(f"def f():\n{docstring}{body}"))
    body = body.partition("\n")[2]
    assert not long_functions(ast.parse(f"def f():\n{docstring}{body}"))


def test_architecture_names_every_room():
    text = (SOURCE_TREE / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {file.parent.relative_to(PACKAGE) for file in FILES} - {Path()}
    assert rooms
    assert not [str(room) for room in rooms if f"`{room}/`" not in text]


def test_modules_are_named_after_what_they_do():
    assert FILES
    assert not [file for file in FILES if file.stem in SHAPELESS_NAMES]
