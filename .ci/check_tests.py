"""Did the tests that should have run really run?

A pattern that matches nothing, or a skip that nobody looks at, passes silently. Reads
the JUnit files of a pytest run, or of several that shared the tests; says nothing and
exits with 0 when all is well.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def skip_reasons(reports: list[ElementTree.ElementTree]) -> list[str]:
    """Returns the reason of each skipped test; expected failures are no skips."""
    return [
        skip.get("message", "")
        for report in reports
        for skip in report.iter("skipped")
        if skip.get("type") != "pytest.xfail"
    ]


def lines_of(file: Path) -> list[str]:
    """Returns the lines of a file without comments and empty lines."""
    lines = (line.strip() for line in file.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def complaints(
    reports: list[ElementTree.ElementTree], minimum: int, allowed: list[str] | None
) -> list[str]:
    """Returns what is wrong with a run, as lines for the user.

    Args:
        reports: the parsed JUnit files.
        minimum: fewest tests that must have run; skipped ones do not count.
        allowed: the beginnings of the reasons for which a test may be skipped;
            None allows every reason.
    """
    skipped = skip_reasons(reports)
    cases = [case for report in reports for case in report.iter("testcase")]
    ran = len(cases) - len(skipped)
    found = []
    if ran < minimum:
        found.append(
            f"only {ran} tests ran, at least {minimum} exist: "
            "tests are not collected, or .ci/minimum_tests is out of date"
        )
    if allowed is not None:
        refused = Counter(
            reason for reason in skipped if not reason.startswith(tuple(allowed))
        )
        found.extend(
            f"skipped {count} times for a reason not in .ci/allowed_skips: {reason}"
            for reason, count in refused.items()
        )
    return found


def main() -> int:
    """Checks one run and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+", help="JUnit files")
    parser.add_argument("--minimum", type=Path, help="file with a number of tests")
    parser.add_argument("--allowed_skips", type=Path, help="file with reasons")
    arguments = parser.parse_args()
    minimum = int(lines_of(arguments.minimum)[0]) if arguments.minimum else 0
    allowed = lines_of(arguments.allowed_skips) if arguments.allowed_skips else None
    reports = [ElementTree.parse(file) for file in arguments.reports]
    found = complaints(reports, minimum, allowed)
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
