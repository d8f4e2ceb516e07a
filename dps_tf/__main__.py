"""Lists the commands: `python -m dps_tf`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from dps_tf.cli.command_line import FINISHED, run

COMMANDS = (
    "prepare",
    "train",
    "status",
    "report",
    "measure",
    "fit",
    "export",
    "archive",
)
"""In the order in which a user meets them."""


def main(argv: Sequence[str]) -> int:
    """Prints each command with the first sentence of its documentation; returns 0."""
    del argv
    print("Steps-to-result of training against batch size and sparsity. Commands:\n")
    for name in COMMANDS:
        print(f"  python -m dps_tf.{name:8}  {_summary(name)}")
    print("\nEach tells its flags by --help.")
    return FINISHED


def _summary(name: str) -> str:
    # Read, not imported: commands define flags of the same names.
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    return lines[0].partition(": `")[0].rstrip(".")


if __name__ == "__main__":
    run(main)
