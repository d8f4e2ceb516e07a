"""Do curves follow the law K* = c1/B + c2, and what moves its constants?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dps_tf.analysis.law import (
    EXPONENT_PRIOR,
    PRIOR,
    UNLIKE_SEARCHES,
    Comparison,
    CurveRatio,
    LawFit,
    Observations,
    compare,
    joinable,
    joint_fit,
)
from dps_tf.analysis.repeats import noise_of_study
from dps_tf.analysis.report.content import (
    NOTHING,
    Column,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    constants,
    estimate_text,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, comparable, effects
from dps_tf.analysis.wording import interval, number, percent
from dps_tf.core import Curve


def law_part(context: ReportContext) -> Part:
    """Returns the tables of fits, and of ratios between curves; none without a fit."""
    curves, joint = context.curves, context.joint
    if not curves.fits:
        return Part()
    first = next(iter(curves.fits.values()))
    level = percent(first.level)
    paragraphs = (
        f"Intervals are {level} intervals of the posterior, unweighted in log K*, with "
        "each K* taken to lie in its bracket; an end that is not stated is open. c1 "
        "counts examples and rules where batches are small, c2 counts steps and is the "
        "plateau; at the critical batch size c1/c2, K* is twice the plateau. "
        f"Prior: {PRIOR}.",
        "Trials of one number have the same seeds and metaparameters at every batch "
        "size. The noise that all K* of a curve share for this reason moves c1 and c2 "
        "together. Their intervals leave it out; c1/c2 is not affected.",
        _noise(context),
    )
    tables = [fit_table(curves, joint)]
    if joint:
        tables.append(joint_table(curves, joint))
    return Part(paragraphs, (), tables)


def _noise(context: ReportContext) -> str:
    """Returns a sentence on the noise of one K* of these studies, with its source."""
    tables = context.tables
    noise = noise_of_study(tables.results, tables.bounded)
    ends = f"{interval(noise.low, noise.high, 2)} octaves"
    start = "The noise of each K* (standard deviation of log2 K* from study to study)"
    if np.isnan(noise.value):
        return f"{start} is not known here; other studies had {ends}."
    return (
        f"{start} is {number(noise.value, 2)} octaves (95 % interval {ends}), from "
        f"{noise.source}."
    )


def fit_table(curves: Curves, joint: Sequence[Comparison[Curve]]) -> PageTable:
    """Returns a table of the constants of each curve.

    A curve that is too short to be fitted alone has the constants of its joint fit.
    """
    rows = []
    for key, fit in fits_of(curves, [each.fits for each in joint]).items():
        head = {
            "curve": curves.title(key),
            "search": curves.searches.get(key, ""),
            "points": len(curves.observations[key]),
        }
        own = curves.fits.get(key)
        rows.append({**head, **constants(fit), **_of_own_fit(own)})
    columns = (
        Column("curve", "Curve"),
        Column(
            "search",
            "Search",
            "Number of points, whose best gives each K*, and dimension of their space.",
        ),
        Column(
            "points",
            "K*",
            "Number of K* that were fitted. Where fewer than three batch sizes have "
            "more than a bound, c1 and c2 are of the joint fit below.",
        ),
        Column("c1", "c1, examples", "Rules where batches are small."),
        Column("c2", "c2, steps", "The plateau of large batches."),
        Column(
            "critical",
            "c1/c2, examples",
            "Critical batch size: there K* is twice the plateau.",
        ),
        Column(
            "residual",
            "Residual, octaves",
            "Root mean square of log2(K* / fit), and the largest with its batch size.",
        ),
        Column("exponent", "a", f"Of c1/B^a + c2; 1 is the law. {EXPONENT_PRIOR}."),
        Column("averaged", "c1/c2 averaged over a", "Where both terms are equal."),
    )
    return page_table("law", "Fits of K* = c1/B + c2", columns, rows)


def fits_of(
    curves: Curves, joint: Iterable[Mapping[Curve, LawFit]] | None = None
) -> dict[Curve, LawFit]:
    """Returns the fit of each curve: its own, or its joint fit if it is too short.

    Joint fits are made as by `joint_fits`, unless they are passed.
    """
    if joint is None:
        joint = map(joint_fit, _joined(curves))
    joined = {key: fit for fits in joint for key, fit in fits.items()}
    return {
        key: fit
        for key in curves.observations
        if (fit := curves.fits.get(key) or joined.get(key))
    }


def _of_own_fit(fit: LawFit | None) -> dict[str, SortableText]:
    """Returns the columns that only a curve with a fit of its own has."""
    if fit is None:
        return dict.fromkeys(("residual", "exponent", "averaged"), NOTHING)
    worst = int(abs(fit.residuals).argmax())
    value, size = fit.residuals[worst], fit.observations.batch_size[worst]
    largest = f"{fit.rms:.2f} ({value:+.2f} at {size:g})"
    return {
        "residual": SortableText(largest, fit.rms),
        "exponent": estimate_text(fit.exponent),
        "averaged": estimate_text(fit.critical_averaged),
    }


def joint_fits(curves: Curves) -> list[Comparison[Curve]]:
    """Returns a joint fit for each workload and goal that has several curves.

    Each pair of `effects` has a ratio in it.
    """
    return [
        compare(points, pairs=effects(list(points)), searches=curves.searches)
        for points in _joined(curves)
    ]


def _joined(curves: Curves) -> list[dict[Curve, Observations]]:
    """Returns what is known of the curves of each joint fit."""
    groups = [
        joinable({key: curves.observations[key] for key in keys})
        for keys in comparable(curves)
    ]
    return [points for points in groups if len(points) > 1]


def joint_table(curves: Curves, joint: Sequence[Comparison[Curve]]) -> PageTable:
    """Returns a table of the ratios of c1, c2 and c1/c2 of pairs of curves."""
    rows = [
        {
            "curve": curves.title(ratio.curve),
            "reference": curves.title(ratio.reference),
            **constants(ratio),
            "moves": moves_text(ratio),
            "searches": ratio.searches,
        }
        for fit in joint
        for ratio in fit.ratios
    ]
    columns = (
        Column("curve", "Curve"),
        Column("reference", "Relative to"),
        Column("c1", "Ratio of c1"),
        Column("c2", "Ratio of c2"),
        Column("critical", "Ratio of c1/c2"),
        Column(
            "moves",
            "What moves",
            "The constants whose ratio is told apart from 1, adjusted for all ratios "
            "of the workload and goal (Holm 1979), or why they are not compared.",
        ),
        Column("searches", "Unlike searches", UNLIKE_SEARCHES),
    )
    caption = "What moves from curve to curve, fitted jointly with one residual scale"
    return page_table("joint", caption, columns, rows)


def moves_text(ratio: CurveRatio[Any]) -> str:
    """Returns which of c1 and c2 differ, such as `c1 up`, or why none is compared."""
    if ratio.c1.verdict.startswith("refused"):
        return ratio.c1.verdict
    listing = [
        f"{name} {'up' if getattr(ratio, name).value > 1 else 'down'}"
        for name in ratio.moves
    ]
    return ", ".join(listing) or "neither is told apart"
