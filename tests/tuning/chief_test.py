"""Which trial is whose, without a network; tests/faults/chief_test.py has real ones."""

from __future__ import annotations

import keras_tuner
import pytest

from dps_tf.core.errors import UserError
from dps_tf.core.space import Space
from dps_tf.core.sweep import SweepSpecification
from dps_tf.tuning.chief_trials import LEASE_SECONDS, Trials
from dps_tf.tuning.oracle import adaptive_oracle, hyperparameters, point_of, values_of
from dps_tf.tuning.post import post
from tests.core.specifications import specification

SPACE = Space.from_dict(
    {
        "learning_rate": ("log", 1e-4, 1.0),
        "momentum": ("reverse_log", 0.9, 0.9999),
        "width": ("integer", 2, 9),
        "decay": ("discrete", (0.1, 0.5)),
    }
)
RANDOM = "keras_tuner.oracles.RandomSearchOracle"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trials(clock, tmp_path) -> Trials:
    """Three trials, for workers that are heard when they ask."""
    oracle = adaptive_oracle(RANDOM, {}, SPACE, 3, seed=0)
    oracle._set_project_dir(str(tmp_path), "project")
    return Trials(oracle, lambda: len(oracle.trials) >= 3, clock)


def ask(trials: Trials, worker: str) -> str | None:
    trials.hear(worker)
    trial = trials.next_for(worker)
    return None if trial is None else trial.trial_id


def end(trials: Trials, trial: str) -> bool:
    found = trials.ended(trial)
    if found is None:
        return False
    found.status = keras_tuner.engine.trial.TrialStatus.COMPLETED
    trials._oracle.update_trial(trial, {"steps_to_result": 1.0})
    trials._oracle.end_trial(found)
    return True


def test_each_trial_is_given_to_one_worker_until_all_are_over(trials):
    assert [ask(trials, name) for name in "abc"] == ["0", "1", "2"]
    assert ask(trials, "a") == "0", "it has not said that it is over"
    assert ask(trials, "d") is None and not trials.are_over
    for trial in "012":
        assert end(trials, trial)
        assert not end(trials, trial), "it counts once"
    assert trials.are_over and ask(trials, "a") is None


def test_the_trial_of_a_silent_worker_is_given_to_another(trials, clock):
    assert ask(trials, "a") == "0"
    clock.now += LEASE_SECONDS - 1
    assert ask(trials, "b") == "1"
    clock.now += 2
    assert ask(trials, "c") == "0"
    assert trials.workers == {"b", "c"}
    # The former one returns and has run it nevertheless: that is as good.
    assert end(trials, "0") and not end(trials, "0")
    assert ask(trials, "c") == "2"


def test_a_trial_that_a_silent_worker_ends_is_not_run_again(trials, clock):
    assert ask(trials, "a") == "0"
    clock.now += LEASE_SECONDS + 1
    trials.forget_silent()
    assert end(trials, "0")
    assert ask(trials, "b") == "1"


def test_a_chief_that_was_started_again_learns_who_is_at_what(trials):
    begun = [trials._oracle.create_trial(f"recorded {n}") for n in range(2)]
    trials._oracle.ongoing_trials.clear()
    for trial in begun:
        trials.wait(trial)
    trials.hear("b", trial="1")
    assert ask(trials, "a") == "0"
    assert ask(trials, "b") == "1"
    assert ask(trials, "c") == "2"


def test_points_of_the_record_are_told_to_the_oracle_as_they_were():
    searched = hyperparameters(SPACE, adaptive=True)
    point = {"learning_rate": 0.01, "momentum": 0.97, "width": 5.0, "decay": 0.5}
    values = values_of({**point, "fixed": 1.0}, searched)
    assert values["width"] == 5 and isinstance(values["width"], int)
    assert point_of(values) == pytest.approx(point)


VARIABLES = {
    "KERASTUNER_ORACLE_IP": "127.0.0.1",
    "KERASTUNER_ORACLE_PORT": "8000",
    "KERASTUNER_TUNER_ID": "chief",
}


def sweep(**changes) -> SweepSpecification:
    return SweepSpecification((specification(**changes),))


@pytest.fixture
def variables(monkeypatch) -> pytest.MonkeyPatch:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_variables_of_keras_tuner_say_who_is_what(variables):
    found = post(sweep(oracle=RANDOM))
    assert found.address == "127.0.0.1:8000" and found.is_chief
    variables.setenv("KERASTUNER_TUNER_ID", "worker-1")
    assert not post(sweep(oracle=RANDOM)).is_chief
    for name in VARIABLES:
        variables.delenv(name)
    assert post(sweep()) is None


@pytest.mark.parametrize("missing", VARIABLES)
def test_a_missing_variable_is_one_sentence(variables, missing):
    variables.delenv(missing)
    with pytest.raises(UserError, match=f"^{missing} is not set"):
        post(sweep(oracle=RANDOM))


def test_a_chief_does_not_share_through_files(variables):
    with pytest.raises(UserError, match="--share or --workers is given"):
        post(sweep(oracle=RANDOM), is_shared=True)


def test_a_race_is_not_shared_by_a_chief(variables):
    with pytest.raises(UserError, match="unset it and give --share"):
        post(sweep())
