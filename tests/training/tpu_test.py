"""Cores of a TPU: told apart on TensorFlow's own topology, and trained on if there."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.training import device_memory
from dps_tf.training import strategy as strategies
from dps_tf.tuning import build
from dps_tf.tuning.resources import Resources
from tests.made_up import small_sweeps
from tests.training.problems import Problem, one_device


def topology(tasks: int, x: int, y: int, cores: int) -> tf.tpu.experimental.Topology:
    """A made-up TPU: the chips of a host are a row of the mesh."""
    coordinates = np.array(
        [
            [[i, row, 0, core] for i in range(x) for core in range(cores)]
            for row in range(y)
        ],
        np.int32,
    ).reshape(tasks, -1, 4)
    return tf.tpu.experimental.Topology(
        mesh_shape=np.array([x, y, 1, cores], np.int32), device_coordinates=coordinates
    )


class Started:
    """Stands for a TPU: its cores are virtual CPUs of this machine, in turn."""

    def __init__(self, shape: tuple[int, int, int, int]):
        self.topology = topology(*shape)
        self.assignments: list[tf.tpu.experimental.DeviceAssignment | None] = []

    def strategy(self, kind, resolver, experimental_device_assignment=None):
        del kind, resolver
        self.assignments.append(experimental_device_assignment)
        if experimental_device_assignment is None:
            return strategies.build("mirrored", devices=("CPU:0", "CPU:1"))
        number = (len(self.assignments) - 1) % 4
        return tf.distribute.OneDeviceStrategy(f"/device:CPU:{number}")


@pytest.fixture(autouse=True, name="started")
def _started(monkeypatch):
    """A TPU v2-8 in every test that is not about a real one."""
    tpu = Started((1, 2, 2, 2))
    if not tf.config.list_physical_devices("TPU"):
        resolvers = tf.distribute.cluster_resolver
        monkeypatch.setattr(resolvers, "TPUClusterResolver", lambda tpu: tpu)
        monkeypatch.setattr(
            tf.tpu.experimental, "initialize_tpu_system", lambda resolver: tpu.topology
        )
        # A class, as others ask whether a strategy is one.
        stand_in = type("TPUStrategy", (), {"__new__": tpu.strategy})
        monkeypatch.setattr(tf.distribute, "TPUStrategy", stand_in)
    return tpu


@pytest.mark.parametrize(
    ("shape", "cores"),
    [((1, 2, 2, 2), 8), ((1, 2, 4, 1), 8), ((4, 2, 4, 1), 8), ((1, 1, 1, 1), 1)],
)
def test_every_core_stands_alone_in_one_assignment(shape, cores):
    made = topology(*shape)
    found = strategies.single_cores(made)
    assert len(found) == cores
    assert all(one.num_replicas == one.num_cores_per_replica == 1 for one in found)
    places = {tuple(one.coordinates(0, 0)) for one in found}
    assert len(places) == cores
    names = {one.tpu_device(0, 0, "worker") for one in found}
    per_task = cores // shape[0]
    assert names == {
        f"/job:worker/task:{task}/device:TPU:{core}"
        for task in range(shape[0])
        for core in range(per_task)
    }


def test_trials_are_split_over_cores_unless_data_are_to_be(started):
    found = Resources.of_this_machine(strategy="tpu", tpu="local")
    assert len(found.strategies) == 8 and found.replicas == 1
    assert all(one is not None for one in started.assignments)
    assert len(Resources.of_this_machine(tpu="local").strategies) == 8
    assert len(Resources.of_this_machine(slots=3, tpu="local").strategies) == 3
    assert len(Resources.of_this_machine(slots=16, tpu="local").strategies) == 16
    started.assignments.clear()
    whole = Resources.of_this_machine(strategy="tpu", tpu="local", split="data")
    assert len(whole.strategies) == 1 and whole.replicas == 2
    assert started.assignments == [None]


def test_another_split_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="--split .batches. .* known: data, trials"):
        Resources.of_this_machine(tpu="local", split="batches")


def test_batches_of_any_size_are_whole_on_a_core_and_refused_by_all():
    problem = Problem(batch_size=7)
    core = Resources.of_this_machine(tpu="local").strategies[0]
    problem.begin(program := problem.program(core))
    assert program.advance(problem.order(0, 2)).steps == 2
    whole = Resources.of_this_machine(tpu="local", split="data").strategies[0]
    with pytest.raises(UserError, match="batch size 7 cannot be split over 2"):
        problem.program(whole)


def test_trial_that_a_core_cannot_hold_is_refused_and_not_where_all_share(monkeypatch):
    [study] = small_sweeps.configured(small_sweeps.BINDINGS).studies
    dataset = build.load_dataset(study.workload, None)
    monkeypatch.setattr(device_memory, "memory_of", lambda device: 1_000)
    cores = Resources.of_this_machine(slots=2, tpu="local")
    with pytest.raises(
        UserError, match=r"has 0\.0 MB: share .* by --split=data.*stream"
    ):
        cores.programs(study, dataset)
    cores.data_placement = "stream"
    with pytest.raises(UserError, match=r"--split=data, or choose smaller batches\.$"):
        cores.programs(study, dataset)
    monkeypatch.setattr(device_memory, "memory_of", lambda device: None)
    assert len(cores.programs(study, dataset)) == 2
    assert "not checked" in cores.memory_note
    monkeypatch.setattr(device_memory, "memory_of", lambda device: 1_000)
    whole = Resources.of_this_machine(tpu="local", split="data")
    # CPUs share the host's memory, of which activations have their own limit.
    for others in (whole, Resources.of_this_machine(slots=1)):
        assert others.programs(study, dataset) and others.memory_note == ""


def test_gpus_are_checked_where_each_has_trials_of_its_own(monkeypatch):
    found = {"GPU": 2, "CPU": 1}
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind: [f"{kind}:{i}" for i in range(found[kind])],
    )
    monkeypatch.setattr(tf.distribute, "OneDeviceStrategy", lambda device: device)
    assert Resources.of_this_machine().sharing == "--strategy=mirrored"
    assert Resources.of_this_machine(strategy="one_device").sharing is None
    found["GPU"] = 1
    assert Resources.of_this_machine().sharing == ""


@pytest.mark.tpu
class TpuTest(tf.test.TestCase, parameterized.TestCase):
    """On a real TPU; the tolerance is that of its multiplications."""

    def setUp(self):
        super().setUp()
        if not tf.config.list_physical_devices("TPU"):
            self.skipTest("this machine has no TPU")

    def assert_near_one_cpu(self, strategy: tf.distribute.Strategy) -> None:
        problem = Problem(optimizer="momentum")
        curves = []
        for program in (problem.program(one_device()), problem.program(strategy)):
            problem.begin(program)
            curves.append(problem.curve(program, 20, 10)[0])
            self.assertEqual(program.traces, 1)
        self.assertAllClose(*curves, rtol=0.05)

    @parameterized.parameters("trials", "data")
    def test_curve_is_that_of_a_cpu(self, split):
        found = Resources.of_this_machine(tpu="local", split=split)
        for strategy in {id(s): s for s in found.strategies}.values():
            self.assert_near_one_cpu(strategy)


if __name__ == "__main__":
    tf.test.main()
