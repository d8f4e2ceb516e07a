"""Writes tests/durations.csv: what each test took, of those that take a while.

    python .ci/record_durations.py .venv/tests.xml

after `CI=true launch/test` on a machine that does nothing else: without CI, the slow
ones are not among them. By it `tests/conftest.py` tells slow tests, and which files to
begin with.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from xml.etree import ElementTree

LEAST_SECONDS = 0.2
FILE = Path(__file__).parents[1] / "tests" / "durations.csv"


def durations(report: ElementTree.ElementTree) -> list[tuple[str, float]]:
    """Returns test and seconds of what took LEAST_SECONDS or more, in order."""
    found = [
        (f"{case.get('classname')}.{case.get('name')}", float(case.get("time", 0)))
        for case in report.iter("testcase")
    ]
    return sorted(pair for pair in found if pair[1] >= LEAST_SECONDS)


def main() -> None:
    """Writes the table of a JUnit file, the only argument."""
    found = durations(ElementTree.parse(sys.argv[1]))
    with FILE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["test", "seconds"])
        table.writerows((test, f"{seconds:.1f}") for test, seconds in found)


if __name__ == "__main__":
    main()
