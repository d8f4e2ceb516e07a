"""The law K* = c1/B + c2: its constants, alternatives to it, and what moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dps_tf.analysis.law import (
    THREE_PARAMETERS_FROM,
    Alternative,
    CriticalBatchSizes,
    CurveRatio,
    Estimate,
    JointFit,
    LawFit,
    compare,
    critical_batch_sizes,
    fit_joint,
)
from dps_tf.analysis.report.content import (
    NOTHING,
    Column,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    estimate_text,
    number_text,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, comparable, effects
from dps_tf.analysis.report.regimes import regime_page_table
from dps_tf.analysis.wording import number, percent

Forms = Mapping[tuple[str, str], Sequence[Alternative]]
"""The law and its alternatives, by (panel, curve)."""

_MODELS = {
    "both_free": "c1 and c2 both differ from curve to curve",
    "c1_shared": "all curves share c1, only c2 differs",
    "c2_shared": "all curves share c2, only c1 differs",
    "both_shared": "all curves share c1 and c2",
}


def law_part(context: ReportContext) -> Part:
    """Returns the fits, what moves from curve to curve, and alternatives to the law.

    Nothing without a fit.
    """
    curves, joint = context.curves, context.joint
    if not curves.fits:
        return Part()
    level = next(iter(curves.fits.values())).level
    paragraphs = (
        f"Intervals are {percent(level)} intervals of the posterior, unweighted in log "
        "K*, with each K* taken to lie in its bracket; an end that is not stated is "
        "open. c1 counts examples and rules where batches are small, c2 counts steps "
        "and is the plateau; at the critical batch size c1/c2, K* is twice the "
        f"plateau. Prior: {next(iter(curves.fits.values())).prior}.",
        "Trials of one number have the same seeds and metaparameters at every batch "
        "size. What that shares among the K* of a curve moves c1 and c2 together and "
        "is in none of their intervals; c1/c2 does not feel it.",
        *joint_sentences(joint),
    )
    tables = [fit_table(curves), prediction_table(curves)]
    if joint:
        tables.append(joint_table(curves, joint))
    tables.append(regime_page_table(curves, context.options.anchor))
    tables.append(alternatives_table(curves, context.forms))
    return Part(paragraphs, (), tables)


def fit_table(curves: Curves) -> PageTable:
    """Returns the constants of each fitted curve."""
    rows = [
        {
            "curve": curves.title(panel, curve),
            "search": curves.searches.get((panel, curve), ""),
            "points": len(fit.observations),
            "c1": estimate_text(fit.c1),
            "c2": estimate_text(fit.c2),
            "critical": estimate_text(fit.critical_batch_size),
            "residual": _residual(fit),
        }
        for (panel, curve), fit in curves.fits.items()
    ]
    columns = (
        Column("curve", "Curve"),
        Column(
            "search",
            "Search",
            "Each K* is the best of so many points, drawn from a space of so many "
            "metaparameters.",
        ),
        Column("points", "K*", "Number of K* that were fitted."),
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
    )
    return page_table("law", "Fits of K* = c1/B + c2", columns, rows)


def prediction_table(curves: Curves) -> PageTable:
    """Returns where K* of a new study would lie just beyond what was measured."""
    columns = (
        Column("curve", "Curve"),
        Column("below", "At half the smallest batch size"),
        Column("above", "At twice the largest batch size"),
    )
    rows = [
        {
            "curve": curves.title(*pair),
            "below": _predicted(fit, fit.observations.batch_size[0] / 2),
            "above": _predicted(fit, fit.observations.batch_size[-1] * 2),
        }
        for pair, fit in curves.fits.items()
    ]
    caption = (
        "K* of a new study at batch sizes that were not measured, if the law holds "
        "there; those between are on the figure"
    )
    return page_table("predictions", caption, columns, rows)


def _predicted(fit: LawFit, batch_size: float) -> SortableText:
    if batch_size < 1:
        return NOTHING
    at = np.array([batch_size])
    low, high = (float(end[0]) for end in fit.prediction(at))
    found = estimate_text(Estimate(float(fit.steps(at)[0]), low, high))
    return SortableText(f"{batch_size:g}: {found.text}", found.key)


def _residual(fit: LawFit) -> SortableText:
    worst = int(abs(fit.residuals).argmax())
    value = float(fit.residuals[worst])
    size = fit.observations.batch_size[worst]
    return SortableText(f"{fit.rms:.2f} ({value:+.2f} at {size:g})", fit.rms)


def forms_of(curves: Curves) -> Forms:
    """Returns the law and its alternatives, fitted to each curve that has a fit."""
    return {pair: compare(fit.observations) for pair, fit in curves.fits.items()}


def misfits(curves: Curves, forms: Forms) -> dict[tuple[str, str], CriticalBatchSizes]:
    """Returns critical batch sizes of the curves for which the power law is better."""
    found = {
        pair: critical_batch_sizes(fit, forms[pair])
        for pair, fit in curves.fits.items()
    }
    return {pair: sizes for pair, sizes in found.items() if sizes is not None}


def alternatives_table(curves: Curves, forms: Forms) -> PageTable:
    """Returns AICc of the law, of no plateau and of a power law, for each curve."""
    rows = []
    preferred = misfits(curves, forms)
    for (panel, curve), of_curve in forms.items():
        found = {item.name: item for item in of_curve}
        row: dict[str, object] = {"curve": curves.title(panel, curve)}
        for name, item in found.items():
            row[name] = criterion_text(item)
        exponent = found["power_law"].parameters["a"]
        row["exponent"] = number_text(exponent)
        sizes = preferred.get((panel, curve))
        row["critical_power_law"] = estimate_text(sizes.power_law) if sizes else NOTHING
        row["critical_averaged"] = estimate_text(sizes.averaged) if sizes else NOTHING
        rows.append(row)
    columns = (
        Column("curve", "Curve"),
        Column("law", "c1/B + c2", "AICc; lower is better."),
        Column("no_plateau", "c1/B", "AICc without a plateau."),
        Column(
            "power_law",
            "c/B^a + d",
            "AICc of a power law with a plateau; not quoted below "
            f"{THREE_PARAMETERS_FROM} points, where its correction outweighs it.",
        ),
        Column("exponent", "a", "Exponent of the power law; 1 is the law."),
        Column(
            "critical_power_law",
            "Critical, power law",
            "Where c/B^a equals d; given where the power law has the lower AICc.",
        ),
        Column(
            "critical_averaged",
            "Critical, averaged",
            "Of c1/c2 and the column before, weighted by exp(-AICc/2).",
        ),
    )
    caption = "The law against two alternatives, by AICc"
    return page_table("alternatives", caption, columns, rows)


def criterion_text(item: Alternative) -> SortableText:
    """Returns AICc of a form, as a table shows it."""
    if item.aicc is None:
        return SortableText("not quoted", float("nan"))
    return SortableText(f"{item.aicc:.1f}", item.aicc)


def joint_fits(curves: Curves) -> dict[str, JointFit]:
    """Returns the joint fit of the curves with the same workload and goal, by name.

    Ratios are those of `effects`; there is none where only one curve has a fit.
    """
    found = {}
    for name, pairs in comparable(curves).items():
        fitted = [pair for pair in pairs if pair in curves.fits]
        if len(fitted) < 2:
            continue
        mine = {curves.title(*pair): curves.fits[pair].observations for pair in fitted}
        ratios = effects(curves, fitted)
        found[name] = fit_joint(mine, next(iter(mine)), pairs=ratios)
    return found


def joint_table(curves: Curves, joint: Mapping[str, JointFit]) -> PageTable:
    """Returns the ratios of c1, c2 and c1/c2 of two curves each, and what moves."""
    rows = [
        {
            "curve": ratio.curve,
            "reference": ratio.reference,
            "c1": estimate_text(ratio.c1),
            "c2": estimate_text(ratio.c2),
            "critical": estimate_text(ratio.critical_batch_size),
            "moves": moves_text(ratio),
            "searches": _searches(curves, ratio),
        }
        for fit in joint.values()
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
            "The constants whose interval does not hold a ratio of 1. Neither: the "
            "curves are too short or too much alike to say.",
        ),
        Column("searches", "Searches", "What their K* are the best of."),
    )
    caption = "What moves from curve to curve, fitted jointly with one residual scale"
    return page_table("joint", caption, columns, rows)


def moves_text(ratio: CurveRatio) -> str:
    """Returns which of c1 and c2 differ, and which way."""
    told = [
        f"{name} {'up' if getattr(ratio, name).value > 1 else 'down'}"
        for name in ratio.moves
    ]
    return ", ".join(told) or "neither"


def _searches(curves: Curves, ratio: CurveRatio) -> str:
    of = {curves.title(*pair): text for pair, text in curves.searches.items()}
    mine, theirs = of.get(ratio.curve, ""), of.get(ratio.reference, "")
    return mine if mine == theirs else f"{mine} against {theirs}"


def effect_sentences(curves: Curves, joint: Mapping[str, JointFit]) -> tuple[str, ...]:
    """Returns for each pair of curves by how much c1 and c2 differ."""
    return tuple(
        f"{ratio.curve} against {ratio.reference}: "
        f"c1 times {estimate_text(ratio.c1).text}, "
        f"c2 times {estimate_text(ratio.c2).text}; "
        f"{_verdict(ratio)}{_told(curves, ratio)}."
        for fit in joint.values()
        for ratio in fit.ratios
    )


def _told(curves: Curves, ratio: CurveRatio) -> str:
    """Returns what the two are the best of, where that differs."""
    searches = _searches(curves, ratio)
    return f" ({searches})" if " against " in searches else ""


def _verdict(ratio: CurveRatio) -> str:
    if not ratio.moves:
        return "neither moves for sure"
    if len(ratio.moves) == 2:
        return "both move"
    [moves] = ratio.moves
    return f"{moves} moves, {'c2' if moves == 'c1' else 'c1'} not for sure"


def joint_sentences(joint: Mapping[str, JointFit]) -> tuple[str, ...]:
    """Returns per fit which of the models of sharing has the lowest AICc."""
    return tuple(
        (f"{name}: " if len(joint) > 1 else "")
        + "By AICc, of the models in which curves may share constants, "
        + f"'{_MODELS[fit.best_model]}' describes them best"
        + _against_free(fit)
        for name, fit in joint.items()
        if fit.models["aicc"].notna().all()
    )


def _against_free(fit: JointFit) -> str:
    row = fit.models[fit.models["model"] == fit.best_model].iloc[0]
    if pd.isna(row["p_value"]):
        return "."
    return f" (F test against both free: p = {number(float(row['p_value']), 2)})."
