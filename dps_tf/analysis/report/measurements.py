"""Smoothness and gradient noise scale along the training of best trials, on replays.

The report gives no mean of the smoothness over training and no ratio between
sparsities: measurements are spaced in the logarithm of the step, initialization among
them, so that a mean is mostly one of the first steps; best trials of two cells differ
in learning rate and seeds; and a replay ends at its K*, which differs too. A comparison
needs equal rates and seeds, and equal steps or losses.

The noise scale is shown beside the critical batch size c1/c2, which it may predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

from dps_tf.analysis.law import LawFit
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    illustration,
)
from dps_tf.analysis.report.curves import (
    Curves,
    best_trials_of,
    by_curve,
    first_seed,
    of_curve,
)
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.law import fits_of
from dps_tf.analysis.report.style import Axes, Figure, LineStyle, file_name
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import and_list, count, interval, number, with_panel
from dps_tf.core import Curve

_WHAT_IT_IS_NOT = (
    "Lines of different curves are best trials with their own learning rates, seeds "
    "and lengths, so that one above the other is no effect of what curves differ in. "
    "In the theory of Lee et al. 2021 smoothness enters c1 = (f(w1) - f*) 2 L beta / "
    "(mu^2 eps^2), beside four quantities that differ from curve to curve as well, and "
    "does not enter c2."
)
_DEFINITIONS = {
    "smoothness": (
        "Local smoothness L",
        "L = max over g of |grad f(w + g d) - grad f(w)| / |g d| with d the next "
        "update and g = 0.1, ..., 0.9 (Lee et al. 2021)",
    ),
    "noise_scale": (
        "Gradient noise scale",
        "tr(Sigma) / |G|^2 from two batch sizes, without bias for each of the two "
        "(McCandlish et al. 2018); left out where |G|^2 comes out negative",
    ),
}
_DIAMOND: dict[str, Any] = {"marker": "d", "color": style.INK, "linestyle": "none"}


def smoothness_part(context: ReportContext) -> Part:
    """Returns the local smoothness L of the best trials along their training."""
    curves = context.curves
    measured = measured_on_best(curves, context.tables.measurements, "smoothness")
    if measured.empty:
        return Part()
    return Part((_WHAT_IT_IS_NOT,), along_training(curves, measured, "smoothness"))


def measured_on_best(
    curves: Curves, measurements: pd.DataFrame, quantity: str
) -> pd.DataFrame:
    """Returns the measurements of a quantity on the best trial of each cell, named.

    Measurements past K*, from a replay past the goal, are left out.
    """
    rows = measurements[measurements["quantity"] == quantity]
    best = best_trials_of(curves.cells, "steps_to_result")
    rows = rows.merge(best, on=[*study_key(best), "trial"])
    rows = rows[rows["step"] <= rows["steps_to_result"]]
    return curves.name(rows.drop(columns="steps_to_result"))


def along_training(
    curves: Curves, measured: pd.DataFrame, quantity: str
) -> list[Illustration]:
    """Returns a figure per panel at the batch size that most curves were measured at.

    Of several such sizes it is the middle one: neither the noisiest nor the shortest.
    """
    figures = []
    for panel, rows in measured.groupby("panel", sort=False):
        counts = rows.groupby("batch_size")["curve"].nunique()
        common = sorted(counts[counts == counts.max()].index)
        size = int(common[len(common) // 2])
        shown = first_seed(rows[rows["batch_size"] == size])
        line_styles = curves.line_styles_of(shown["curve"])
        with style.one_axis(line_styles) as (figure, axis):
            draw_along(axis, shown, quantity, line_styles)
        title = curves.panel_title(panel)
        figures.append(_illustrated(figure, shown, quantity, title))
    return figures


def draw_along(
    axis: Axes,
    measured: pd.DataFrame,
    quantity: str,
    line_styles: Mapping[str, LineStyle],
) -> None:
    """Draws a quantity against the step, a line per curve with gaps where it is NaN."""
    is_noise = quantity == "noise_scale"
    if is_noise:
        # Set before drawing, as the limits of an axis depend on its base.
        style.log2_axis(axis, "y")
    draw_curves(axis, measured, ("step", "value"), line_styles, markersize=4.5)
    style.log10_axis(axis, "x")
    if not is_noise:
        style.log10_axis(axis, "y")
    label = "Noise scale (examples)" if is_noise else "Local smoothness L"
    axis.set(xlabel="Step", ylabel=label)


def _illustrated(
    figure: Figure, shown: pd.DataFrame, quantity: str, panel: str
) -> Illustration:
    title, definition = _DEFINITIONS[quantity]
    examples = and_list(sorted({f"{n:,}" for n in shown["examples"]}))
    size = int(shown["batch_size"].iloc[0])
    ends = "; ".join(
        f"{name}: {number(rows['value'].iloc[0])} to {number(rows['value'].iloc[-1])}"
        for name, rows in shown.sort_values("step").groupby("curve", sort=False)
    )
    return illustration(
        figure,
        file_name(quantity, "along_training", panel),
        with_panel(f"{title} along training", panel),
        caption=(
            f"{definition}, on {examples} examples, on a replay of the best trial at "
            f"batch size {size}, up to its K*."
        ),
        alt=(
            f"Line chart of {title.lower()} against the step at batch size {size} for "
            f"{count(shown['curve'].nunique(), 'curve')}, from first to last "
            f"measurement: {ends}."
        ),
    )


def noise_part(context: ReportContext) -> Part:
    """Returns the noise scale along training, and beside c1/c2."""
    curves, measurements = context.curves, context.tables.measurements
    measured = measured_on_best(curves, measurements, "noise_scale")
    # Undefined where the estimate of |G|^2 is not positive.
    measured = measured[np.isfinite(measured["value"]) & (measured["value"] > 0)]
    if measured.empty:
        return Part()
    figures = along_training(curves, measured, "noise_scale")
    averages = averaged(curves, measurements)
    fits = fits_of(curves, [each.fits for each in context.joint])
    compared = beside_critical(curves, measured, averages, fits)
    if len(compared):
        figures.append(_critical_figure(curves, compared))
    table = noise_table(curves, averages)
    return Part(illustrations=figures, tables=(table,) if len(table.frame) else ())


def averaged(
    curves: Curves, measurements: pd.DataFrame, prefix: str = ""
) -> pd.DataFrame:
    """Returns the noise scale of each cell over training, and late in it.

    Columns: key, panel, curve, `study_key`, scale, at_half (K*/2) and at_end (K*).

    tr(Sigma) and |G|^2 are averaged over the steps up to K* each, by the trapezoidal
    rule, then divided: measurements crowd in the first steps, and a mean of ratios
    would be decided by its largest term. NaN where the mean of |G|^2 is not
    positive. The late values are ratios at one measurement: the nearest to half of the
    last step, and the last one. The prefix `optimizer_` is for the noise scale in the
    geometry of the optimizer.
    """
    keys = study_key(measurements)
    kinds = {"scale": mean_over_steps, "at_half": _at_half, "at_end": _at_end}
    trace, square = (
        measured_on_best(curves, measurements, prefix + name).groupby(keys)[
            ["step", "value"]
        ]
        for name in ("noise_trace", "gradient_square")
    )
    if not (trace.ngroups and square.ngroups):
        return pd.DataFrame(columns=["key", "panel", "curve", *keys, *kinds])
    averages = {}
    for name, of in kinds.items():
        below = square.apply(of)
        averages[name] = trace.apply(of) / below.where(below > 0)
    named = curves.name(pd.DataFrame(averages).reset_index())
    return named.sort_values(["panel", "curve", *keys], ignore_index=True)


def _at_half(rows: pd.DataFrame) -> float:
    far = (rows["step"] - rows["step"].max() / 2).abs()
    return float(rows["value"].iloc[int(far.to_numpy().argmin())])


def _at_end(rows: pd.DataFrame) -> float:
    return float(rows["value"].iloc[int(rows["step"].to_numpy().argmax())])


def noise_table(curves: Curves, averages: pd.DataFrame) -> PageTable:
    """Returns a table of `averaged`: the noise scale of each cell."""
    texts: dict[str, Any] = {
        name: [SortableText(number(value), float(value)) for value in averages[name]]
        for name in ("scale", "at_half", "at_end")
    }
    columns = (
        Column("curve", "Curve"),
        Column("batch_size", "Batch size"),
        Column("scale", "Mean to K*", "tr(Sigma) and |G|^2 each over all steps."),
        Column("at_half", "At K*/2", "At the measurement that is nearest to it."),
        Column("at_end", "At K*", "At the last measurement."),
    )
    caption = "Gradient noise scale of the best trials, in examples"
    frame = averages.assign(curve=curves.titles(averages), **texts)
    return PageTable("noise-scale", caption, columns, frame)


def mean_scale(averages: pd.DataFrame) -> float:
    """Returns the geometric mean over some cells of `averaged`; NaN without any."""
    scales = averages.loc[averages["scale"] > 0, "scale"].to_numpy(float)
    return float(np.exp(np.log(scales).mean())) if len(scales) else np.nan


def mean_over_steps(rows: pd.DataFrame) -> float:
    """Returns the mean of `value` over the steps between the first and the last."""
    rows = rows.sort_values("step")
    at, values = rows["step"].to_numpy(float), rows["value"].to_numpy(float)
    if at[-1] == at[0]:
        return float(values.mean())
    return float(trapezoid(values, at) / (at[-1] - at[0]))


def beside_critical(
    curves: Curves,
    measured: pd.DataFrame,
    averages: pd.DataFrame,
    fits: Mapping[Curve, LawFit],
) -> pd.DataFrame:
    """Returns the noise scale of each curve of `fits` beside its c1/c2.

    Columns: key, curve, label (with the panel where there are several), noise
    (geometric mean over cells), noise_low, noise_high (least and greatest single
    measurement), critical, critical_low, critical_high.
    """
    rows = []
    for key, values in by_curve(measured).items():
        fit, noise = fits.get(key), mean_scale(of_curve(averages, key))
        if fit is None or np.isnan(noise):
            continue
        critical = fit.critical_batch_size
        rows.append(
            {
                "key": key,
                "curve": curves.labels[key].name,
                "label": curves.title(key),
                "noise": noise,
                "noise_low": float(values["value"].min()),
                "noise_high": float(values["value"].max()),
                "critical": critical.value,
                "critical_low": critical.low if critical.low > 0 else np.nan,
                "critical_high": critical.high,
            }
        )
    return pd.DataFrame(rows)


def draw_beside_critical(
    axis: Axes, compared: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws a table of `beside_critical`, a row per curve."""
    style.log2_axis(axis, "x")
    values = compared.filter(regex="^(noise|critical)").to_numpy(float)
    positive = values[np.isfinite(values) & (values > 0)]
    limits = float(positive.min()) / 1.6, float(positive.max()) * 1.6
    for height, row in enumerate(compared.to_dict("records")):
        line_style = style.line_style_of(line_styles, row["curve"])
        for name, shift, marks in (
            ("noise", -0.14, style.mark_style(line_style)),
            ("critical", 0.14, _DIAMOND),
        ):
            # An open end runs off the axis.
            ends = np.nan_to_num([row[f"{name}_low"], row[f"{name}_high"]], nan=0.0)
            line = {"color": marks["color"], "linewidth": 1.3}
            ends = np.clip(ends, limits[0] / 2, limits[1] * 2)
            axis.plot(ends, [height + shift] * 2, **line)
            axis.plot([row[name]], [height + shift], **marks)
    axis.set_xlim(*limits)
    axis.set_ylim(len(compared) - 0.5, -0.5)
    axis.set_yticks(
        range(len(compared)), labels=[str(name) for name in compared["label"]]
    )
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="Examples")


def _critical_figure(curves: Curves, compared: pd.DataFrame) -> Illustration:
    with style.styled():
        figure = style.new_figure(style.SIZE[0], 1.7 + 0.55 * len(compared))
        draw_beside_critical(figure.subplots(), compared, curves.line_styles)
        handle = style.line_handle("c1/c2 with interval", **_DIAMOND)
        style.legend_below(figure, [handle])
    listing = "; ".join(
        f"{row['label']}: noise scale {number(row['noise'])}, c1/c2 "
        f"{number(row['critical'])} "
        f"({interval(row['critical_low'], row['critical_high'])})"
        for row in compared.to_dict("records")
    )
    return illustration(
        figure,
        "noise_scale_and_critical_batch_size",
        "Noise scale beside the critical batch size",
        caption=(
            "Upper mark: tr(Sigma) and |G|^2, each averaged over the steps up to K*, "
            "divided; geometric mean over the cells of a curve. Its line: least "
            "to greatest single measurement. Diamond: c1/c2 with its interval, of the "
            "joint fit where a curve is too short alone; an end that is missing is "
            "open. McCandlish et al. "
            "2018 expect the two to agree in order of magnitude."
        ),
        alt=f"Dot plot. {listing}.",
    )
