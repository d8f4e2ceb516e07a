"""The law K* = c1/B + c2: its posterior, and what is read off it.

`fit_law` fits `Observations` of one curve, and `compare` gives the ratios of several in
a joint fit. The modules, in the order of their imports: `likelihood`, `prior`,
`lattice`, `posterior`, `integration`, `fit`, `comparison`.
"""

from __future__ import annotations

from dps_tf.analysis.law.comparison import (
    MARGIN,
    QUANTITIES,
    UNLIKE_SEARCHES,
    Comparison,
    CurveRatio,
    Ratio,
    compare,
    exponent_of,
    exponent_of_all,
    holm,
)
from dps_tf.analysis.law.fit import (
    DOUBTFUL,
    FEW_POINTS,
    LEVEL,
    MINIMUM_POINTS,
    MISFIT,
    SCALE_CAUTION,
    Estimate,
    LawFit,
    fit_law,
    joinable,
    joint_fit,
    misfits,
)
from dps_tf.analysis.law.integration import posteriors
from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.law.posterior import Distribution, Draws, Posterior
from dps_tf.analysis.law.prior import EXPONENT_PRIOR, PRIOR
