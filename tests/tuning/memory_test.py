"""States that do not fit into memory are refused before a sweep begins."""

from __future__ import annotations

import contextlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from dps_tf.cli.sweep_run import SweepRun
from dps_tf.core import UserError
from dps_tf.store import LocalFiles, State, StudyRecord
from dps_tf.training import TrainingRunner, strategy
from dps_tf.training.packing import Packed
from dps_tf.tuning import resources
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.trained_backend import TrainedBackend
from dps_tf.workloads.reading import SweepConfiguration, read_configuration
from tests.made_up.small_sweeps import BINDINGS
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    SyntheticRunner,
    reader_of,
    run,
    study_of,
)
from tests.store.object_store import MemoryFiles
from tests.training import problems
from tests.training.problems import Problem

POINTS = 4
PRUNED = "sweep.sparsities = (0.6,)"
SIXTEEN = "workload.points = 16"
KINDS = {
    "nesterov": (1, ()),
    "goal": (
        1,
        (
            "sweep.evaluation_mode = 'goal'",
            "workload.dataset_arguments = {'examples': 2000, 'classes': 3}",
        ),
    ),
    "small_goal": (1, ("sweep.evaluation_mode = 'goal'",)),
    "pruned": (1, (PRUNED, "sweep.sparsity_methods = ('snip',)")),
    "gradual": (
        1,
        (
            PRUNED,
            "sweep.sparsity_methods = ('tfmot_constant',)",
            "sweep.pruning = @pruning()",
            "pruning.arguments = {'tfmot_constant': "
            "{'begin_step': 1, 'end_step': 1, 'frequency': 1}}",
        ),
    ),
    "workers": (1, ("workload.fixed = {'workers': 4, 'local_steps': 3}",)),
    # Their states take more than a megabyte.
    "lanes": (15, (SIXTEEN,)),
    "lanes_pruned": (15, (SIXTEEN, PRUNED, "sweep.sparsity_methods = ('random',)")),
    "feasible": (
        1,
        (
            "workload.count = 'feasible'",
            "workload.max_draws = 30",
            "workload.space = {'learning_rate': ('log', 1e-3, 1e9)}",
        ),
    ),
}


def sweep_run(kind: str, directory="", **options) -> SweepRun:
    lanes, own = KINDS[kind]
    values = (
        f"workload.points = {POINTS}",
        "workload.network_arguments = {'widths': (128, 96)}",
        "workload.step_budget = 15",
        "goal.threshold = 0.0",
    )
    sweep, gin = read_configuration([], [*BINDINGS, *values, *own])
    asked = Options(str(directory), lanes=lanes, **{"slots": 1, **options})
    return SweepRun(SweepConfiguration(sweep, gin), asked)


def bytes_of(tensors) -> int:
    return sum(np.asarray(tensor).nbytes for tensor in tensors)


class Held:
    """The most bytes of real arrays that a study holds while a turn is recorded."""

    def __init__(self):
        self.states = self.masks = 0

    def watching(self):
        add, run = StudyRecord.add_report, TrainingRunner.run

        def added(record, report):
            states = [*record._states.values(), report.state]
            views = {id(view.held[0]): view.held[0] for view in map(packed, states)}
            self.states = max(self.states, sum(map(bytes_of, views.values())))
            return add(record, report)

        def ran(runner, *arguments):
            reports = run(runner, *arguments)
            sets = [own.masks or () for own in runner._pruned.values()]
            tensors = [program._loaded_masks[1] for program in runner._programs]
            self.masks = sum(map(bytes_of, [*sets, *tensors]))
            return reports

        both = contextlib.ExitStack()
        both.enter_context(mock.patch.object(StudyRecord, "add_report", added))
        both.enter_context(mock.patch.object(TrainingRunner, "run", ran))
        return both


def packed(state):
    assert isinstance(state.arrays, Packed)
    return state.arrays


def is_refused(sweep: SweepRun, free: float, look=TrainedBackend.check_data) -> bool:
    (study,) = sweep.configuration.specification.studies
    backend = TrainedBackend(sweep.options, LocalFiles())
    with mock.patch.object(resources, "free_memory", lambda: free):
        try:
            look(backend, study)
        except UserError as error:
            assert "states and" in str(error)
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_count_is_of_the_bytes_of_all_arrays(tmp_path, kind):
    held, asked = Held(), sweep_run(kind, tmp_path)
    with held.watching():
        asked.run(StopRequest())
    needed = held.states + held.masks
    assert is_refused(asked, needed - 1)
    # Which draws diverge is known only after the race.
    more = 0.2 * needed if kind == "feasible" else 0
    assert not is_refused(asked, needed + more), (kind, held.states, held.masks)


STATE = 4 * sum(2 * (i + 1) * o for i, o in ((8, 128), (128, 96), (96, 3)))
"""Bytes of weights and momentum of the network, in float32."""


def test_this_machine_holds_what_is_saved_where_a_cluster_elsewhere_trains():
    asked = sweep_run("pruned", engine="ray", ray_address="head:6379")
    assert is_refused(asked, POINTS * STATE - 1)
    assert not is_refused(asked, POINTS * STATE)
    with (
        mock.patch.object(tf.config, "list_physical_devices", lambda kind: [kind]),
        mock.patch.object(strategy, "_grow_memory"),
    ):
        assert not is_refused(asked, 0)  # GPUs are left to the slots


@pytest.mark.parametrize(("address", "trials"), [("head:6379", 15), (None, 16)])
def test_a_slot_of_a_cluster_holds_its_own_lanes(address, trials):
    """Where Ray is started, this machine holds the states of all slots."""
    asked = sweep_run("lanes", engine="ray", ray_address=address)
    needed = (trials + 15) * STATE + 15 * STATE // 8
    prepare = TrainedBackend.prepare
    assert is_refused(asked, needed - 1, prepare)
    assert not is_refused(asked, needed, prepare)
    if address is None:
        assert is_refused(asked, needed - 1)
        assert not is_refused(asked, needed)


def test_initial_points_that_are_kept_take_at_most_64_megabytes():
    large = Problem(problems.DIGITS, arguments={"widths": (512, 512)})
    for problem, most in ((Problem(problems.DIGITS), 256), (large, 55)):
        program = problem.program(lanes=3)
        assert program.initial_point.cache_info().maxsize == most
        assert 4 * most * program.network.count_params() <= 1 << 26


def test_states_of_trials_that_diverged_are_not_held_again():
    disk, study = MemoryFiles(), study_of(SIX)
    run(disk, study, SyntheticRunner(SIX_TRIALS))
    reader = reader_of(disk, study)
    state = State(10, [np.zeros(2)], {})
    reader.states.save_many({2: state, 3: state})
    record = StudyRecord(disk, reader.layout, study, lambda: None)
    assert record.state(2) is not None
    assert record.state(3) is None
