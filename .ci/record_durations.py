"""Writes tests/durations.csv: what each test took, of those that take a while.

    python .ci/record_durations.py WHOLE.xml [FAST.xml]...

WHOLE.xml is `.venv/tests.xml` after `CI=true launch/test` on a machine that does
nothing else. FAST.xml is the same file after `launch/test --fast`: there a test pays
for what its file shares, which otherwise a slow one has paid for before it.
`tests/conftest.py` tells by the table which tests are slow, and which files to begin
with.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from xml.etree import ElementTree

LEAST_SECONDS = 0.2
FILE = Path(__file__).parents[1] / "tests" / "durations.csv"


def durations(reports: list[str]) -> dict[str, float]:
    """Returns the most seconds of each test that took LEAST_SECONDS or more."""
    found: dict[str, float] = {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            test = f"{case.get('classname')}.{case.get('name')}"
            seconds = float(case.get("time", 0))
            if seconds >= max(LEAST_SECONDS, found.get(test, 0)):
                found[test] = seconds
    return found


def main() -> None:
    """Writes the table of the JUnit files that are its arguments."""
    found = sorted(durations(sys.argv[1:]).items())
    with FILE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["test", "seconds"])
        table.writerows((test, f"{seconds:.1f}") for test, seconds in found)


if __name__ == "__main__":
    main()
