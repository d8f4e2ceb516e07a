"""Figures of many curves at once, from the fits of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dps_tf.analysis.fit_table import CurveFit, TableFit
from dps_tf.analysis.report import style
from dps_tf.analysis.report.style import Figure
from dps_tf.core import UserError

_CURVE = np.geomspace(2.0**-12, 2.0**12, 400)


def _curves(table: TableFit) -> Sequence[CurveFit]:
    if not isinstance(table, TableFit):
        raise UserError(
            f"what is drawn is a {type(table).__name__}: give what dps_tf.fit_table or "
            "Tables.fit returns."
        )
    return table.curves


def plot_collapsed(table: TableFit, columns: int = 3) -> Figure:
    """Returns K*/c2 against B/(c1/c2) of every curve, on the law, which is 1 + 1/x.

    Constants are the medians of each curve alone. Curves whose c1/c2 is only a bound
    have no place, and the legend counts them. A bar is the bracket of K*, wider by
    twice its noise. The legend has `columns`.

    >>> from pandas import DataFrame
    >>> table = DataFrame({"batch_size": [1, 4, 16], "steps_to_result": [410, 112, 35]})
    >>> import dps_tf
    >>> dps_tf.plot_collapsed(dps_tf.fit_table(table)).axes[0].get_xlabel()
    'B / (c1/c2)'
    """
    shown = [curve for curve in _curves(table) if not curve.fit.unresolved]
    styles = style.assign_styles(curve.curve for curve in shown)
    ends = [(0.1, 1.0), (10.0, 10.0)][: 2 * (not shown)]
    with style.styled():
        figure = style.new_figure(8.2, 5.2 + 0.2 * -(-len(styles) // columns))
        axis = figure.subplots()
        for curve in shown:
            points, look = curve.fit.observations.located(), styles[curve.curve]
            c2, wide = curve.fit.c2.value, np.exp2(2 * points.noise)
            low = np.where(points.is_exact, points.high, points.low) / wide / c2
            high, x = (
                points.high * wide / c2,
                points.batch_size * c2 / curve.fit.c1.value,
            )
            axis.vlines(x, low, high, color=look.color, linewidth=1)
            axis.plot(x, points.middle / c2, **style.mark_style(look))
            ends += [(x.min(), low.min()), (x.max(), high.max())]
        (left, bottom), (right, top) = np.min(ends, axis=0), np.max(ends, axis=0)
        axis.plot(_CURVE, 1 + 1 / _CURVE, color=style.INK, linewidth=1, zorder=1)
        axis.set(xlabel="B / (c1/c2)", xlim=(left / 1.4, right * 1.4))
        axis.set(ylabel="K* / c2", ylim=(bottom / 1.2, top * 1.2))
        style.log10_axis(axis, "x")
        style.log10_axis(axis, "y")
        handles = [style.line_handle("1 + 1/x", color=style.INK, linewidth=1)]
        for name, look in styles.items():
            handles.append(style.line_handle(name, **style.mark_style(look)))
        if left_out := len(table.curves) - len(shown):
            text = f"{left_out} left out: c1/c2 is a bound"
            handles.append(style.line_handle(text, linestyle="none"))
        style.legend_below(figure, handles, columns)
    return figure


def plot_critical(table: TableFit, groups: Mapping[str, str] | None = None) -> Figure:
    """Returns c1/c2 of every curve with its interval, the largest on top.

    A mark is hollow where an end is open, and its bar runs off that side. `groups` says
    of curves, by name, what they are of: a color for each.

    >>> from pandas import DataFrame
    >>> table = DataFrame({"batch_size": [1, 4, 16], "steps_to_result": [410, 112, 35]})
    >>> import dps_tf
    >>> axis = dps_tf.plot_critical(dps_tf.fit_table(table)).axes[0]
    >>> axis.get_yticklabels()[0].get_text()
    'all'
    """
    curves = sorted(_curves(table), key=lambda c: c.fit.critical_batch_size.value)
    found = {curve.curve: curve.fit.critical_batch_size for curve in curves}
    group = {name: (groups or {}).get(name, "other") for name in found}
    styles = style.assign_styles(sorted({*group.values()}))
    ends = [end for e in found.values() for end in (e.low, e.value, e.high)]
    ends = [end for end in ends if 0 < end < np.inf]
    left, right = min(ends) / 1.5, max(ends) * 1.5
    with style.styled():
        figure = style.new_figure(8.2, 1.3 + 0.23 * len(found))
        axis = figure.subplots()
        for row, (name, estimate) in enumerate(found.items()):
            look, low, high = styles[group[name]], estimate.low, estimate.high
            is_open = not 0 < low <= high < np.inf
            bar = np.clip((low, high), left / 2, right * 2)
            axis.hlines(row, *bar, color=look.color, linewidth=1.6)
            axis.plot(estimate.value, row, **style.mark_style(look, hollow=is_open))
        axis.set(xlabel=f"c1/c2 ({' or '.join(sorted({c.unit for c in curves}))})")
        axis.set(xlim=(left, right), ylim=(-0.6, len(found) - 0.4))
        axis.set_yticks(range(len(found)), labels=list(found), fontsize=9)
        style.log10_axis(axis, "x")
        handles = [
            style.line_handle(g, **style.mark_style(s)) for g, s in styles.items()
        ]
        style.legend_below(figure, handles if groups else [], 6)
    return figure
