"""Which slots of a cluster may work on a study, by what they say of themselves."""

from __future__ import annotations

import dataclasses
import inspect
import re
import signal
import time
from types import SimpleNamespace

import pytest

from dps_tf.core import ClusterRunner, UserError
from dps_tf.tuning.cluster_slots import SlotPool
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from tests.made_up.specifications import ENVIRONMENT
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    TRAINING_INPUTS,
    SyntheticRunner,
    reader_of,
    run,
    study_of,
)
from tests.store.object_store import MemoryFiles

ray_engine = pytest.importorskip("dps_tf.tuning.ray_engine", exc_type=ImportError)
ray_cluster = pytest.importorskip("dps_tf.tuning.ray_cluster", exc_type=ImportError)

STUDY = study_of(SIX)
OTHER = {**ENVIRONMENT, "instruction_sets": "neon"}


class Cluster(SimpleNamespace):
    """What a runner asks of a cluster when a slot has opened a study."""

    def __init__(self):
        super().__init__(pool=SlotPool(), refused={}, first=None)

    def kind(self, environment):
        self.first = self.first or environment
        return self.first

    def refuse_node(self, slot, why):
        self.refused[slot] = why


def runner_of(cluster, *, allowed=False):
    return ray_engine.RayRunner(STUDY, cluster, lambda: False, allowed)


def test_a_slot_that_rounds_otherwise_is_refused():
    cluster = Cluster()
    runner = runner_of(cluster)
    assert runner._accept(0, (ENVIRONMENT, TRAINING_INPUTS))
    assert not runner._accept(1, (OTHER, TRAINING_INPUTS))
    assert runner._accept(2, (dict(ENVIRONMENT), TRAINING_INPUTS))
    assert list(cluster.refused) == [1] and "round otherwise" in cluster.refused[1]
    assert runner.new_environments() == []


def test_two_studies_at_once_do_not_refuse_each_others_nodes():
    cluster = Cluster()
    one, two = runner_of(cluster), runner_of(cluster)
    assert one._accept(0, (ENVIRONMENT, TRAINING_INPUTS))
    assert not two._accept(1, (OTHER, TRAINING_INPUTS))
    assert two._accept(2, (ENVIRONMENT, TRAINING_INPUTS))
    assert list(cluster.refused) == [1]


def test_a_slot_that_rounds_otherwise_is_told_of_once_where_it_is_allowed():
    cluster = Cluster()
    runner = runner_of(cluster, allowed=True)
    for slot, environment in enumerate((ENVIRONMENT, OTHER)):
        assert runner._accept(slot, (environment, TRAINING_INPUTS))
    assert runner.new_environments() == [OTHER]
    assert runner.new_environments() == [] and not cluster.refused


def test_a_slot_with_other_data_is_refused_whatever_is_allowed():
    cluster = Cluster()
    runner = runner_of(cluster, allowed=True)
    runner._accept(0, (ENVIRONMENT, TRAINING_INPUTS))
    other = {**TRAINING_INPUTS, "content_hash": "other"}
    assert not runner._accept(1, (ENVIRONMENT, other))
    assert "other data" in cluster.refused[1]


def test_machines_of_another_kind_are_in_the_record_before_their_first_turn():
    told, seen = [OTHER], []
    disk = MemoryFiles()

    class Runner(SyntheticRunner, ClusterRunner):
        def idle_slots(self, busy, wanted):
            return [] if busy else [0]

        def new_environments(self):
            return [told.pop()] if told else []

        def lost_trials(self):
            return []

        def run(self, slot, jobs, stop):
            seen.append(reader_of(disk, STUDY).environments)
            return super().run(slot, jobs, stop)

    assert run(disk, STUDY, Runner(SIX_TRIALS)).decided
    assert seen[0] == seen[-1] == [ENVIRONMENT, OTHER]


@pytest.mark.parametrize(("lanes", "slots"), [(0, 6), (1, 6), (3, 2), (5, 2)])
def test_a_study_in_lanes_asks_for_a_slot_for_each_group(lanes, slots):
    cluster = Cluster()
    for slot in range(8):
        cluster.pool.add(slot)
    study = dataclasses.replace(STUDY, lanes=lanes)
    runner = ray_engine.RayRunner(study, cluster, lambda: False)
    assert cluster.pool.spare == 8 - slots
    assert runner.wanted == slots


def test_ray_does_not_keep_the_signal_that_asks_to_stop(monkeypatch):
    monkeypatch.setattr(
        ray_cluster.ray,
        "init",
        lambda **_: signal.signal(signal.SIGTERM, lambda *_: pytest.fail("Ray's")),
    )
    with StopRequest().listening() as stop:
        ray_cluster.connect("auto", 1)
        signal.raise_signal(signal.SIGTERM)
        assert stop() and stop.signal_name == "SIGTERM"


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(ray_cluster.time, "time", lambda: clock.now)
    return clock


def test_a_minute_without_slots_is_told_once_until_there_is_one(clock, capsys):
    stop = StopRequest()
    options = Options("sweep", engine="ray", ray_address="head:6379")
    shortage = ray_cluster.Shortage(options, stop)
    told = []
    for seconds, ready in ((59, 0), (60, 0), (600, 0), (601, 1), (660, 0), (661, 0)):
        clock.now = 1000.0 + seconds
        shortage.look(offered=4, ready=ready)
        told.append(capsys.readouterr().out)
    assert [bool(text) for text in told] == [False, True, False, False, False, True]
    since = time.strftime("%H:%M:%S", time.localtime(1000.0))
    assert told[1].startswith(f"waiting since {since} for a slot of the Ray cluster")
    assert "head:6379, whose nodes offer 4: " in told[1] and "Ctrl-C" in told[1]
    assert not stop()


def test_a_timeout_ends_the_wait_for_slots(clock):
    stop = StopRequest()
    options = Options(
        "sweep", engine="ray", ray_address="head:6379", slots_timeout=300.0
    )
    shortage = ray_cluster.Shortage(options, stop)
    clock.now += 299
    shortage.look(offered=0, ready=0)
    assert not stop()
    clock.now += 1
    shortage.look(offered=0, ready=0)
    assert stop() and "head:6379 had no slot for 5 min" in stop.signal_name


def test_a_ray_of_this_machine_stops_the_run_once_its_node_is_gone():
    stop = StopRequest()
    shortage = ray_cluster.Shortage(Options("sweep", engine="ray"), stop)
    shortage.look(offered=2, ready=0)
    assert not stop()
    shortage.look(offered=0, ready=0)
    assert stop() and "the end of the Ray that was started here" in stop.signal_name


def test_a_ray_that_others_could_reach_is_not_started(monkeypatch):
    monkeypatch.setattr(
        ray_cluster.ray.util, "get_node_ip_address", lambda: "192.0.2.7"
    )
    monkeypatch.setattr(ray_cluster.ray, "init", lambda **_: pytest.fail("started"))
    with pytest.raises(UserError, match="before the import"):
        ray_cluster.connect(None, 1)


@pytest.mark.parametrize("module", [ray_cluster, ray_engine])
def test_ray_is_used_by_its_public_interface_alone(module):
    private = re.findall(r"\bray(?:\.\w+)*\._\w+|\._ray_\w+", inspect.getsource(module))
    assert private == []


def test_an_address_at_which_nothing_listens_is_one_sentence(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_LISTENING_SECONDS", 0.1)
    for address in ("127.0.0.1:1", "127.0.0.1:99999", "no.such.host.invalid:6379"):
        with pytest.raises(UserError, match=f"nothing can be reached.*{address}"):
            ray_cluster.connect(address, 0)
