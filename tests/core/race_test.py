from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dps_tf.core import (
    OUTCOMES,
    EvaluationSchedule,
    Plan,
    RaceRule,
    StudyResult,
    Trajectory,
    plan,
    reduce_study,
)
from tests.core import naive_race
from tests.core.naive_race import Answer, Row, Study, WholeTrial, answer, evaluations


@st.composite
def studies(draw: st.DrawFn) -> tuple[Study, list[WholeTrial]]:
    """Small studies in which ties, plateaus and divergence are common."""
    interval = draw(st.sampled_from([1, 3, 10]))
    count = draw(st.integers(1, 5))
    budget = count * interval + draw(st.integers(0, interval - 1))
    points = draw(st.integers(1, 5))
    study = Study(
        goal=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        interval=interval,
        budget=budget,
        points=points,
        finishers=draw(st.integers(1, points)),
        feasible=draw(st.booleans()),
        max_draws=draw(st.integers(1, 10)),
    )
    # A divergence is as likely between evaluations as at one, and behind the budget.
    divergence = st.none() | st.integers(1, budget + interval)
    error = st.sampled_from([0.0, 0.3, 0.6, 0.9])
    curve = st.lists(error, min_size=count, max_size=count).map(tuple)
    trial = st.builds(WholeTrial, curve, divergence)
    number = max(points, study.max_draws)
    return study, draw(st.lists(trial, min_size=number, max_size=number))


def rule_of(study: Study) -> RaceRule:
    return RaceRule(
        points=study.points,
        finishers=study.finishers,
        step_budget=study.budget,
        schedule=EvaluationSchedule(study.interval),
        feasible_only=study.feasible,
        max_draws=study.max_draws,
        exhaustive=study.exhaustive,
    )


def everything_about(trial: WholeTrial, study: Study) -> Trajectory:
    """Returns the trajectory of a trial that was run to its budget, past its goal."""
    diverged = trial.diverges_at
    if diverged is not None and diverged > study.budget:
        diverged = None
    ends = [s for s in evaluations(study) if diverged is None or s < diverged]
    finish = naive_race.reached_at(trial, study)
    return Trajectory(max(ends, default=0), finish, diverged)


def answer_of(result: StudyResult) -> Answer:
    rows = tuple(
        Row(
            trial.outcome,
            trial.end_step,
            trial.steps_to_result,
            trial.bracket_low,
            trial.diverged_step,
        )
        for trial in result.trials
    )
    return Answer(rows, result.finishers, result.draws_exhausted)


class Race:
    """A race of trials that are known beforehand, told to `plan` bit by bit."""

    def __init__(self, study: Study, trials: list[WholeTrial]):
        self.study = study
        self.rule = rule_of(study)
        self.whole = [everything_about(trial, study) for trial in trials]
        self.known = [Trajectory() for _ in trials]
        self.prefix = 0
        self.executed = 0
        self.turns = 0

    def plan(self) -> Plan:
        todo = plan(self.known, self.rule, self.prefix)
        self.prefix = todo.prefix
        return todo

    def advance(self, number: int) -> None:
        """Runs a trial to its next evaluation, or to where it diverges."""
        before, whole = self.known[number], self.whole[number]
        target = self.rule.schedule.next_after(before.last_step)
        self.turns += 1
        if whole.diverged_step is not None and whole.diverged_step <= target:
            self.executed += whole.diverged_step - before.last_step
            diverged = whole.diverged_step
            self.known[number] = dataclasses.replace(before, diverged_step=diverged)
            return
        self.executed += target - before.last_step
        finish = target if whole.finish_step == target else before.finish_step
        self.known[number] = Trajectory(target, finish)

    def overrun(self, number: int) -> None:
        """Runs a trial that nobody has asked for, or further than was asked."""
        known = self.known[number]
        if known.diverged_step is None and known.last_step < self.rule.last_evaluation:
            self.advance(number)

    def forget(self, number: int, evaluations_kept: int) -> None:
        """Loses the end of a trial's log, as a kill does."""
        kept = evaluations_kept * self.study.interval
        if kept < self.known[number].last_step:
            finish = self.known[number].finish_step
            was_kept = finish is not None and finish <= kept
            self.known[number] = Trajectory(kept, finish if was_kept else None)

    def restart(self) -> None:
        self.prefix = 0


def run_in_order(race: Race, slots: int) -> Plan:
    """Always starts the trials furthest behind; turns take equally long."""
    running: list[int] = []
    while True:
        todo = race.plan()
        for number in todo.pending:
            if len(running) < slots and number not in running:
                running.append(number)
        if not running:
            return todo
        race.advance(running.pop(0))


def run_disorderly(race: Race, slots: int, rng: random.Random) -> Plan:
    """Turns end in any order, kills come at any time, speculation is or is not used."""
    running: list[int] = []
    kills = 0
    while True:
        todo = race.plan()
        choices = [n for n in todo.pending if n not in running]
        if rng.random() < 0.5:
            choices += [n for n in todo.speculative if n not in running]
        rng.shuffle(choices)
        running += choices[: slots - len(running)]
        if not running:
            if not todo.pending:
                return todo
            continue
        number = running.pop(rng.randrange(len(running)))
        if rng.random() < 0.1 and kills < 10:
            kills += 1
            running.clear()
            race.restart()
            race.forget(rng.randrange(len(race.known)), rng.randrange(3))
        elif rng.random() < 0.1:
            race.overrun(rng.randrange(len(race.known)))
        elif rng.random() < 0.8:  # else it was stopped before its evaluation
            race.advance(number)


@settings(max_examples=200)
@given(studies(), st.booleans())
def test_reduction_of_all_there_is_to_know_is_that_of_the_naive_rule(found, exhaustive):
    study, trials = found
    study = dataclasses.replace(study, exhaustive=exhaustive)
    known = [everything_about(trial, study) for trial in trials]
    result = reduce_study(known, rule_of(study))
    assert answer_of(result) == answer(trials, study)
    assert result.decided
    event(f"exhausted {result.draws_exhausted}")
    event(f"finishers {min(len(result.finishers), 3)}")


@settings(max_examples=200)
@given(studies(), st.integers(1, 6), st.integers(0, 2**32))
def test_any_race_gives_what_running_everything_to_the_end_gives(found, slots, seed):
    study, trials = found
    race = Race(study, trials)
    todo = run_disorderly(race, slots, random.Random(seed))
    assert todo.decided
    result = reduce_study(race.known, race.rule)
    assert answer_of(result) == answer(trials, study)
    assert result.decided
    assert todo.prefix == len(result.trials)
    assert todo.exhausted == result.draws_exhausted


def test_a_divergence_after_k_star_counts_in_an_exhaustive_study_alone():
    # Trial 1 diverges after trial 0 has met the goal, trial 2 is better than both.
    study = Study(0.5, 1, 6, points=2, finishers=1, feasible=True, max_draws=3)
    trials = [
        WholeTrial((0.9, 0.9, 0.0, 0.0, 0.0, 0.0)),
        WholeTrial((0.9,) * 6, diverges_at=5),
        WholeTrial((0.9, 0.0, 0.0, 0.0, 0.0, 0.0)),
    ]

    def k_star(finishers, exhaustive=False):
        asked = dataclasses.replace(study, finishers=finishers, exhaustive=exhaustive)
        known = [everything_about(trial, asked) for trial in trials]
        return reduce_study(known, rule_of(asked)).finishers[0]

    assert k_star(1) == k_star(2) == (3, 0)
    # Shallue et al. draw again for a trial that diverges at any time of its run.
    assert k_star(1, exhaustive=True) == (2, 2)


@settings(max_examples=150)
@given(studies(), st.integers(1, 8))
def test_slots_execute_the_floor_and_what_was_under_way(found, slots):
    study, trials = found
    study = dataclasses.replace(study, feasible=False)
    race = Race(study, trials)
    run_in_order(race, slots)
    result = reduce_study(race.known, race.rule)
    floor = sum(trial.end_step for trial in result.trials)
    assert floor <= race.executed <= floor + (slots - 1) * study.interval


@settings(max_examples=200)
@given(studies(), st.integers(1, 6), st.integers(0, 2**32))
def test_unfinished_business_is_not_called_decided(found, slots, seed):
    study, trials = found
    race = Race(study, trials)
    rng = random.Random(seed)
    while True:
        todo = race.plan()
        result = reduce_study(race.known, race.rule)
        assert result.decided == todo.decided
        if todo.decided:
            return
        # Whatever is pending can still change the answer or is owed to its curves.
        race.advance(rng.choice(todo.pending[:slots]))


@settings(max_examples=200)
@given(studies(), st.integers(0, 2**32))
def test_plans_only_name_trials_that_can_go_on(found, seed):
    study, trials = found
    race = Race(study, trials)
    rng = random.Random(seed)
    while True:
        todo = race.plan()
        named = (*todo.pending, *todo.speculative)
        assert len(set(named)) == len(named)
        assert max(named, default=0) < race.rule.draws_limit
        for number in named:
            known = race.known[number]
            assert known.finish_step is None and known.diverged_step is None
            assert known.last_step < race.rule.last_evaluation
            assert known.last_step < todo.cutoff[0]
        if not todo.pending:
            return
        race.advance(rng.choice(named))


def test_outcomes_add_up_and_each_occurs():
    study = Study(
        goal=0.0,
        interval=10,
        budget=30,
        points=4,
        finishers=1,
        feasible=False,
        max_draws=0,
    )
    trials = [
        WholeTrial((1, 1, 1)),  # not reached when another was: followed to 20
        WholeTrial((1, 0, 0)),  # K* = 20
        WholeTrial((1, 1, 1), diverges_at=5),
        WholeTrial((1, 0, 0)),  # a tie, numbered later: out-run at the one before
    ]
    known = [everything_about(trial, study) for trial in trials]
    result = reduce_study(known, rule_of(study))
    assert [(t.outcome, t.end_step) for t in result.trials] == [
        ("censored", 20),
        ("complete", 20),
        ("infeasible", 5),
        ("censored", 10),
    ]
    assert result.finishers == ((20, 1),)
    late = dataclasses.replace(study, finishers=3)
    outcomes = [t.outcome for t in reduce_study(known, rule_of(late)).trials]
    assert outcomes == ["incomplete", "complete", "infeasible", "complete"]
    assert {*outcomes, "censored", "failed"} == set(OUTCOMES)


def failed_study(last_step: int, finish_elsewhere: int | None) -> StudyResult:
    rule = RaceRule(2, 1, 30, EvaluationSchedule(10))
    other = (
        Trajectory(30)
        if finish_elsewhere is None
        else Trajectory(finish_elsewhere, finish_elsewhere)
    )
    return reduce_study([other, Trajectory(last_step, failed="no memory")], rule)


@pytest.mark.parametrize(
    ("last_step", "finish_elsewhere"), [(0, None), (10, None), (0, 20), (0, 30)]
)
def test_failed_trial_that_was_still_needed_leaves_a_bound(last_step, finish_elsewhere):
    result = failed_study(last_step, finish_elsewhere)
    assert result.trials[1].outcome == "failed"
    assert result.trials[1].error == "no memory"
    assert result.trials[1].end_step == last_step
    assert not result.decided


@pytest.mark.parametrize(("last_step", "finish_elsewhere"), [(0, 10), (10, 20)])
def test_failed_trial_that_was_out_run_first_is_out_run(last_step, finish_elsewhere):
    result = failed_study(last_step, finish_elsewhere)
    assert result.trials[1].outcome == "censored"
    assert result.trials[1].error is None
    assert result.decided


def test_failed_trial_is_not_pending_and_does_not_stop_the_others():
    rule = RaceRule(3, 3, 30, EvaluationSchedule(10))
    known = [Trajectory(), Trajectory(10, failed="no memory"), Trajectory(20)]
    assert plan(known, rule).pending == (0, 2)


def test_exhaustive_without_stopping_follows_finished_trials_to_the_budget():
    rule = RaceRule(
        3, 1, 30, EvaluationSchedule(10), exhaustive=True, stop_at_goal=False
    )
    known = [Trajectory(20, 10), Trajectory(30, 30), Trajectory(20, 10, 25)]
    assert plan(known, rule).pending == (0,)
    known[0] = Trajectory(30, 10)
    result = reduce_study(known, rule)
    assert result.decided
    assert [(t.outcome, t.steps_to_result, t.end_step) for t in result.trials] == [
        ("complete", 10, 30),
        ("complete", 30, 30),
        ("complete", 10, 20),  # what comes after the goal does not undo it
    ]
    known[0] = Trajectory(20, 10, failed="no memory")
    assert not reduce_study(known, rule).decided
