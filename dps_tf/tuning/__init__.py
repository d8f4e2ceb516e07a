"""The metaparameter budget: keras-tuner oracle and tuner, schedules, study, sweep."""

from __future__ import annotations

import os

# Read once, when Ray is imported, hence before any module of this room: no statistics
# are sent, and nothing that a node has to say, such as the end of another, is printed
# in the middle of the run's own output.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
