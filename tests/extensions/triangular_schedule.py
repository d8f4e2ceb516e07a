"""A learning rate that rises and falls again and again (Smith 2017, section 3.1)."""

from __future__ import annotations

import tensorflow as tf

from dps_tf import register_schedule
from dps_tf.core import FRACTION, POSITIVE, Argument
from dps_tf.optim import Schedule


def triangular(metaparameters, step):
    """Returns the rate of the next update; `cycle_steps` from low to low."""
    high = tf.convert_to_tensor(metaparameters["learning_rate"])
    low = high * metaparameters["low_rate_factor"]
    cycle = tf.convert_to_tensor(metaparameters["cycle_steps"])
    place = tf.math.floormod(tf.cast(step, tf.float32), cycle) / cycle
    return low + (high - low) * (1.0 - tf.abs(2.0 * place - 1.0))


register_schedule(
    "triangular",
    Schedule(
        {
            "cycle_steps": Argument(range=POSITIVE),
            "low_rate_factor": Argument(0.1, FRACTION),
        },
        triangular,
    ),
)
