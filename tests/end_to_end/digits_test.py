"""The command on real digits: what must not matter does not, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dps_tf
from tests import interpreter

STUDY_KEY = ["batch_size", "trial"]
TINY = {
    "workload.points": "6",
    "workload.step_budget": "300",
    "goal.metric": "'validation/classification_error'",
    "goal.threshold": "0.15",
    "evaluation.examples": "640",
    "sweep.batch_sizes": "(32, 128)",
    "sweep.finishers": "2",
}


def train(directory: Path, lanes: int = 3, **changes: str) -> int:
    """Runs the command with bindings over TINY; returns its exit code."""
    bindings = {**TINY, **{k.replace("__", "."): v for k, v in changes.items()}}
    words = ["-m", "dps_tf.train", "--gin_file=quickstart", "--slots=1"]
    # As many for few points as for more of them.
    words.append(f"--lanes={lanes}")
    words += [f"--gin_bindings={name}={value}" for name, value in bindings.items()]
    return interpreter.run([*words, f"--sweep_dir={directory}"]).returncode


@pytest.fixture(scope="module")
def race(tmp_path_factory) -> Path:
    """A finished sweep of two cells, raced by one slot."""
    directory = tmp_path_factory.mktemp("race")
    assert train(directory) == 0
    return directory


@pytest.mark.slow
def test_race_finds_the_first_m_of_running_everything_to_the_end(race, tmp_path):
    for end in ("True", "False"):
        place = tmp_path / end
        changes = {"sweep__search_mode": "'exhaustive'", "sweep__stop_at_goal": end}
        assert train(place, **changes) == 0
        _check_race(dps_tf.load(race), dps_tf.load(place))


def _check_race(raced, exhaustive) -> None:
    columns = ["steps_to_result", "bracket_low", "trial"]
    for size, all_trials in exhaustive.trials.groupby("batch_size"):
        reached = all_trials[all_trials["outcome"] == "complete"]
        first = reached.sort_values(["steps_to_result", "trial"]).head(2)
        found = raced.trials[raced.trials["batch_size"] == size]
        found = found[found["outcome"] == "complete"]
        found = found.sort_values(["steps_to_result", "trial"])
        assert len(found) == 2
        assert found[columns].to_numpy().tolist() == first[columns].to_numpy().tolist()
    # Where the race has a curve it is that of the whole run, bit for bit.
    keys = [*STUDY_KEY, "step"]
    both = raced.curves.merge(exhaustive.curves, on=keys, suffixes=("", "_whole"))
    assert len(both) == len(raced.curves) < len(exhaustive.curves)
    for metric in ("validation/classification_error", "train/loss"):
        assert np.array_equal(both[metric], both[f"{metric}_whole"])


@pytest.mark.slow
def test_evaluation_that_stops_early_gives_the_same_steps_to_result(race, tmp_path):
    assert train(tmp_path, sweep__evaluation_mode="'goal'") == 0
    exact, bounds = dps_tf.load(race), dps_tf.load(tmp_path)
    columns = [*STUDY_KEY, "outcome", "steps_to_result", "bracket_low", "end_step"]
    pd.testing.assert_frame_equal(exact.trials[columns], bounds.trials[columns])
    keys = [*STUDY_KEY, "step"]
    both = bounds.curves.merge(exact.curves, on=keys, suffixes=("", "_exact"))
    error = "validation/classification_error"
    is_bound = both["is_bound"].astype(bool)
    assert is_bound.any()
    assert (both[error] <= both[f"{error}_exact"])[is_bound].all()
    assert (both[error] > 0.15)[is_bound].all()
    assert (both[error] == both[f"{error}_exact"])[~is_bound].all()


def test_one_point_is_a_plain_run_whose_curve_is_kept(tmp_path):
    assert (
        train(
            tmp_path,
            lanes=1,
            workload__points="[{'learning_rate': 0.1}]",
            workload__space="{}",
            sweep__batch_sizes="(64,)",
            sweep__finishers="1",
        )
        == 0
    )
    sweep = dps_tf.load(tmp_path)
    assert list(sweep.trials["learning_rate"]) == [0.1]
    assert list(sweep.trials["outcome"]) == ["complete"]
    steps = list(sweep.curves["step"])
    assert steps == list(range(10, sweep.trials["end_step"].item() + 1, 10))
    errors = sweep.curves["validation/classification_error"]
    assert errors.iloc[-1] <= 0.15 < errors.iloc[:-1].min()
