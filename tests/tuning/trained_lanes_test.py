"""Trained studies in lanes: nothing depends on slots, kills, groups or neighbours."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from dps_tf.cli.sweep_run import SweepRun
from dps_tf.probing.measurement import ProgramCache
from dps_tf.probing.replay import WatchedRunner, dataset_of
from dps_tf.store import LocalFiles, StudyReader, SweepReader
from dps_tf.training import TrainingRunner
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.options import Options
from dps_tf.workloads.reading import SweepConfiguration, read_configuration
from tests.made_up.small_sweeps import BINDINGS

KINDS = {
    # With these rates more than half diverge.
    "feasible": (
        "workload.points = 4",
        "workload.count = 'feasible'",
        "workload.space = {'learning_rate': ('log', 1e-3, 1e40)}",
        "workload.max_draws = 30",
    ),
    "pruned": (
        "workload.points = 7",
        "goal.threshold = 0.0",
        "sweep.sparsities = (0.6,)",
        "sweep.sparsity_methods = ('snip',)",
    ),
}


def sweep_run(directory, kind: str, **options) -> SweepRun:
    values = [*BINDINGS, *KINDS[kind]]
    sweep, gin = read_configuration([], values)
    return SweepRun(SweepConfiguration(sweep, gin), Options(str(directory), **options))


def study_of(directory) -> StudyReader:
    (study,) = SweepReader(LocalFiles(), str(directory)).studies.values()
    return study


def tables_of(directory) -> dict[str, bytes]:
    study = study_of(directory)
    assert study.closed() is not None and not study.problems
    names = ("trials", "curves")
    return {name: Path(study.layout.table(name)).read_bytes() for name in names}


def stopped_after(turns: int, sweep: SweepRun) -> None:
    stop, run_turn, left = StopRequest(), TrainingRunner.run, iter(range(turns))

    def counted(*arguments):
        if next(left, None) is None:
            stop.set("test")
        return run_turn(*arguments)

    with mock.patch.object(TrainingRunner, "run", counted), pytest.raises(Interrupted):
        sweep.run(stop)


@pytest.fixture(scope="module")
def in_one_slot(tmp_path_factory):
    """Returns the folder of a sweep of a kind, which is trained once."""

    @functools.cache
    def trained(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        sweep_run(folder, kind, slots=1, lanes=3).run(StopRequest())
        return folder

    return trained


@pytest.mark.parametrize(("kind", "turns"), [("pruned", 5), ("feasible", 1)])
def test_tables_do_not_depend_on_slots_or_interruptions(
    in_one_slot, tmp_path, kind, turns
):
    expected, place = tables_of(in_one_slot(kind)), tmp_path / "killed"
    stopped_after(turns, sweep_run(place, kind, slots=2, lanes=3))
    states = sorted(Path(study_of(place).layout.states).iterdir())
    for state in states[::2]:  # these trials begin again, each beside others
        state.unlink()
    sweep_run(place, kind, slots=2).run(StopRequest())
    assert tables_of(place) == expected
    assert study_of(place).specification.lanes == 3


def test_a_recorded_trial_is_repeated_to_the_bit_in_its_lane(in_one_slot):
    study = study_of(in_one_slot("feasible"))
    dataset = dataset_of(study, None)
    program = ProgramCache().program(study, dataset)
    assert program.lanes == 3
    evaluated = sorted({int(n) for n in study.closed(("curves",))["curves"]["trial"]})
    for number in evaluated[-3:]:
        trial = study.trial(number)
        runner = WatchedRunner(program, trial, None)
        state = None
        for step in sorted(trial.curve):
            report = runner.go_on(state, step, lambda: False)
            state = report.state
            assert report.metrics == trial.curve[step][0]


def test_a_plan_counts_a_lane_s_share_and_step_times_are_of_one_trial(tmp_path):
    file, steps = tmp_path / "steps.csv", []

    def seconds(runner, *_):
        steps.append(runner.lanes)
        return 0.3

    with mock.patch.object(TrainingRunner, "step_seconds", seconds):
        text = sweep_run("", "feasible", lanes=3).plan((), {}, str(file))
    assert set(steps) == {1, 3}
    assert "a step 0.1 s at 8" in text
    assert pd.read_csv(file)["seconds"].to_list() == [0.3]
