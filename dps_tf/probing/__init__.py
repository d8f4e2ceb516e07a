"""Trials trained again to measure why K* is what it is: smoothness and noise."""

from __future__ import annotations

from dps_tf.probing.gradients import ExampleGradients, MeanGradient
from dps_tf.probing.measurement import Measurer, Wanted
from dps_tf.probing.quantities import (
    CURVATURE,
    GAMMAS,
    QUANTITIES,
    NoiseEstimate,
    average,
    curvature,
    estimate,
    local_smoothness,
    measure_update,
)
from dps_tf.probing.recorded_study import RecordedStudy, RecordedTrial, read_recorded
from dps_tf.probing.replay import ProgramCache, log_spaced, replay

__all__ = [
    "CURVATURE",
    "GAMMAS",
    "QUANTITIES",
    "ExampleGradients",
    "MeanGradient",
    "Measurer",
    "NoiseEstimate",
    "ProgramCache",
    "RecordedStudy",
    "RecordedTrial",
    "Wanted",
    "average",
    "curvature",
    "estimate",
    "local_smoothness",
    "log_spaced",
    "measure_update",
    "read_recorded",
    "replay",
]
