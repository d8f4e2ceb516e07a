"""A study that is asked for more gives what asking for it at once would have given."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.naive_race import Study, answer
from tests.core.race_test import studies
from tests.made_up.studies import (
    SyntheticRunner,
    frames,
    rows_of,
    run,
    study_of,
    tables,
    trials_of,
    undisturbed,
)
from tests.store.object_store import MemoryFiles


@st.composite
def extensions(draw: st.DrawFn) -> tuple[Study, Study, list]:
    """Studies (asked first, asked then) of the same trials."""
    then, trials = draw(studies())
    if then.feasible:
        then = dataclasses.replace(then, max_draws=max(then.points, then.max_draws))
    else:
        then = dataclasses.replace(then, max_draws=then.points)
    points = draw(st.integers(1, then.points))
    least = points if then.feasible else 1
    first = dataclasses.replace(
        then,
        goal=draw(
            st.sampled_from([g for g in (0.0, 0.25, 0.5, 1.0) if g >= then.goal])
        ),
        budget=draw(st.integers(then.interval, then.budget)),
        points=points,
        finishers=draw(st.integers(1, min(points, then.finishers))),
        max_draws=draw(st.integers(least, max(least, then.max_draws))),
    )
    return first, then, trials


@settings(max_examples=25)
@given(extensions(), st.sampled_from([1, 3]), st.sampled_from([1, 3]))
def test_asking_for_more_is_asking_at_once(found, slots_first, slots_then):
    first, then, trials = found
    disk, asked, said = MemoryFiles(), study_of(first), []
    runner = SyntheticRunner(trials, slots_first)
    run(disk, asked, runner)
    asked = study_of(then)
    again = SyntheticRunner(trials, slots_then)
    run(disk, asked, again, say=said.append)
    assert said == []
    assert rows_of(frames(disk, asked)["trials"]) == list(answer(trials, then).rows)
    assert tables(disk, asked) == undisturbed(then, trials)
    # What was trained is trained on, never again.
    for turn in again.turns:
        before = [t.last for t in runner.turns if t.trial == turn.trial]
        assert turn.first >= max(before, default=0)


LARGE = Study(0.25, 10, 50, points=5, finishers=3, feasible=False, max_draws=0)
TRIALS = trials_of(
    [0.9, 0.4, 0.3, 0.2, 0.1],
    [0.4, 0.3, 0.3, 0.3, 0.2],
    ([0.9, 0.9, 0.9, 0.9, 0.9], 33),
    [0.9, 0.9, 0.2, 0.2, 0.2],
    [0.9, 0.9, 0.9, 0.9, 0.9],
)


@pytest.mark.parametrize(
    "less", [{"points": 3}, {"finishers": 1}, {"budget": 20}, {"goal": 0.5}]
)
def test_each_kind_of_more_costs_only_what_is_missing(less):
    first = dataclasses.replace(LARGE, **less)
    disk, asked = MemoryFiles(), study_of(first)
    runners = [SyntheticRunner(TRIALS) for _ in range(3)]
    run(disk, asked, runners[0])
    asked = study_of(LARGE)
    run(disk, asked, runners[1])
    run(MemoryFiles(), asked, runners[2])
    turns = [len(runner.turns) for runner in runners]
    assert 0 < turns[1] < turns[2] == turns[0] + turns[1]


def test_without_states_more_is_trained_from_the_beginning_to_the_same_end():
    disk, asked = MemoryFiles(), study_of(dataclasses.replace(LARGE, budget=20))
    run(disk, asked, SyntheticRunner(TRIALS))
    for path in [path for path in disk.objects if "/states/" in path]:
        disk.remove(path)
    asked, said = study_of(LARGE), []
    again = SyntheticRunner(TRIALS)
    run(disk, asked, again, say=said.append)
    assert tables(disk, asked) == undisturbed(LARGE, TRIALS)
    begun_again = sorted({turn.trial for turn in again.turns})
    assert {turn.first for turn in again.turns} == {0, 10, 20, 30, 40}
    # Never silently from zero.
    (told,) = [p for p in said if p.startswith("note: No state is left")]
    assert f"({', '.join(map(str, begun_again))})" in told
