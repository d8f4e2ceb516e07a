"""Cells that one graph can train share it, and no others do."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

import dps_tf
from dps_tf import data
from dps_tf.core import UserError
from dps_tf.training import Program, program
from dps_tf.training import strategy as strategies
from dps_tf.tuning import own_code, resources
from dps_tf.tuning.resources import Resources


def studies(lanes=0, **values):
    values = {"sweep.batch_sizes": (16, 64), "workload.points": 3, **values}
    asked = dps_tf.sweep("smoke/quickstart", values=values).specification.studies
    return [replace(study, lanes=lanes) for study in asked]


@pytest.fixture(scope="module")
def machine():
    return Resources.of_this_machine(2, "one_device")


@pytest.fixture
def _untraced(monkeypatch):
    """Leaves the graph of a program out, where what is asked is known before."""
    monkeypatch.setattr(
        Program, "_trace", lambda made: setattr(made, "_operations", ())
    )


@pytest.mark.parametrize("on_host", [True, False])
def test_processors_train_side_by_side_and_other_devices_one_trial_each(
    monkeypatch, on_host
):
    cpus = strategies.kind(strategies.build("one_device"))
    found = replace(cpus, on_host=on_host)
    monkeypatch.setattr(strategies, "kind", lambda strategy: found)
    monkeypatch.setattr(resources, "processors", lambda: 5)
    monkeypatch.setattr(strategies, "local_devices", lambda: ("CPU:0", "CPU:1"))
    slots = Resources.of_this_machine().strategies
    assert [each.extended.worker_devices[0][-1] for each in slots] == (
        list("00000") if on_host else list("01")
    )


def networks(machine, *asked):
    """Returns the network of each study's programs; a new trace has a new one."""
    found = []
    for study in asked:
        dataset = data.load_for(study.workload, None)
        found += [program.network for program in machine.programs(study, dataset)]
    return found


def test_cells_that_differ_in_batch_size_seed_and_sparsity_are_traced_once(machine):
    first, *others = studies(
        **{
            "sweep.seeds": (0, 1),
            "sweep.sparsities": (0.0, 0.5),
            "sweep.sparsity_methods": ("magnitude",),
        }
    )
    assert len(others) == 7
    network, *more = networks(machine, first, *others)
    assert len(more) == 15
    assert all(other is network for other in more)


def test_what_slots_cannot_share_serves_the_next_cell_of_a_slot(machine):
    """The gradient of a smoothed loss has an AddN."""
    smoothed = {"workload.fixed": {"label_smoothing": 0.1}}
    first, second, *others = networks(machine, *studies(**smoothed))
    assert first is not second
    assert others == [first, second]


@pytest.mark.parametrize(
    "values",
    [
        {"workload.network_arguments": {"widths": (8,)}},
        {"workload.optimizer": "adam"},
        {"workload.fixed": {"l2_penalty": 0.1}},
        {"goal.threshold": 0.5, "sweep.evaluation_mode": "goal"},
        {"workload.step_budget": 41, "workload.learning_rate_schedule": "linear"},
    ],
    ids=lambda values: next(iter(values)),
)
@pytest.mark.usefixtures("_untraced")
def test_cells_of_another_kind_are_not(values):
    machine = Resources.of_this_machine(2, "one_device")
    (first, _), (_, other) = studies(3), studies(3, **values)
    ours, _, theirs, _ = networks(machine, first, other)
    assert theirs is not ours


@pytest.mark.parametrize("is_small", [True, False])
def test_cells_of_one_batch_size_share_a_small_program_without_lanes(
    machine, monkeypatch, is_small
):
    monkeypatch.setattr(resources, "_KEPT", 1 << 22 if is_small else 0)
    small, large, other, _ = studies(1, **{"sweep.seeds": (0, 1)})
    first, _, second, _, third, _ = networks(machine, small, other, large)
    assert (first is second) == is_small
    assert second is not third


def test_own_code_is_looked_at_by_the_first_slot_of_the_first_batch_size_alone(
    monkeypatch,
):
    looked, machine = [], Resources.of_this_machine(2, "one_device")

    @contextlib.contextmanager
    def look():
        looked.append(True)
        yield

    monkeypatch.setattr(program, "arguments_alone", look)
    monkeypatch.setattr(own_code, "is_own", lambda study, dataset: True)
    batch_norm = {"workload.network": "mlp_batch_norm"}
    found = networks(machine, *studies(**batch_norm))
    assert len({id(network) for network in found}) == 4
    assert looked == [True]


WIDE = {"workload.network_arguments": {"widths": (2048,)}}


@pytest.mark.parametrize(
    ("lanes", "placement", "values", "expected"),
    [
        (0, "auto", {}, (3, "device")),
        (3, "auto", {}, (3, "device")),
        (1, "auto", {}, (1, "stream")),
        (0, "auto", WIDE, (1, "stream")),
        (0, "stream", {}, (1, "stream")),
    ],
)
@pytest.mark.usefixtures("_untraced")
def test_no_free_memory_decides_lanes(monkeypatch, lanes, placement, values, expected):
    monkeypatch.setattr(resources, "free_memory", lambda: 2e6)
    short = Resources.of_this_machine(1, "one_device")
    short.data_placement = placement
    study = studies(lanes, **values)[0]
    [made] = short.programs(study, data.load_for(study.workload, None))
    assert (made.lanes, made.data.placement) == expected


def test_lanes_of_streamed_data_are_refused(machine, monkeypatch):
    monkeypatch.setattr(machine, "data_placement", "stream")
    with pytest.raises(UserError, match="has 3 lanes.* leave out --data_placement"):
        networks(machine, studies(3)[0])
