"""Optimizers and schedules whose metaparameters are tensors.

`build(name, schedule)` is the one way to make one; see `optimizers`.
"""

from __future__ import annotations

from dps_tf.optim.optimizers import OPTIMIZERS, TensorOptimizer, build, reads, register
from dps_tf.optim.schedules import SCHEDULES, Schedule, register_schedule

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Schedule",
    "TensorOptimizer",
    "build",
    "reads",
    "register",
    "register_schedule",
]
