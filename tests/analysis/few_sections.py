"""Reports of the sections that a test looks at: drawing takes most of the time."""

from __future__ import annotations

import pytest

from dps_tf.analysis.report import assembly


def draw_only(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Leaves all other sections out of reports that are written from now on."""
    known = {entry.name: entry for entry in assembly.SECTIONS}
    patch.setattr(assembly, "SECTIONS", [known[name] for name in names])
