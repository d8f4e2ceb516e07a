"""The law K* = c1/B + c2: its fit, its uncertainty and its rivals.

`Observations` go in; `fit_law` fits one curve, `fit_joint` several with one residual
scale, and `compare` sets other forms beside the law. The modules, in the order of their
imports: `likelihood`, `posterior`, `fit`, `alternatives`, `joint`.
"""

from __future__ import annotations

from dps_tf.analysis.law.alternatives import (
    THREE_PARAMETERS_FROM as THREE_PARAMETERS_FROM,
)
from dps_tf.analysis.law.alternatives import (
    Alternative as Alternative,
)
from dps_tf.analysis.law.alternatives import (
    CriticalBatchSizes as CriticalBatchSizes,
)
from dps_tf.analysis.law.alternatives import (
    aicc as aicc,
)
from dps_tf.analysis.law.alternatives import (
    compare as compare,
)
from dps_tf.analysis.law.alternatives import (
    critical_batch_sizes as critical_batch_sizes,
)
from dps_tf.analysis.law.alternatives import (
    prefers_power_law as prefers_power_law,
)
from dps_tf.analysis.law.fit import (
    FEW_POINTS as FEW_POINTS,
)
from dps_tf.analysis.law.fit import (
    LEVEL as LEVEL,
)
from dps_tf.analysis.law.fit import (
    LOSSES as LOSSES,
)
from dps_tf.analysis.law.fit import (
    MINIMUM_POINTS as MINIMUM_POINTS,
)
from dps_tf.analysis.law.fit import (
    Estimate as Estimate,
)
from dps_tf.analysis.law.fit import (
    LawFit as LawFit,
)
from dps_tf.analysis.law.fit import (
    fit_law as fit_law,
)
from dps_tf.analysis.law.joint import (
    CurveRatio as CurveRatio,
)
from dps_tf.analysis.law.joint import (
    JointFit as JointFit,
)
from dps_tf.analysis.law.joint import (
    fit_joint as fit_joint,
)
from dps_tf.analysis.law.likelihood import (
    Observations as Observations,
)
