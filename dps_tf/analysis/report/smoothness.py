"""How smooth is the loss along the training of the winners?

No mean over training and no ratio between sparsities is given. Looks are spaced in the
logarithm of the step, initialization among them, so that a mean says what the first
steps are like; winners of two cells differ in learning rate and seeds; and a replay
ends at its K*, which differs too. A comparison needs equal rates and seeds, and steps
or losses at which the two are alike.
"""

from __future__ import annotations

from dps_tf.analysis.report.content import Part, ReportContext
from dps_tf.analysis.report.measurements import along_training, measured_on_best

_WHAT_IT_IS_NOT = (
    "Lines of different curves are winners with their own learning rates, seeds and "
    "lengths, so that one above the other is no effect of what the curves differ in. "
    "In the theory of Lee et al. 2021 smoothness enters c1 = (f(w1) - f*) 2 L beta / "
    "(mu^2 eps^2), beside four quantities that differ from curve to curve as well, and "
    "does not enter c2."
)


def smoothness_part(context: ReportContext) -> Part:
    """Returns the local smoothness L of the best trials along their training."""
    curves = context.curves
    measured = measured_on_best(curves, context.tables.measurements, "smoothness")
    if measured.empty:
        return Part()
    return Part((_WHAT_IT_IS_NOT,), along_training(curves, measured, "smoothness"))
