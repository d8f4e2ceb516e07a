"""Measurements of smoothness and noise, which explain K*, on trials trained again."""

from __future__ import annotations

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.probing.gradients import ExampleGradients
from dps_tf.probing.measurement import Measurer, ProgramCache, Wanted
from dps_tf.probing.noise import OPTIMIZER_NOISE, NoiseEstimate, estimate
from dps_tf.probing.quantities import (
    CURVATURE,
    QUANTITIES,
    curvature,
    local_smoothness,
    measure_update,
)
from dps_tf.probing.replay import dataset_of, log_spaced, read_recorded, replay
