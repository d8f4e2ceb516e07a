"""The prior of c1/B^a + c2: what is assumed of it before K* is looked at.

c1 is log-uniform. c2 has the density 1 / (1 + c2/m)^2, a proper one whose median m is
the least K* of the curve: flat towards 0, so that a plateau that the data do not show
has an upper end, and falling beyond what was measured. The residual scale is
log-uniform. The exponent a is 1, or log-normal about 1. Reports print PRIOR, and
EXPONENT_PRIOR where a is free, beside their intervals.
"""

from __future__ import annotations

import numpy as np

from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.tables import Floats

C1_BELOW, C1_ABOVE = 6.0, 8.0
"""Octaves below the least K* B^a, and above the largest, at which the prior of c1 ends:
a falling part of that size is 2 % of K* at the smallest batch size. The lower end
matters where no slope is resolved."""
C2_BEYOND = 16.0
"""Octaves about m beyond which the prior of c2 has 3e-5 of its weight."""
PRIOR = "c1 log-uniform; c2 ~ 1/(1 + c2/m)^2, m the least K*; scale log-uniform"
EXPONENT_SPREAD = 0.22
"""Of ln a beforehand: a is between 0.65 and 1.54 at 95 %, as are the exponents of
published curves."""
EXPONENT_PRIOR = f"ln a normal about 0 with standard deviation {EXPONENT_SPREAD}"


def log_prior_of_c2(log2_c2: Floats, observations: Observations) -> Floats:
    """Returns the natural logarithm of the density of log2 c2; see the module."""
    over = np.log(2) * (log2_c2 - np.log2(observations.located().middle.min()))
    return np.asarray(over - 2 * np.logaddexp(0, over) + np.log(np.log(2)), np.float64)


def prior_ends(observations: Observations, exponent: Floats) -> Floats:
    """Returns the ends of log2 c1 and log2 c2 for the a of each slice, [2, s, 2]."""
    located = observations.located()
    steps = np.log2(located.middle)
    examples = steps + exponent[:, None] * np.log2(located.batch_size)
    middle = np.full(len(exponent), steps.min())
    c1 = examples.min(axis=1) - C1_BELOW, examples.max(axis=1) + C1_ABOVE
    return np.array([c1, (middle - C2_BEYOND, middle + C2_BEYOND)]).swapaxes(1, 2)
