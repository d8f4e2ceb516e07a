"""The exponent a of c1/B^a + c2 that curves have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import norm

from dps_tf.analysis.law.distribution import Distribution
from dps_tf.analysis.law.fit import check
from dps_tf.analysis.law.integration import posteriors
from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.law.prior import EXPONENT_SPREAD


def exponent_of(curves: Mapping[str, Observations]) -> Distribution:
    """Returns the exponent a that curves of one residual scale have in common."""
    for name, observations in curves.items():
        check(observations, curve=name)
    return posteriors(list(curves.values()), free_exponent=True)[0].exponent


def exponent_of_all(tables: Sequence[Distribution]) -> Distribution:
    """Returns the exponent a that tables have in common, given `exponent_of` of each.

    Each table has a residual scale of its own: given the exponent they are independent,
    and the prior counts once.
    """
    bins = len(tables[0].masses)
    low = min(each.low for each in tables)
    high = max(each.low + each.width * len(each.masses) for each in tables)
    width = (high - low) / bins
    middles = low + width * (np.arange(bins) + 0.5)
    prior = norm.logpdf(middles * np.log(2), 0, EXPONENT_SPREAD)
    density = prior.copy()
    for each in tables:
        at = np.interp(middles, each.middles, each.density, left=0, right=0)
        # Where a table's lattice ended the density is negligible, and not 0.
        density += np.log(np.maximum(at, 1e-12)) - prior
    weights = np.asarray(np.exp(density - density.max()), np.float64)
    return Distribution.of(np.asarray(middles, np.float64), width, weights)
