"""The law K* = c1/B + c2: its fit, its uncertainty and its rivals.

`Observations` go in; `fit_law` fits one curve, `fit_joint` several with one residual
scale, and `compare` sets other forms beside the law. The modules, in the order of their
imports: `observations`, `likelihood`, `posterior`, `fit`, `alternatives`, `joint`.
"""

from __future__ import annotations

from dps_tf.analysis.law.alternatives import (
    THREE_PARAMETERS_FROM,
    Alternative,
    aicc,
    compare,
)
from dps_tf.analysis.law.fit import (
    LEVEL,
    LOSSES,
    MINIMUM_POINTS,
    Estimate,
    LawFit,
    fit_law,
)
from dps_tf.analysis.law.joint import CurveRatio, JointFit, fit_joint
from dps_tf.analysis.law.observations import Observations

__all__ = [
    "LEVEL",
    "LOSSES",
    "MINIMUM_POINTS",
    "THREE_PARAMETERS_FROM",
    "Alternative",
    "CurveRatio",
    "Estimate",
    "JointFit",
    "LawFit",
    "Observations",
    "aicc",
    "compare",
    "fit_joint",
    "fit_law",
]
