"""Tables of studies made of exact curves, cut by the rule of the race in core."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dps_tf.core import EvaluationSchedule, Goal, RaceRule, Trajectory, reduce_study
from tests.made_up import rows
from tests.made_up.rows import ERROR


@dataclass(frozen=True)
class Truth:
    """Full curves of one cell; NaN from the evaluation that saw the divergence on."""

    errors: np.ndarray  # [trials, evaluations]
    batch_size: int = 64
    interval: int = 100
    goal: Goal = field(default_factory=lambda: Goal(ERROR, 0.1))
    finishers: int = 1
    exhaustive: bool = False
    stop_at_goal: bool = True
    sparsity: float = 0.0
    seed: int = 0
    points: dict[str, np.ndarray] = field(default_factory=dict)
    space: dict[str, list] = field(default_factory=dict)
    bounds: bool = False  # Evaluation stops once the goal is out of reach.
    optimizer: str = "sgd"

    @property
    def identity(self):
        return {
            "workload": "toy",
            "optimizer": self.optimizer,
            "sparsity_method": "snip" if self.sparsity else "none",
            "seed": self.seed,
            "batch_size": self.batch_size,
            "sparsity": float(self.sparsity),
            "precision": "float32",
        }

    @property
    def rule(self):
        return RaceRule(
            points=len(self.errors),
            finishers=self.finishers,
            step_budget=self.errors.shape[1] * self.interval,
            schedule=EvaluationSchedule(self.interval),
            exhaustive=self.exhaustive,
            stop_at_goal=self.stop_at_goal,
        )

    def trajectory(self, errors):
        diverged = np.flatnonzero(np.isnan(errors))
        finish = self.goal.first_met(list(errors))
        last = len(errors) if not len(diverged) else int(diverged[0]) + 1
        if finish is not None and self.stop_at_goal:
            last = finish + 1
        return Trajectory(
            last_step=last * self.interval,
            finish_step=None if finish is None else (finish + 1) * self.interval,
            diverged_step=(int(diverged[0]) + 1) * self.interval
            if len(diverged)
            else None,
        )


def tables(*truths, failed=()):
    """Returns (studies, trials, curves); `failed`: (cell, trial, last step) triples."""
    parts = [_tables(truth, number, failed) for number, truth in enumerate(truths)]
    return tuple(
        pd.concat([part[k] for part in parts], ignore_index=True) for k in range(3)
    )


def _tables(truth, number, failed):
    states = [truth.trajectory(row) for row in truth.errors]
    for cell, trial, last in failed:
        if cell == number:
            states[trial] = Trajectory(last_step=last, failed="out of memory")
    result = reduce_study(states, truth.rule)
    study = rows.study(
        truth.goal,
        **truth.identity,
        step_budget=truth.rule.step_budget,
        points=len(truth.errors),
        finishers=truth.finishers,
        search_mode="exhaustive" if truth.exhaustive else "race",
        training_examples=1000,
        evaluation_interval=truth.interval,
        evaluation_examples=100,
        space=json.dumps(truth.space),
        draws_exhausted=result.draws_exhausted,
    )
    trials, curves = [], []
    for index, ended in enumerate(result.trials):
        point = {name: float(column[index]) for name, column in truth.points.items()}
        trials.append(rows.trial(truth.identity, index, ended, **point))
        curves.append(_curve(truth, index, ended.end_step))
    curves = pd.concat(curves, ignore_index=True)
    return pd.DataFrame([study]), rows.typed(trials), curves


def _curve(truth, index, end_step):
    count = end_step // truth.interval
    values = truth.errors[index, :count].copy()
    bound = np.zeros(count, bool)
    if truth.bounds:
        # Stops as soon as the goal is out of reach: just above the threshold.
        bound = values > truth.goal.threshold * 1.05
        values[bound] = truth.goal.threshold * 1.05
    frame = pd.DataFrame(
        {
            "trial": index,
            "step": (np.arange(count) + 1) * truth.interval,
            "is_bound": bound,
            ERROR: values,
            "train/loss": values * 2,
        }
    )
    return frame.assign(**truth.identity)


def random_truth(rng, trials=12, evaluations=15, **changes):
    """Returns curves that fall from about 0.5, some of which diverge."""
    rate = rng.uniform(0.02, 0.5, (trials, 1))
    level = np.exp(-rate * np.arange(1, evaluations + 1)) * 0.6
    errors = np.clip(level + rng.normal(0, 0.03, (trials, evaluations)), 0, 1)
    errors = np.round(errors, 2)  # Ties, and values equal to the threshold.
    for trial in range(trials):
        if rng.random() < 0.25:
            errors[trial, rng.integers(evaluations) :] = np.nan
    return Truth(errors, **changes)
