"""The version of what a number means."""

from __future__ import annotations

RESULTS_VERSION = 1
"""Part of every fingerprint. Raise it whenever a change to the code can change a
number that a study records; a test pins a tiny study's error counts to it."""
