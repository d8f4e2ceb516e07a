"""Optimizers and schedules whose metaparameters are tensors.

`build(name, schedule)` is the one way to make one; see `optimizers`.
"""

from __future__ import annotations

from dps_tf.optim.optimizers import TensorOptimizer, build, names
from dps_tf.optim.schedules import SCHEDULES

__all__ = ["SCHEDULES", "TensorOptimizer", "build", "names"]
