"""Does the gradient noise scale foretell the critical batch size?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import noise_scale as drawing
from dps_tf.analysis.figures.style import legend_below, new_figure, styled
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves, place_of
from dps_tf.analysis.report.measured import SIZE, along_training, measured_on_best
from dps_tf.analysis.report.wording import interval, number
from dps_tf.analysis.tables import STUDY_KEY


def noise_figures(curves: Curves, measurements: pd.DataFrame) -> list[Illustration]:
    """Returns the noise scale along training, and beside c1/c2.

    Args:
        curves: of the report.
        measurements: one row per measurement.
    """
    measured = measured_on_best(curves, measurements, "noise_scale")
    # Undefined where the estimate of |G|^2 is not positive.
    measured = measured[np.isfinite(measured["value"]) & (measured["value"] > 0)]
    if measured.empty:
        return []
    figures = along_training(curves, measured, "noise_scale")
    compared = beside_critical(curves, measured, averaged(curves, measurements))
    if len(compared):
        figures.append(_figure(curves, compared))
    return figures


def averaged(curves: Curves, measurements: pd.DataFrame) -> pd.DataFrame:
    """Returns the noise scale of each cell over training, as panel, curve, scale.

    tr(Sigma) and |G|^2 are averaged over the measurements each, then divided: the mean
    of their ratios would be that of its largest term. NaN where the mean of |G|^2 is
    not positive.
    """
    keys = ["panel", "curve", *STUDY_KEY]
    means = [
        measured_on_best(curves, measurements, name).groupby(keys)["value"].mean()
        for name in ("noise_trace", "gradient_square")
    ]
    scale = (means[0] / means[1].where(means[1] > 0)).rename("scale")
    return scale.reset_index()


def beside_critical(
    curves: Curves, measured: pd.DataFrame, averages: pd.DataFrame
) -> pd.DataFrame:
    """Returns the noise scale of each fitted curve beside its c1/c2.

    Columns: panel, curve, noise (geometric mean over cells), noise_low, noise_high
    (least and greatest single measurement), critical, critical_low, critical_high.

    Args:
        curves: of the report.
        measured: single measurements of the noise scale, positive.
        averages: see `averaged`.
    """
    rows = []
    for (panel, curve), values in measured.groupby(["panel", "curve"], sort=False):
        fit = curves.fits.get((str(panel), str(curve)))
        mine = (averages["panel"] == panel) & (averages["curve"] == curve)
        scales = averages.loc[mine & (averages["scale"] > 0), "scale"]
        if fit is None or scales.empty:
            continue
        critical = fit.critical_batch_size
        rows.append(
            {
                "panel": panel,
                "curve": curve,
                "noise": float(np.exp(np.log(scales).mean())),
                "noise_low": float(values["value"].min()),
                "noise_high": float(values["value"].max()),
                "critical": critical.value,
                "critical_low": critical.low if critical.low > 0 else np.nan,
                "critical_high": critical.high,
            }
        )
    return pd.DataFrame(rows)


def _figure(curves: Curves, compared: pd.DataFrame) -> Illustration:
    names = [
        place_of(curves, str(row["panel"]), str(row["curve"]))
        for row in compared.to_dict("records")
    ]
    with styled():
        figure = new_figure(SIZE[0], 1.7 + 0.55 * len(compared))
        named = compared.assign(label=names)
        drawing.draw_beside_critical(figure.subplots(), named, curves.naming.looks)
        legend_below(figure, drawing.legend_handles({}))
    told = "; ".join(
        f"{name}: noise scale {number(row['noise'])}, c1/c2 {number(row['critical'])} "
        f"({interval(row['critical_low'], row['critical_high'])})"
        for name, row in zip(names, compared.to_dict("records"), strict=True)
    )
    words = FigureText(
        name="noise_scale_and_critical_batch_size",
        title="Noise scale beside the critical batch size",
        caption=(
            "Upper mark: tr(Sigma) and |G|^2, each averaged over the measurements of a "
            "cell, divided; geometric mean over the cells of a curve. Its line: least "
            "to greatest single measurement. Diamond: c1/c2 of the "
            "fit with its interval; an end that is missing is open. McCandlish et al. "
            "2018 expect the two to agree in order of magnitude."
        ),
        alt=f"Dot plot. {told}.",
    )
    return illustration(figure, words)
