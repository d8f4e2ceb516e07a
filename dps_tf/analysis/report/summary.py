"""Describes the curves in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dps_tf.analysis.report.cautions import caution_text
from dps_tf.analysis.report.content import Caution, ReportContext
from dps_tf.analysis.report.curves import (
    Curves,
    cell_names,
    comparable,
    groups,
    of_curve,
)
from dps_tf.analysis.wording import and_list, count, exact, number, steps
from dps_tf.core import Curve

_NEARLY = 0.02
"""Distance from a half, as a share of the steps, up to which a text says half."""


def first_sentence(context: ReportContext, warned: Sequence[Caution]) -> str:
    """Returns the range of the first curve, how others differ, and its cautions."""
    curves = context.curves
    first = next(iter(curves.labels))
    text = _range(curves.title(first), of_curve(curves.exact, first))
    if ends := curves.ends.get(first):
        text += f"; {ends.by_fit}"
    _, others = _ratios(curves, comparable(curves)[0])
    if others:
        text += f"; at equal batch sizes, {and_list(others, 2)}"
    both = zip(cell_names(curves.cells), curves.cells["key"], strict=True)
    names = {curves.title(first), *(name for name, key in both if key == first)}
    touching = [
        caution_text(caution)
        for caution in warned
        if not caution.is_note and (not caution.cells or names & set(caution.cells))
    ]
    if touching:
        lowered = [title[0].lower() + title[1:] for title in touching]
        text += f" - but beware: {and_list(lowered)}"
    return f"{text}."


def summary(context: ReportContext) -> tuple[str, ...]:
    """Returns some sentences per curve, then one per workload that compares curves."""
    texts = []
    curves = context.curves
    for key, cells in groups(curves):
        parts = [_range(curves.title(key), of_curve(curves.exact, key)) + "."]
        missing = int(cells["steps_to_result"].isna().sum())
        if missing:
            parts.append(f"{count(missing, 'batch size')} without a K*.")
        untrained = int((cells["steps_to_result"] == 0).sum())
        if untrained:
            parts.append(f"{count(untrained, 'batch size')} at which K* is 0.")
        if ends := curves.ends.get(key):
            parts.append(ends.sentence)
        texts.append(" ".join(parts))
    return (*texts, *_comparisons(curves))


def _range(name: str, rows: pd.DataFrame) -> str:
    """Returns K* at the ends of a curve, a clause without full stop."""
    if rows.empty:
        return f"{name}: no K* is known exactly"
    rows = rows.sort_values("batch_size")
    first, last = rows.iloc[0], rows.iloc[-1]
    start = (
        f"{name}: {steps(first['steps_to_result'])} steps reach the goal at batch "
        f"size {first['batch_size']:,}"
    )
    if len(rows) == 1:
        return start
    batch = last["batch_size"] / first["batch_size"]
    change = change_text(first["steps_to_result"], last["steps_to_result"])
    return (
        f"{start}, {steps(last['steps_to_result'])} at {last['batch_size']:,} "
        f"({exact(batch)} times the batch size, {change})"
    )


def change_text(before: float, after: float) -> str:
    """Returns the steps after a change relative to the steps before, in words.

    >>> change_text(100, 50), change_text(100, 7), change_text(100, 310)
    ('half the steps', '7 % of the steps', '3.1 times the steps')
    >>> change_text(100, 100), change_text(0, 10)
    ('the same steps', 'from none')
    """
    if before == after:
        return "the same steps"
    if before == 0:
        return "from none"
    share = after / before
    if abs(share - 0.5) < _NEARLY:
        return "half the steps"
    if share < 1:
        return f"{number(100 * after / before, 2)} % of the steps"
    return f"{number(share, 2)} times the steps"


def _ratios(curves: Curves, keys: Sequence[Curve]) -> tuple[str, list[str]]:
    """Returns the first curve, and the steps of others of its group relative to it.

    There is one text for each curve that shares a batch size with the first.
    """
    first, *others = (
        of_curve(curves.exact, key).set_index("batch_size")["steps_to_result"]
        for key in keys
    )
    names = [curves.labels[key].in_group for key in keys]
    texts = []
    for name, steps_of in zip(names[1:], others, strict=True):
        ratios = (steps_of / first.where(first > 0)).dropna().to_numpy(float)
        if len(ratios):
            texts.append(f"{_times(ratios)} for {name}")
    return names[0], texts


def _comparisons(curves: Curves) -> list[str]:
    """Returns sentences that compare curves with the first one of their workload."""
    sentences = []
    groups_of = comparable(curves)
    for keys in groups_of:
        reference, texts = _ratios(curves, keys)
        if texts:
            start = f"{curves.labels[keys[0]].group}: " if len(groups_of) > 1 else ""
            sentences.append(
                f"{start}Steps at equal batch size, relative to {reference}: "
                f"{'; '.join(texts)}. {curves.best_of(keys)}".rstrip()
            )
    return sentences


def _times(ratios: np.ndarray) -> str:
    low, high = float(ratios.min()), float(ratios.max())
    if f"{low:.2g}" == f"{high:.2g}":
        return f"{number(low, 2)} times the steps"
    return f"{number(low, 2)} to {number(high, 2)} times the steps"
