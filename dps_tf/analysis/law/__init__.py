"""The law K* = c1/B + c2: its fit, its uncertainty and its rivals.

`Observations` go in; `fit_law` fits one curve, `fit_joint` several with one residual
scale, and `compare` sets other forms beside the law. The modules, in the order of their
imports: `likelihood`, `posterior`, `fit`, `alternatives`, `joint`.
"""

from __future__ import annotations

from dps_tf.analysis.law.alternatives import (
    THREE_PARAMETERS_FROM,
    Alternative,
    CriticalBatchSizes,
    aicc,
    compare,
    critical_batch_sizes,
    prefers_power_law,
)
from dps_tf.analysis.law.fit import (
    FEW_POINTS,
    LEVEL,
    MINIMUM_POINTS,
    Estimate,
    LawFit,
    fit_law,
)
from dps_tf.analysis.law.joint import CurveRatio, JointFit, fit_joint
from dps_tf.analysis.law.likelihood import Observations
