"""Trials in lanes: the driver's groups, their faults, and the number of lanes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.cli.sweep_run import SweepRun
from dps_tf.core import UserError, repeat_study
from dps_tf.store import Irreproducible, LocalFiles, StudyReader, SweepReader, saving
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.simulation import SimulatedRunner
from dps_tf.workloads.reading import SweepConfiguration, read_configuration
from tests.core.naive_race import Study, answer
from tests.core.race_test import studies
from tests.made_up.specifications import ENVIRONMENT
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    TRAINING_INPUTS,
    SyntheticRunner,
    frames,
    reader_of,
    rows_of,
    run,
    study_of,
    tables,
    trials_of,
    undisturbed,
)
from tests.store.object_store import MemoryFiles
from tests.tuning.driver_test import a_look_takes
from tests.tuning.lost_slots_test import LosingRunner, SlowFiles

STUDY = study_of(SIX)
LANES = st.sampled_from([1, 3, 15])


@settings(max_examples=40, deadline=None)
@given(studies(), LANES, st.integers(0, 2**32))
def test_tables_are_those_of_the_naive_rule_in_any_lanes_slots_and_kills(
    found, lanes, seed
):
    study, trials = found
    rng = random.Random(seed)
    disk, asked, said = MemoryFiles(), study_of(study), []
    loses = rng.random() < 0.5
    for _ in range(100):
        runner = SyntheticRunner(
            trials,
            slots=rng.choice([1, 2, 4]),
            slice_steps=rng.randint(1, 12),
            stop_at=rng.randint(1, 20),
            lanes=lanes,
        )
        with a_look_takes(rng.choice([0.0, 10.0])):
            try:
                assert run(disk, asked, runner, say=said.append).decided
                break
            except Interrupted:
                assert not reader_of(disk, asked).result().decided
                for path in [path for path in disk.objects if "/states/" in path]:
                    if loses and rng.random() < 0.3:
                        disk.remove(path)
    # What was done once is never done again unless a state is lost, which is told.
    assert loses or not any(line.startswith("note: ") for line in said)
    expected, found = answer(trials, study).rows, frames(disk, asked)
    assert rows_of(found["trials"]) == list(expected)
    curves = found["curves"]
    for number, row in enumerate(expected):
        steps = list(curves[curves["trial"] == number]["step"])
        last = row.end_step if row.diverged_step is None else row.diverged_step - 1
        assert steps == list(range(study.interval, last + 1, study.interval))
    assert tables(disk, asked) == undisturbed(study, trials)


@settings(max_examples=10, deadline=None)
@given(studies(), LANES, st.sampled_from([1, 2, 4]), st.integers(0, 2**32))
def test_slots_that_are_lost_with_whole_groups_leave_no_trace(
    found, lanes, slots, seed
):
    study, trials = found
    disk, asked = MemoryFiles(), study_of(study)
    runner = LosingRunner(trials, slots, seed=seed, chance=0.2, lanes=lanes)
    with mock.patch.object(saving, "time", SlowFiles()):
        assert run(disk, asked, runner).decided
    assert tables(disk, asked) == undisturbed(study, trials)
    known = reader_of(disk, asked).history.trials.values()
    assert not any(trial.failures for trial in known)


def test_trials_advance_in_as_few_turns_as_their_lanes_allow():
    runner = SyntheticRunner(SIX_TRIALS, lanes=3)
    run(MemoryFiles(), STUDY, runner)
    # Trial 3 diverges by step 20, trial 1 meets the goal at 30.
    both = [(0, 1, 2), (3, 4, 5)]
    assert runner.groups == [*both, *both, (0, 1, 2), (4, 5), (0, 2), (4, 5)]


def test_late_draws_of_a_feasible_budget_have_begun_before_they_are_needed():
    # Two of five diverge; six lanes hold draw 5 from the beginning, and then 6 alone.
    study = Study(0.25, 10, 60, points=5, finishers=1, feasible=True, max_draws=9)
    trials = trials_of(*[([1] * 6, 25)] * 2, *[[1] * 6] * 3, *[[1] * 5 + [0]] * 4)
    turns = {}
    for lanes in (5, 6):
        disk, asked = MemoryFiles(), study_of(study)
        runner = SyntheticRunner(trials, lanes=lanes)
        run(disk, asked, runner)
        assert tables(disk, asked) == undisturbed(study, trials)
        turns[lanes] = runner.groups
    assert turns[5][0] == (0, 1, 2, 3, 4) and turns[6][0] == (0, 1, 2, 3, 4, 5)
    assert len(turns[6]) <= len(turns[5])
    assert max(trial for group in turns[6] for trial in group) < 9


def failing(fails):
    """Returns a runner of three lanes whose turns raise where `fails(group)`."""

    class Failing(SyntheticRunner):
        def _run(self, job, stop):
            if fails(self.busy[-1]):
                raise MemoryError("no memory for these")
            return super()._run(job, stop)

    return Failing(SIX_TRIALS, lanes=3)


def test_only_a_trial_that_fails_alone_has_failed():
    disk = MemoryFiles()
    runner = failing(lambda group: 1 in group)
    run(disk, STUDY, runner)
    found = frames(disk, STUDY)["trials"].set_index("trial")["outcome"]
    assert found[1] == "failed" and list(found).count("failed") == 1
    failures = [g for g in runner.groups if 1 in g]
    assert failures == [(0, 1, 2), (1,)]
    run(disk, STUDY, SyntheticRunner(SIX_TRIALS, lanes=3))
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)


def test_a_group_that_fails_now_and_then_passes_in_the_end():
    once = iter([True])
    disk = MemoryFiles()
    run(disk, STUDY, failing(lambda group: len(group) > 1 and next(once, False)))
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)
    history = reader_of(disk, STUDY).history
    assert not any(trial.failures for trial in history.trials.values())


def test_a_group_that_fails_though_each_trial_passes_alone_ends_the_sweep():
    disk = MemoryFiles()
    runner = failing(lambda group: len(group) > 1)
    with pytest.raises(UserError, match=r"trials 0, 1, 2 fail together, .* no memory"):
        run(disk, STUDY, runner)
    assert len([group for group in runner.groups if len(group) > 1]) <= 4
    history = reader_of(disk, STUDY).history
    assert not any(trial.failures for trial in history.trials.values())
    assert history.trials[0].evaluations  # what passed alone is kept
    run(disk, STUDY, SyntheticRunner(SIX_TRIALS))
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)


def test_a_trial_that_kills_its_slot_fails_alone_and_its_neighbours_do_not():
    disk = MemoryFiles()
    runner = LosingRunner(SIX_TRIALS, slots=2, killers=frozenset({0}), lanes=3)
    run(disk, STUDY, runner)
    assert [g for g in runner.groups if 0 in g] == [(0, 1, 2), (0,), (0,)]
    result = reader_of(disk, STUDY).result()
    assert [trial.outcome for trial in result.trials].count("failed") == 1
    assert result.finishers == ((30, 1), (40, 4))
    run(disk, STUDY, SyntheticRunner(SIX_TRIALS))
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)


def test_a_group_stays_in_its_slot():
    runner = LosingRunner(SIX_TRIALS, slots=2, lanes=3)
    run(MemoryFiles(), STUDY, runner)
    # All but the move of the trials whose group is not needed any more.
    assert runner.moves <= 2


def test_late_trials_are_caught_up_with_and_not_run_away_from():
    # Three lanes hold all trials, and two slots are one too many.
    study = Study(0.25, 10, 50, points=3, finishers=1, feasible=False, max_draws=0)
    trials, asked, disk = trials_of(*[[1] * 5] * 3), study_of(study), MemoryFiles()
    with pytest.raises(Interrupted):
        run(disk, asked, SyntheticRunner(trials, lanes=3, stop_at=7))
    (path,) = [path for path in disk.objects if "trial-000000." in path]
    disk.remove(path)
    runner = SyntheticRunner(trials, slots=2, lanes=3)
    run(disk, asked, runner)
    # States at 30 are left of trials 1 and 2.
    assert runner.groups == [*[(0,)] * 3, *[(0, 1, 2)] * 2]


def sweep_run(directory, *bindings, **options) -> SweepRun:
    values = ["workload.points = 16", "sweep.batch_sizes = (64,)", *bindings]
    files, gin = read_configuration(["smoke/nqm_sgd"], values)
    return SweepRun(SweepConfiguration(files, gin), Options(str(directory), **options))


def cell_of(directory) -> StudyReader:
    (study,) = SweepReader(LocalFiles(), str(directory)).studies.values()
    return study


def tables_of(directory) -> dict[str, bytes]:
    study = cell_of(directory)
    assert study.closed() is not None
    names = ("trials", "curves")
    return {name: Path(study.layout.table(name)).read_bytes() for name in names}


def test_a_simulation_has_the_same_tables_in_any_number_of_lanes(tmp_path):
    found = {}
    feasible = "workload.count = 'feasible'", "workload.max_draws = 60"
    for lanes in (1, 3, 15):
        place = tmp_path / str(lanes)
        sweep_run(place, *feasible, lanes=lanes).run(StopRequest())
        assert cell_of(place).specification.lanes == lanes
        found[lanes] = tables_of(place)
    assert found[1] == found[3] == found[15]


def interrupted(directory, turns: int, **options) -> None:
    """Begins a simulation, and stops it after some turns."""
    stop, run_turn = StopRequest(), SimulatedRunner.run
    left = iter(range(turns))

    def counted(*arguments):
        if next(left, None) is None:
            stop.set("test")
        return run_turn(*arguments)

    with mock.patch.object(SimulatedRunner, "run", counted), pytest.raises(Interrupted):
        sweep_run(directory, **options).run(stop)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """Returns the tables of the simulation in one lane."""
    folder = tmp_path_factory.mktemp("whole")
    sweep_run(folder, lanes=1).run(StopRequest())
    return tables_of(folder)


@pytest.mark.parametrize("lost", [False, True])
def test_a_study_keeps_its_lanes_and_only_another_number_is_refused(
    tmp_path, whole, lost
):
    place = tmp_path / "sweep"
    interrupted(place, 4, lanes=3)
    with pytest.raises(UserError, match="lanes: stored 3, now 5") as refused:
        sweep_run(place, lanes=5).run(StopRequest())
    assert "\n" not in str(refused.value)
    if lost:
        # The logs tell the number too.
        Path(cell_of(place).layout.study).unlink()
    groups, run_turn = [], SimulatedRunner.run

    def noted(runner, slot, jobs, stop):
        groups.append([job.trial % 3 for job in jobs])
        return run_turn(runner, slot, jobs, stop)

    with mock.patch.object(SimulatedRunner, "run", noted):
        sweep_run(place).run(StopRequest())
    assert max(map(len, groups)) == 3
    assert cell_of(place).specification.lanes == 3
    assert tables_of(place) == whole
    # A finished study is finished however its lanes are asked for.
    for lanes in (0, 3):
        assert sweep_run(place, lanes=lanes).run(StopRequest()).finished_before


@pytest.mark.parametrize(
    ("lanes", "bindings", "sentence"),
    [
        (16, (), "no power of two"),
        (2, (), "no power of two"),
        (-1, (), "whole number"),
        (17, (), "16 trial"),
        (3, ("workload.oracle = 'keras_tuner.oracles.RandomSearchOracle'",), "1 trial"),
    ],
)
def test_lanes_that_trials_cannot_fill_are_refused(tmp_path, lanes, bindings, sentence):
    with pytest.raises(UserError, match=sentence) as refused:
        sweep_run(tmp_path, *bindings, lanes=lanes)
    assert "\n" not in str(refused.value)


def test_repeats_of_few_points_decide_their_lanes_anew():
    study = study_of(SIX, points=16, lanes=15)
    assert repeat_study(study, [{"learning_rate": 0.1}] * 3, 1).lanes == 0
    assert repeat_study(study_of(SIX), [{"learning_rate": 0.1}], 2).lanes == 1


GPU = {**ENVIRONMENT, "devices": "CPU GPU"}


@pytest.mark.parametrize("lanes", [1, 3])
def test_where_bits_do_not_repeat_the_first_record_of_an_evaluation_stays(lanes):
    disk, inputs = MemoryFiles(), (GPU, TRAINING_INPUTS)
    with pytest.raises(Interrupted):
        run(disk, STUDY, SyntheticRunner(SIX_TRIALS, stop_at=9, inputs=inputs))
    before = reader_of(disk, STUDY).history.trials
    assert any(trial.evaluations for trial in before.values())
    for path in [path for path in disk.objects if "/states/" in path]:
        disk.remove(path)
    other = [replace(t, errors=tuple(e * 0.9999 for e in t.errors)) for t in SIX_TRIALS]
    assert list(before[2].evaluations) == [10, 20]
    other[2] = replace(other[2], diverges_at=5)
    run(disk, STUDY, SyntheticRunner(other, inputs=inputs, lanes=lanes))
    after = reader_of(disk, STUDY)
    assert after.result().decided
    assert after.result().trials[2].diverged_step == 21
    for number, trial in before.items():
        for step, metrics in trial.evaluations.items():
            assert after.history[number].evaluations[step] == metrics


def test_a_deterministic_study_repeats_on_gpus_or_is_stopped():
    disk, inputs, asked = MemoryFiles(), (GPU, TRAINING_INPUTS), study_of(SIX)
    asked = replace(asked, deterministic=True)
    with pytest.raises(Interrupted):
        run(disk, asked, SyntheticRunner(SIX_TRIALS, stop_at=9, inputs=inputs))
    for path in [path for path in disk.objects if "/states/" in path]:
        disk.remove(path)
    other = [replace(t, errors=tuple(e * 0.9999 for e in t.errors)) for t in SIX_TRIALS]
    with pytest.raises(Irreproducible):
        run(disk, asked, SyntheticRunner(other, inputs=inputs))
