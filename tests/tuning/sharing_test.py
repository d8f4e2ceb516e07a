"""Eight workers in one cell: the result of one, and hardly more work.

In virtual time; tests/faults/workers_test.py has real processes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.core.naive_race import Study, WholeTrial
from tests.tuning.studies import study_of
from tests.tuning.synthetic_runner import SyntheticRunner
from tests.tuning.virtual_workers import Outcome, Worker, run_together

INTERVAL, EVALUATIONS, POINTS = 10, 60, 100
RATIO = 1.15
"""Steps executed by eight workers over those that the result needs, at most."""


def trials_like_real_ones(seed: int, count: int) -> list[WholeTrial]:
    """Returns trials with learning rates over three decades: slow, good, diverging.

    The best meets the goal after some twenty evaluations, a few others soon after it.
    """
    random = np.random.default_rng(seed)
    found = []
    for rate in random.uniform(0.0, 3.0, count):
        best = float(np.exp(-((rate - 2.0) ** 2) / 0.3))
        steps = np.arange(1, EVALUATIONS + 1)
        curve = 0.05 + 0.85 * np.exp(-0.11 * (0.05 + best) * steps)
        curve += random.normal(0.0, 0.01, EVALUATIONS)
        diverges = None
        if rate > 2.4:
            diverges = int(random.integers(1, 5 * INTERVAL))
        found.append(WholeTrial(tuple(curve.clip(0.0, 1.0)), diverges))
    return found


def the_study(finishers: int, feasible: bool = False):
    return study_of(
        Study(
            0.15,
            INTERVAL,
            INTERVAL * EVALUATIONS,
            points=POINTS,
            finishers=finishers,
            feasible=feasible,
            max_draws=150,
        )
    )


WORKERS = {
    "alike": [Worker()] * 8,
    "unlike": [Worker(speed=20.0 * 1.5**n) for n in range(8)],
    "one that crawls": [Worker(), *[Worker(speed=1000.0)] * 7],
    "one after the other": [Worker(arrives=4.0 * n) for n in range(8)],
    "of four slots": [Worker(slots=4, speed=25.0)] * 8,
    "very uneven turns": [Worker(spread=1.0)] * 8,
}


def together(monkeypatch, finishers, workers, seed=0, feasible=False, **how) -> Outcome:
    trials = trials_like_real_ones(seed, 150)
    runner = SyntheticRunner(trials, INTERVAL)
    return run_together(
        the_study(finishers, feasible), runner, workers, monkeypatch, seed=seed, **how
    )


def check_same(found: Outcome, expected: Outcome) -> None:
    for name in ("trials", "curves"):
        pd.testing.assert_frame_equal(
            found.tables[name], expected.tables[name], check_exact=True
        )


def check_work(found: Outcome) -> None:
    assert found.total("floor_steps") > 10_000
    assert found.total("floor_steps") <= found.total("steps")
    assert found.step_ratio <= RATIO
    assert found.total("work_ratio") <= RATIO


@pytest.mark.parametrize("finishers", [1, 5])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow][: n != "alike"]) for n in WORKERS]
)
def test_eight_workers_find_what_one_finds_and_do_hardly_more(
    monkeypatch, name, finishers
):
    one = together(monkeypatch, finishers, [Worker()])
    assert one.step_ratio == 1.0
    assert (one.tables["trials"]["outcome"] == "complete").sum() == finishers
    eight = together(monkeypatch, finishers, WORKERS[name])
    check_same(eight, one)
    check_work(eight)
    if name == "alike":
        assert eight.seconds < one.seconds / 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_draws_that_replace_others_hold_nobody_up(monkeypatch, seed):
    one = together(monkeypatch, 1, [Worker()], seed, feasible=True)
    assert len(one.tables["trials"]) > POINTS + 10
    eight = together(monkeypatch, 1, WORKERS["alike"], seed, feasible=True)
    check_same(eight, one)
    check_work(eight)
    assert eight.seconds < one.seconds / 4


@pytest.mark.slow
def test_on_an_object_store_looking_takes_little_of_the_time(monkeypatch):
    # Turns of ten seconds, requests of a twentieth of one.
    workers = [Worker(speed=1.0)] * 8
    one = together(monkeypatch, 1, workers[:1])
    eight = together(monkeypatch, 1, workers, latency=0.05, can_append=False)
    check_same(eight, one)
    check_work(eight)
    assert eight.seconds < one.seconds / 4


SLOW = [Worker(speed=10.0)] * 3
DIES_AT = 200.0


@pytest.mark.parametrize("is_here", [True, False])
def test_trials_of_a_worker_that_died_are_taken_over(monkeypatch, is_here):
    one = together(monkeypatch, 1, SLOW[:1])
    three = together(monkeypatch, 1, SLOW)
    dying = replace(SLOW[0], dies=DIES_AT, is_here=is_here)
    died = together(monkeypatch, 1, [*SLOW[:2], dying])
    check_same(died, one)
    # At once where it is known that its process has ended; after 120 s elsewhere.
    assert three.seconds > DIES_AT + 100
    waited = died.seconds - three.seconds - (three.seconds - DIES_AT) / 2
    assert (waited < 60) == is_here
    assert waited < 200


def test_a_worker_that_returns_lets_go_of_what_was_taken_over(monkeypatch):
    one = together(monkeypatch, 1, SLOW[:1])
    returning = replace(SLOW[0], silent=(DIES_AT, DIES_AT + 200), is_here=False)
    found = together(monkeypatch, 1, [*SLOW[:2], returning])
    check_same(found, one)
    # Nothing of what it had under way is run twice for long.
    assert found.step_ratio < RATIO
