"""Where the source tree is, and which modules are commands.

The suite may run from a copy, away from the tree, against an installed wheel; then
DPS_TF_SOURCE_TREE names the tree, for the files that a wheel does not hold.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import dps_tf

SOURCE_TREE = Path(
    os.environ.get("DPS_TF_SOURCE_TREE") or Path(__file__).resolve().parents[2]
)


def command_names() -> list[str]:
    """Returns the modules beside the rooms that define `main`, without prefix.

    They are not imported to find out: commands define flags of the same names, so one
    process can hold one of them only.
    """
    return sorted(
        file.stem
        for file in Path(dps_tf.__file__).parent.glob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and node.name == "main"
        and file.stem != "__main__"
    )
