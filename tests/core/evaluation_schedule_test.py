from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import EvaluationInterval, EvaluationSchedule, UserError

INTERVALS = st.integers(1, 50)
STEPS = st.integers(0, 500)


def evaluations(interval: int) -> list[int]:
    """Returns every evaluation that these tests can meet."""
    return [step for step in range(1, 1001) if step % interval == 0]


@given(INTERVALS, STEPS)
def test_neighbours_are_the_nearest_of_all_evaluations(interval, step):
    schedule, every = EvaluationSchedule(interval), evaluations(interval)
    assert schedule.next_after(step) == min(e for e in every if e > step)
    assert schedule.at_or_after(step) == (
        min(e for e in every if e >= step) if step > 0 else 0
    )
    assert schedule.previous(step) == max([e for e in every if e < step], default=0)
    assert schedule.last_within(step) == max([e for e in every if e <= step], default=0)
    assert list(schedule.steps_up_to(step)) == [e for e in every if e <= step]


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "100", None])
def test_interval_that_is_no_count_of_steps_is_refused(interval):
    with pytest.raises(UserError, match="evaluation interval"):
        EvaluationSchedule(interval)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(1, 50), (8, 40), (64, 5), (100, 3), (128, 2), (320, 2), (10_000, 2)],
)
def test_interval_in_examples_is_finer_for_larger_batches(batch_size, expected):
    interval = EvaluationInterval(examples=320, minimum=2, maximum=50)
    assert interval.at(batch_size).interval == expected


def test_interval_in_steps_is_the_same_at_every_batch_size():
    interval = EvaluationInterval(steps=100)
    assert {interval.at(size).interval for size in (1, 64, 10_000)} == {100}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"steps": 100, "examples": 6400},
        {"steps": 0},
        {"steps": 2.5},
        {"examples": 0},
        {"examples": -64},
        {"examples": "many"},
        {"examples": 640.0},
        {"examples": 640, "minimum": 0},
        {"examples": 640, "minimum": "a"},
        {"examples": 640, "maximum": 0},
        {"examples": 640, "minimum": 5, "maximum": 4},
    ],
)
def test_interval_that_means_nothing_is_refused_in_one_sentence(arguments):
    with pytest.raises(UserError) as caught:
        EvaluationInterval(**arguments).at(64)
    assert "\n" not in str(caught.value)
