"""A pruned sweep whose batches two devices share: race, masks, replay, measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import dps_tf
from dps_tf.core import UserError
from dps_tf.probing import Measurer, ProgramCache, Wanted
from dps_tf.store import LocalFiles, SweepLayout
from dps_tf.training import strategy as strategies
from dps_tf.tuning.resources import Resources
from tests.made_up import small_sweeps

BINDINGS = (
    *small_sweeps.BINDINGS,
    "sweep.sparsities = (0.5,)",
    "sweep.sparsity_methods = ('snip',)",
)
CELL = "blobs-nesterov-snip-seed0-b8-s0.5"


def machine(replicas: int) -> Resources:
    if replicas == 1:
        return Resources([tf.distribute.OneDeviceStrategy("/device:CPU:0")], 1e9)
    devices = tuple(f"CPU:{i}" for i in range(replicas))
    return Resources([strategies.build("mirrored", devices=devices)], 1e9)


def measured(layout: SweepLayout, resources: Resources) -> pd.DataFrame:
    measurer = Measurer(
        LocalFiles(), layout, Wanted(40, 3), programs=ProgramCache(resources)
    )
    return measurer.measure(CELL, [0])


@pytest.fixture(scope="module", name="sweeps")
def _sweeps(tmp_path_factory):
    """The same sweep on one device and on two."""
    found = {}
    for replicas in (1, 2):
        folder = str(tmp_path_factory.mktemp(f"on {replicas}") / "sweep")
        sweep = small_sweeps.configured(BINDINGS)
        small_sweeps.launched(Path(folder), sweep, machine(replicas))
        found[replicas] = SweepLayout(folder)
    return found


@pytest.mark.multi_device
def test_race_and_masks_are_those_of_one_device(sweeps):
    one, two = (dps_tf.load(sweeps[n].root) for n in (1, 2))
    pd.testing.assert_frame_equal(one.trials, two.trials)
    assert set(one.trials["outcome"]) > {"complete"}
    losses = ["validation/cross_entropy", "train/loss"]
    pd.testing.assert_frame_equal(
        one.curves.drop(columns=losses), two.curves.drop(columns=losses)
    )
    np.testing.assert_allclose(
        one.curves[losses], two.curves[losses], rtol=0, atol=1e-5
    )


@pytest.mark.multi_device
def test_smoothness_and_noise_scale_are_those_of_one_device(sweeps):
    one, two = (measured(sweeps[n], machine(n)) for n in (1, 2))
    assert len(one) == 3 * 4 and one["value"].notna().all()
    pd.testing.assert_frame_equal(one.drop(columns="value"), two.drop(columns="value"))
    # Differences of gradients at weights that differ in their last bits.
    np.testing.assert_allclose(one["value"], two["value"], rtol=1e-2)


@pytest.mark.multi_device
def test_a_replay_on_other_devices_says_where_training_was(sweeps):
    folder = sweeps[2]
    with pytest.raises(UserError, match=r"replicas.*measure it there, by the same"):
        Measurer(
            LocalFiles(), folder, Wanted(40, 2), programs=ProgramCache(machine(1))
        ).measure(CELL, [0])
