"""Workloads: what a gin file binds, and what the names in it stand for.

A user's own module registers its pieces by `register_dataset` and `register_network`
and is brought in by `--import`.
"""

from __future__ import annotations

from dps_tf.data import register as register_dataset
from dps_tf.models import register as register_network

__all__ = ["register_dataset", "register_network"]
