"""The report of some sweeps: one page that people read, and the files beside it."""

from __future__ import annotations

from dps_tf.analysis.report.assembly import ReportOptions as ReportOptions
from dps_tf.analysis.report.terminal import published_text as published_text
from dps_tf.analysis.report.terminal import terminal_text as terminal_text
from dps_tf.analysis.report.writing import write_published as write_published
from dps_tf.analysis.report.writing import write_report as write_report
