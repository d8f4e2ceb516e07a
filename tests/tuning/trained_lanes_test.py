"""Trained studies in lanes: nothing depends on slots, kills, groups or neighbours."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.cli.sweep_run import SweepRun
from dps_tf.probing.measurement import ProgramCache
from dps_tf.probing.replay import WatchedRunner, dataset_of
from dps_tf.store import LocalFiles, StudyReader, SweepReader
from dps_tf.training import TrainingRunner
from dps_tf.training import runner as runners
from dps_tf.tuning import own_code
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.options import Options
from dps_tf.workloads.reading import SweepConfiguration, read_configuration
from tests.made_up.small_sweeps import BINDINGS

DIVERGING = (
    "workload.count = 'feasible'",
    # With these rates more than half diverge.
    "workload.space = {'learning_rate': ('log', 1e-3, 1e10)}",
    "workload.max_draws = 40",
)
PRUNED = "sweep.sparsities = (0.6,)", "sweep.sparsity_methods = ('snip',)"
TO_THE_END = "goal.threshold = 0.0"
PARTS = "workload.network = 'parts'", "workload.network_arguments = {}"
CONVOLUTION = "workload.network_arguments = {'convolves': True}"
QUICK = "workload.step_budget = 16", "evaluation.minimum = 4", *DIVERGING


def of(points: int, *sizes: int) -> tuple[str, str]:
    return f"workload.points = {points}", f"sweep.batch_sizes = {sizes}"


KINDS = {
    # Lanes, slots, turns until a stop, and bindings; most values meet by pairs.
    "feasible": (3, 2, 1, (*BINDINGS, *DIVERGING, *of(4, 8))),
    "pruned": (3, 2, 12, (*BINDINGS, *PRUNED, TO_THE_END, *of(7, 37))),
    "quickstart": (15, 3, 14, (*QUICK, *of(16, 4, 64, 1024))),
    "parts": (3, 2, 3, (*BINDINGS, *PARTS, *PRUNED, TO_THE_END, *of(7, 3))),
    "convolution": (
        *(1, 2, 7),
        (*BINDINGS, *PARTS, CONVOLUTION, *PRUNED, *DIVERGING, *of(4, 2)),
    ),
}


def parts(input_shape, classes, convolves=False) -> keras.Model:
    """Returns a network with all that draws, averages or has no form in lanes."""
    layers = keras.layers
    inputs = hidden = keras.Input(input_shape)
    if convolves:
        hidden = layers.Reshape([-1, 1])(hidden)
        hidden = layers.Flatten()(layers.Conv1D(3, 3)(hidden))
    hidden = layers.BatchNormalization()(layers.Dense(6, use_bias=False)(hidden))
    hidden = layers.Dropout(0.3)(layers.ReLU()(hidden))
    return keras.Model(inputs, layers.Dense(classes)(hidden))


models.register("parts", parts)


@pytest.fixture(autouse=True)
def _not_looked_at(monkeypatch):
    """Spares the looks at code of one's own, which take longer than a trace."""
    monkeypatch.setattr(own_code, "is_own", lambda *_: False)


def sweep_run(directory, kind: str, **options) -> SweepRun:
    names = [kind] if kind == "quickstart" else []
    sweep, gin = read_configuration(names, KINDS[kind][-1])
    return SweepRun(SweepConfiguration(sweep, gin), Options(str(directory), **options))


def studies_of(directory) -> list[StudyReader]:
    return [*SweepReader(LocalFiles(), str(directory)).studies.values()]


def tables_of(directory) -> dict[str, bytes]:
    found = {}
    for study in studies_of(directory):
        assert study.closed() is not None and not study.problems
        for name in ("trials", "curves"):
            table = Path(study.layout.table(name))
            found[f"{table.parent.name} {name}"] = table.read_bytes()
    return found


def stopped_after(turns: int, sweep: SweepRun) -> None:
    stop, run_turn, left = StopRequest(), TrainingRunner.run, iter(range(turns))

    def counted(*arguments):
        if next(left, None) is None:
            stop.set("test")
        return run_turn(*arguments)

    with (
        mock.patch.object(TrainingRunner, "run", counted),
        mock.patch.object(runners, "SLICE_SECONDS", 0.0),
        pytest.raises(Interrupted),
    ):
        sweep.run(stop)


@pytest.fixture(scope="module")
def in_one_slot(tmp_path_factory):
    """Returns the folder of a sweep of a kind, which is trained once."""

    @functools.cache
    def trained(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        sweep_run(folder, kind, slots=1, lanes=KINDS[kind][0]).run(StopRequest())
        return folder

    return trained


@pytest.mark.parametrize("kind", list(KINDS))
def test_tables_do_not_depend_on_slots_slices_kills_or_neighbours(
    in_one_slot, tmp_path, kind
):
    (lanes, slots, turns, _), place = KINDS[kind], tmp_path / "killed"
    expected = tables_of(in_one_slot(kind))
    stopped_after(turns, sweep_run(place, kind, slots=slots, lanes=lanes))
    for study in studies_of(place):
        states = sorted(Path(study.layout.states).glob("*"))
        for state in states[::2]:  # these trials begin again, each beside others
            state.unlink()
    sweep_run(place, kind, slots=slots).run(StopRequest())
    assert tables_of(place) == expected
    assert {study.specification.lanes for study in studies_of(place)} == {lanes}


def test_a_recorded_trial_is_repeated_to_the_bit_in_its_lane(in_one_slot):
    study = studies_of(in_one_slot("feasible"))[-1]
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
