"""Oracles of keras-tuner that learn: one trial after another, resumed by replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from dps_tf.analysis.loading import load
from dps_tf.core import Space, UserError
from dps_tf.store import encode_event, scan
from dps_tf.tuning.interruption import Interrupted
from tests.core.naive_race import Study, WholeTrial, answer
from tests.made_up.specifications import MOMENTUM_SPACE
from tests.made_up.studies import (
    SyntheticRunner,
    reader_of,
    rows_of,
    run,
    study_of,
    tables,
)
from tests.store.object_store import MemoryFiles

RANDOM = "keras_tuner.oracles.RandomSearchOracle"
BAYESIAN = "keras_tuner.oracles.BayesianOptimizationOracle"
FIVE = Study(
    0.25, 10, 50, points=5, finishers=1, feasible=False, max_draws=0, exhaustive=True
)
TRIALS = [
    WholeTrial((1, 1, 1, 0, 0)),
    WholeTrial((1, 0, 0, 0, 0)),
    WholeTrial((1, 1, 1, 1, 1), 15),
    WholeTrial((1, 1, 1, 1, 1)),
    WholeTrial((1, 1, 0, 0, 0)),
]


def study(oracle: str, **changes):
    return study_of(
        FIVE,
        space=MOMENTUM_SPACE,
        oracle=oracle,
        oracle_arguments={"num_initial_points": 4} if oracle == BAYESIAN else {},
        fixed={"decay": 0.5},
        seed=0,  # Under which so few scores change what is chosen.
        **changes,
    )


@pytest.mark.parametrize("oracle", [RANDOM, BAYESIAN])
def test_trials_run_one_by_one_each_to_its_own_goal(tmp_path, oracle):
    alone, runner = [], SyntheticRunner(TRIALS, slots=3)
    runner.before_slice = lambda trial, step: alone.append(runner.busy == [(trial,)])
    run(tmp_path, study(oracle), runner)
    turns = [turn.trial for turn in runner.turns]
    assert turns == sorted(turns)
    assert alone and all(alone)
    found = load(tmp_path).trials
    assert rows_of(found) == list(answer(TRIALS, FIVE).rows)
    assert found["learning_rate"].between(1e-4, 1.0).all()
    assert found["momentum"].between(0.9, 0.9999).all()
    assert (found["decay"] == 0.5).all()
    assert found["learning_rate"].nunique() == 5


@pytest.mark.parametrize("oracle", [RANDOM, BAYESIAN])
def test_interrupted_search_draws_the_same_points_again(oracle):
    whole, parts = MemoryFiles(), MemoryFiles()
    run(whole, study(oracle), SyntheticRunner(TRIALS))
    for _ in range(100):
        runner = SyntheticRunner(TRIALS, slice_steps=4, stop_at=9)
        try:
            run(parts, study(oracle), runner)
            break
        except Interrupted:
            continue
    assert tables(parts, study(oracle)) == tables(whole, study(oracle))


def test_search_that_learns_differs_from_one_that_does_not(tmp_path):
    run(tmp_path / "a", study(BAYESIAN), SyntheticRunner(TRIALS))
    worse = [TRIALS[i] for i in (3, 2, 0, 1, 4)]
    run(tmp_path / "b", study(BAYESIAN), SyntheticRunner(worse))
    a, b = (list(load(tmp_path / name).trials["learning_rate"]) for name in "ab")
    assert a[:4] == b[:4]
    assert a[4] != b[4]


@pytest.mark.parametrize("oracle", [RANDOM, BAYESIAN])
def test_search_waits_until_a_failed_trial_is_settled(oracle):
    mended, whole, failed = MemoryFiles(), MemoryFiles(), MemoryFiles()

    def before_slice(trial: int, step: int) -> None:
        if trial == 1 and step >= 10:
            raise MemoryError("no memory")

    def outcomes(place) -> list[str]:
        runner = SyntheticRunner(TRIALS, before_slice=before_slice)
        return [t.outcome for t in run(place, study(oracle), runner).trials]

    # What comes after the failed trial is chosen by its score, which is not known yet.
    assert outcomes(mended) == ["complete", "failed"] + ["censored"] * 3
    run(mended, study(oracle), SyntheticRunner(TRIALS))
    run(whole, study(oracle), SyntheticRunner(TRIALS))
    assert tables(mended, study(oracle)) == tables(whole, study(oracle))
    # After the third attempt it stays failed, and the search goes on.
    *_, found = (outcomes(failed) for _ in range(4))
    assert found == ["complete", "failed", "infeasible", "incomplete", "complete"]


def test_a_recorded_point_that_the_oracle_would_not_choose_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, study(RANDOM), SyntheticRunner(TRIALS, stop_at=6))
    log = Path(reader_of(tmp_path, study(RANDOM)).layout.log("main"))
    events = scan(log.read_bytes()).events
    for event in events:
        if event["kind"] == "point" and event["trial"] == 0:
            event["point"]["learning_rate"] = 0.125
    log.write_bytes(b"".join(map(encode_event, events)))
    with pytest.raises(UserError, match=r"for trial 0, and chose .* 0\.125"):
        run(tmp_path, study(RANDOM), SyntheticRunner(TRIALS))


def test_search_stops_once_enough_trials_are_feasible(tmp_path):
    feasible = study_of(
        Study(0.25, 10, 50, 2, 1, feasible=True, max_draws=9, exhaustive=True),
        space=MOMENTUM_SPACE,
        oracle=RANDOM,
    )
    runner = SyntheticRunner([TRIALS[2], *TRIALS, *TRIALS])
    result = run(tmp_path, feasible, runner)
    outcomes = [trial.outcome for trial in result.trials]
    assert outcomes == ["infeasible", "complete", "complete"]
    assert {turn.trial for turn in runner.turns} == {0, 1, 2}


def test_oracle_without_further_points_is_told(tmp_path):
    two = study_of(
        FIVE, space=Space.from_dict({"x": ("discrete", (0.1, 0.2))}), oracle=RANDOM
    )
    with pytest.raises(UserError, match="chose 2 points and has no other"):
        run(tmp_path, two, SyntheticRunner(TRIALS))
