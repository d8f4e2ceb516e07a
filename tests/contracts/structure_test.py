"""Is the tree laid out as the documents say, in pieces that can be read at once?"""

from __future__ import annotations

from pathlib import Path

import dps_tf
from tests.packaging.source_tree import SOURCE_TREE

PACKAGE = Path(dps_tf.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
SHAPELESS_NAMES = {"common", "helpers", "manager", "misc", "utils"}


def test_architecture_names_every_room():
    text = (SOURCE_TREE / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {file.parent.relative_to(PACKAGE) for file in FILES} - {Path()}
    assert rooms
    assert not [str(room) for room in rooms if f"`{room}/`" not in text]


def test_modules_are_named_after_what_they_do():
    assert FILES
    assert not [file for file in FILES if file.stem in SHAPELESS_NAMES]
