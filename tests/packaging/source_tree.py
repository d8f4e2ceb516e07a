"""Where is the source tree, for the files that a wheel does not hold?

The suite may run from a copy, away from the tree, against an installed wheel; then
DPS_TF_SOURCE_TREE names the tree.
"""

from __future__ import annotations

import os
from pathlib import Path

SOURCE_TREE = Path(
    os.environ.get("DPS_TF_SOURCE_TREE") or Path(__file__).resolve().parents[2]
)
