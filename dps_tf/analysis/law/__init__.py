"""The law K* = c1/B + c2: its posterior, and what is read off it.

`Observations` go in; `fit_law` fits one curve, and `compare` gives the ratios of
several in a joint fit. Predictions draw from `LawFit.posterior`. The modules, in the
order of their imports: `likelihood`, `prior`, `lattice`, `distribution`, `posterior`,
`integration`, `fit`, `comparison`.
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
from dps_tf.analysis.law.distribution import Distribution
from dps_tf.analysis.law.fit import (
    FEW_POINTS,
    LEVEL,
    MINIMUM_POINTS,
    MISFIT,
    SCALE_CAUTION,
    Estimate,
    LawFit,
    fit_law,
    misfits,
)
from dps_tf.analysis.law.integration import posterior
from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.law.posterior import Draws, Posterior
from dps_tf.analysis.law.prior import EXPONENT_PRIOR, PRIOR
