"""The script that draws the figures of Shallue et al. 2019, as modules."""

from __future__ import annotations

import sys

from tests.packaging.source_tree import SOURCE_TREE

FOLDER = SOURCE_TREE / "gin_configs" / "shallue2019"
sys.path.insert(0, str(FOLDER))

import figure_panels as figure_panels  # noqa: E402
import figure_points as figure_points  # noqa: E402
import figures as figures  # noqa: E402
