"""The metaparameter budget: keras-tuner oracle and tuner, schedules, study, sweep."""

from __future__ import annotations

import os

# Ray reads these variables once, when it is imported, so they are set before any module
# of this package: Ray then sends no usage statistics, and prints no messages of its
# nodes between the lines of the run's own output.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
