"""The report of some sweeps: one page that people read, and the files beside it.

A section has parts, functions that hold its data, its drawing and its caption, and one
entry of `assembly.SECTIONS`; a user's own is added by `register_report_section`.
"""

from __future__ import annotations

from dps_tf.analysis.report.assembly import (
    register_report_section as register_report_section,
)
from dps_tf.analysis.report.assembly import write_report as write_report
from dps_tf.analysis.report.content import Part as Part
from dps_tf.analysis.report.content import ReportContext as ReportContext
from dps_tf.analysis.report.terminal import terminal_text as terminal_text
