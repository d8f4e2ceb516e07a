"""Lists the commands: `python -m dps_tf`."""

from __future__ import annotations

import ast
from pathlib import Path

from dps_tf.cli.command_line import FINISHED, command

COMMANDS = (
    "new",
    "prepare",
    "train",
    "status",
    "report",
    "measure",
    "fit",
    "recommend",
    "export",
    "import_runs",
)
"""The commands in the order in which a user needs them."""


@command
def main() -> int:
    """Prints each command with the first sentence of its documentation; returns 0."""
    print("Steps-to-result of training against batch size and sparsity. Commands:\n")
    for name in COMMANDS:
        print(f"  python -m dps_tf.{name:11}  {_summary(name)}")
    print("\n`--help` of each lists its flags.")
    return FINISHED


def _summary(name: str) -> str:
    # Modules are not imported, as commands define flags of the same names.
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    return lines[0].partition(": `")[0].rstrip(".")


if __name__ == "__main__":
    main()
