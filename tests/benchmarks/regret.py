"""Measures what a recommended batch size loses, on curves whose truth is known.

Usage: python -m tests.benchmarks.regret [--check]

Each measured batch size of each curve is left out in turn. The law is fitted to the
others, and the batch size with the least predicted time is chosen among all of them,
the one that was left out included. Regret is the time of the choice over the least
time, both with the K* that was measured. Steps take 1 + B/knee, for knees of 4 to
16,384 examples, from a machine that every example keeps busy to one that none does.

The curves are those of the tables in gin_configs/ (K* of this package) and those read
off the figures of Shallue et al. 2019. The table in docs/pages/explanation/decisions.md
is written between `<!-- regret -->` and `<!-- end -->`; with --check nothing is, and
the exit code is 1 where it is not up to date. It takes about five minutes of one core.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.fit_table import observations_by_curve, read_table
from dps_tf.analysis.law import Observations, fit_law
from dps_tf.analysis.recommend import LOSS, MINIMUM_SIZES, obstacles

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pages" / "explanation" / "decisions.md"
KNEES = 4.0 ** np.arange(1, 8)
DIGITIZED = 0.07
"""Octaves: the error of 5 % with which published K* were read."""
PUBLISHED = "Shallue et al. 2019, digitized"


def curves() -> Iterator[tuple[str, Observations]]:
    """Yields the source and the K* of each curve."""
    for path in sorted((ROOT / "gin_configs").rglob("*.csv")):
        columns = pd.read_csv(path, nrows=0).columns
        if {"batch_size", "steps_to_result", "bracket_low", "goal"} <= set(columns):
            for points in observations_by_curve(read_table(path)).values():
                yield str(path.relative_to(ROOT / "gin_configs")), points
    path = ROOT.joinpath(*PUBLISHED_TABLE)
    for _, rows in pd.read_csv(path).groupby("curve", sort=False):
        noise = np.full(len(rows), DIGITIZED)
        steps = rows["steps_to_result"]
        yield PUBLISHED, Observations.of(rows["batch_size"], steps, noise=noise)


PUBLISHED_TABLE = "gin_configs", "shallue2019", "published.csv"


def regrets(points: Observations) -> Iterator[tuple[str, float]]:
    """Yields (why nothing is chosen, regret) for each batch size left out and knee."""
    located = points.located()
    sizes, truth = located.batch_size, located.middle
    seconds = 1 + sizes[None, :] / KNEES[:, None]
    for left_out in np.flatnonzero(~points.is_bound):
        kept = np.arange(len(points)) != left_out
        part = points.where(kept)
        why = obstacles(part)
        if why:
            yield from ((why, np.nan) for _ in KNEES)
            continue
        fit = fit_law(part)
        free, plain = (
            np.array([p.steps(size).quantiles([0.5])[0] for size in sizes])
            for p in (fit.free, fit.posterior)
        )
        for each in seconds:
            best, other = np.argmin(free * each), np.argmin(plain * each)
            if (free * each)[other] > LOSS * (free * each)[best]:
                yield "the exponent decides", np.nan
                continue
            times = truth * each
            yield "", float(times[best] / times.min())


def table() -> str:
    """Returns the table of regrets as Markdown."""
    rows = []
    for source, points in curves():
        if len(points.located()) > MINIMUM_SIZES:
            rows += [(source, *each) for each in regrets(points)]
    found = pd.DataFrame(rows, columns=["source", "why", "regret"])
    lines = ["| curves of | choices | abstained | median | 95 % | largest |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    groups = [*found.groupby("source", sort=False), ("all", found)]
    for source, part in groups:
        known = part["regret"].dropna()
        numbers = "– | – | –"
        if len(known):
            ends = known.quantile([0.5, 0.95, 1.0])
            numbers = " | ".join(f"{value:.3f}" for value in ends)
        lines.append(
            f"| {source} | {len(part)} | {part['regret'].isna().sum()} | {numbers} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Writes the table, or checks it; returns the exit code."""
    old = PAGE.read_text(encoding="utf-8")
    mark = re.compile(r"(<!-- regret -->\n)(.*?)(<!-- end -->)", re.S)
    new = mark.sub(lambda match: f"{match[1]}\n{table()}\n\n{match[3]}", old)
    if "--check" in sys.argv[1:]:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
