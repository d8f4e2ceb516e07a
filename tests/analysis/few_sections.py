"""Reports of the sections that a test looks at: drawing takes most of the time."""

from __future__ import annotations

import pytest

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report import assembly
from dps_tf.analysis.report.content import ReportContext
from dps_tf.analysis.report.curves import curves_of

_COMMAND = """
import runpy, sys
from dps_tf.analysis.report import assembly
few = {names!r}
assembly.SECTIONS[:] = [entry for entry in assembly.SECTIONS if entry.name in few]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def command(*names: str) -> tuple[str, str]:
    """Returns words that are as `-m`, a module following, with a few sections only."""
    return "-c", _COMMAND.format(names=names)


def draw_only(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Leaves all other sections out of reports that are written from now on."""
    known = {entry.name: entry for entry in assembly.SECTIONS}
    patch.setattr(assembly, "SECTIONS", [known[name] for name in names])


def context_of(tables: Tables) -> ReportContext:
    """Returns what every section is made from, without joint fits."""
    found = curves_of(tables.results, tables.studies)
    return ReportContext(tables, found, ())
