"""The examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

import dps_tf
from tests import interpreter

PACKAGE = Path(dps_tf.__file__).parent
FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if ">>> " in p.read_text("utf-8")]
ROOMS = sorted({file.relative_to(PACKAGE).parts[0] for file in FILES})


@pytest.mark.parametrize("room", ROOMS)
def test_examples_give_what_they_show(room):
    files = [file.relative_to(PACKAGE.parent) for file in FILES if room in file.parts]
    names = [".".join(file.with_suffix("").parts) for file in files]
    modules = [name.removesuffix(".__init__") for name in names]
    # In a process of its own, because some examples register parts for good.
    words = ["-m", "tests.contracts.examples_test", *modules]
    done = interpreter.run(words, cwd=interpreter.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_is_run():
    assert [str(file) for file in FILES if "doctest: +SKIP" in file.read_text()] == []


def main() -> None:
    """Runs the examples of the modules in the arguments; exit code 1 if one fails."""
    results = [doctest.testmod(importlib.import_module(name)) for name in sys.argv[1:]]
    assert all(result.attempted for result in results), "a module ran no example"
    sys.exit(int(any(result.failed for result in results)))


if __name__ == "__main__":
    main()
