"""Which of c1 and c2 moves from curve to curve, and by how much.

Curves of one sweep (sparsities, optimizers) are fitted with one residual scale, which
several short curves know better than each alone. Ratios to a reference curve come with
intervals; and the models in which the curves share c1, c2 or both are compared with
the one in which both are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import f as f_distribution

from dps_tf.analysis.law.alternatives import aicc
from dps_tf.analysis.law.fit import LEVEL, MINIMUM_POINTS, Estimate, tails
from dps_tf.analysis.law.likelihood import Maximum, Observations, law_start, maximize
from dps_tf.analysis.law.posterior import joint_draws
from dps_tf.analysis.tables import Floats
from dps_tf.core import UserError, near_matches

SHARING = {
    "both_free": (False, False),
    "c1_shared": (True, False),
    "c2_shared": (False, True),
    "both_shared": (True, True),
}


@dataclass(frozen=True)
class CurveRatio:
    """One curve against a reference curve; each Estimate is a ratio."""

    curve: str
    reference: str
    c1: Estimate
    c2: Estimate
    critical_batch_size: Estimate

    @property
    def moves(self) -> tuple[str, ...]:
        """Which of c1 and c2 differ: their interval does not hold a ratio of 1."""
        both = {"c1": self.c1, "c2": self.c2}
        return tuple(name for name, e in both.items() if not e.low <= 1 <= e.high)


@dataclass(frozen=True)
class JointFit:
    """Several curves with one residual scale.

    Attributes:
        reference: the curve that ratios are taken to where no pairs were given.
        ratios: one per pair, or one per other curve, in the order given.
        models: one row per model of SHARING, columns model, parameters (scale
            included), log_likelihood, aicc (NaN where undefined) and p_value: of the
            model against both_free, NaN for that one itself.
        best_model: of the lowest AICc; of both_free where it is undefined for any.
        scale: residual scale in octaves, of the maximal likelihood.
        level: nominal coverage of the intervals.
    """

    reference: str
    ratios: tuple[CurveRatio, ...]
    models: pd.DataFrame
    best_model: str
    scale: float
    level: float

    def to_frame(self) -> pd.DataFrame:
        """Returns one row per ratio.

        Columns: curve, reference, for c1, c2 and critical_batch_size the ratio,
        `_low` and `_high`, and `moves`: which of c1 and c2 differ.
        """
        rows = []
        for ratio in self.ratios:
            row: dict[str, object] = {
                "curve": ratio.curve,
                "reference": ratio.reference,
            }
            for name in ("c1", "c2", "critical_batch_size"):
                estimate: Estimate = getattr(ratio, name)
                row[name] = estimate.value
                row[f"{name}_low"] = estimate.low
                row[f"{name}_high"] = estimate.high
            row["moves"] = " and ".join(ratio.moves)
            rows.append(row)
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Returns ratios and models as JSON; None stands for NaN."""
        tables = {"ratios": self.to_frame(), "models": self.models}
        return {
            "reference": self.reference,
            **{
                name: table.astype(object).where(table.notna(), None).to_dict("records")
                for name, table in tables.items()
            },
            "best_model": self.best_model,
        }


def fit_joint(
    curves: Mapping[str, Observations],
    reference: str,
    level: float = LEVEL,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> JointFit:
    """Returns the joint fit of several curves.

    Ratios are medians of the posterior with equal-tailed intervals; where a curve
    shows no plateau, its ratio of c2 is wide towards 0 and not open.

    Args:
        curves: by name, each with three or more batch sizes.
        reference: one of the names.
        level: nominal coverage of the intervals.
        pairs: (curve, reference) of the ratios; by default each other curve with the
            reference.

    Raises:
        UserError: fewer than two curves, a curve that is too short, or an unknown
            reference.
    """
    if reference not in curves:
        raise UserError(
            f"reference curve {reference!r} is unknown: "
            f"{near_matches(reference, curves)}."
        )
    if len(curves) < 2:
        raise UserError("a joint fit needs at least two curves.")
    for name, observations in curves.items():
        if observations.batch_sizes < MINIMUM_POINTS:
            raise UserError(
                f"curve {name!r} has {observations.batch_sizes} batch sizes with a "
                f"steps-to-result; a joint fit needs at least {MINIMUM_POINTS}."
            )
    starts = {name: law_start(curve) for name, curve in curves.items()}
    maxima = {model: _maximize(curves, starts, *SHARING[model]) for model in SHARING}
    models = _compare(maxima, sum(map(len, curves.values())))
    criterion = models["aicc"].to_numpy(np.float64)
    every = bool(np.isfinite(criterion).all())
    best = list(SHARING)[int(np.argmin(criterion))] if every else "both_free"
    free = maxima["both_free"]
    samples = joint_draws(curves, starts, free.scale)
    if pairs is None:
        pairs = [(name, reference) for name in curves if name != reference]
    return JointFit(
        reference=reference,
        ratios=tuple(
            _ratio(name, other, samples[name] - samples[other], level)
            for name, other in pairs
        ),
        models=models,
        best_model=best,
        scale=free.scale,
        level=level,
    )


def _maximize(
    curves: Mapping[str, Observations],
    starts: Mapping[str, Floats],
    shares_c1: bool,
    shares_c2: bool,
) -> Maximum:
    """Returns the maximal likelihood with c1, c2 or both common to all curves."""
    together = Observations(
        *(
            np.concatenate([getattr(curve, name) for curve in curves.values()])
            for name in ("batch_size", "low", "high", "noise")
        )
    )
    number = np.repeat(np.arange(len(curves)), [len(c) for c in curves.values()])
    of_c1 = np.zeros_like(number) if shares_c1 else number
    c1_size = 1 if shares_c1 else len(curves)
    of_c2 = (np.zeros_like(number) if shares_c2 else number) + c1_size
    rows = np.arange(len(number))
    size = int(of_c2.max()) + 1

    def curve(parameters: Floats, log2_batch: Floats) -> tuple[Floats, Floats]:
        falling = parameters[of_c1] - log2_batch
        steps = np.logaddexp2(falling, parameters[of_c2])
        share = np.exp2(falling - steps)
        derivative = np.zeros((len(rows), size))
        derivative[rows, of_c1] = share
        derivative[rows, of_c2] = 1 - share
        return steps, derivative

    first = np.array(list(starts.values()))
    c1 = first[:, 0].mean(keepdims=True) if shares_c1 else first[:, 0]
    c2 = first[:, 1].mean(keepdims=True) if shares_c2 else first[:, 1]
    return maximize(together, curve, np.concatenate([c1, c2]))


def _compare(maxima: Mapping[str, Maximum], observations: int) -> pd.DataFrame:
    free = maxima["both_free"]
    freedom = observations - len(free.parameters)
    rows = []
    for model, maximum in maxima.items():
        size = len(maximum.parameters)
        fewer = len(free.parameters) - size
        # For exact K* the likelihood ratio is a monotone function of F.
        ratio = max(2 * (free.log_likelihood - maximum.log_likelihood), 0.0)
        p_value = float("nan")
        if fewer and freedom > 0:
            value = np.expm1(ratio / observations) * freedom / fewer
            p_value = float(f_distribution.sf(value, fewer, freedom))
        criterion = aicc(maximum.log_likelihood, size + 1, observations)
        rows.append(
            {
                "model": model,
                "parameters": size + 1,
                "log_likelihood": maximum.log_likelihood,
                "aicc": float("nan") if criterion is None else criterion,
                "p_value": p_value,
            }
        )
    return pd.DataFrame(rows)


def _ratio(name: str, reference: str, log2_ratio: Floats, level: float) -> CurveRatio:
    levels = [0.5, *tails(level)]
    columns = (log2_ratio[:, 0], log2_ratio[:, 1], log2_ratio[:, 0] - log2_ratio[:, 1])
    estimates = [
        Estimate(*(float(x) for x in np.exp2(np.quantile(column, levels))))
        for column in columns
    ]
    return CurveRatio(name, reference, *estimates)
