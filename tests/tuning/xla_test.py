"""XLA and deterministic operations belong to a study: recorded, kept, and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models import NETWORKS
from dps_tf.store import LocalFiles, StudyReader, SweepLayout
from dps_tf.training import strategy as strategies
from dps_tf.tuning import own_code
from dps_tf.tuning.options import Options
from tests import interpreter

VALUES = {
    "sweep.batch_sizes": (16,),
    "workload.points": 2,
    "workload.step_budget": 4,
    # Every slice is one step: XLA compiles once for every length.
    "evaluation.examples": 16,
}


def on_gpus(monkeypatch):
    """Lets a sweep take its devices for GPUs."""
    cpus = strategies.kind(strategies.build("one_device"))
    gpus = replace(cpus, xla_pays=True, lanes_pay=False, calls_pay=False)
    monkeypatch.setattr(strategies, "kind", lambda strategy: gpus)


def run(folder, **options):
    sweep = dps_tf.sweep("smoke/quickstart", values=VALUES)
    return dps_tf.run(sweep, folder, slots=1, **options).curves


def recorded(folder):
    [name] = LocalFiles().list_names(SweepLayout(str(folder)).cells)
    cell = SweepLayout(str(folder)).cell(name)
    return StudyReader(LocalFiles(), cell).specification


def test_where_all_devices_are_gpus_steps_are_compiled_and_a_study_keeps_them(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        on_gpus(patched)
        compiled = run(tmp_path / "xla", lanes=1)
    plain = run(tmp_path / "plain", lanes=1)
    name = "validation/cross_entropy"
    np.testing.assert_allclose(compiled[name], plain[name], rtol=1e-4)
    assert not np.array_equal(compiled[name], plain[name])
    assert recorded(tmp_path / "xla").xla is True
    assert recorded(tmp_path / "plain").xla is False
    longer = {**VALUES, "workload.points": 3}
    sweep = dps_tf.sweep("smoke/quickstart", values=longer)
    with pytest.raises(UserError, match="xla: stored True, now False"):
        dps_tf.run(sweep, tmp_path / "xla", slots=1, xla="off")
    dps_tf.run(sweep, tmp_path / "xla", slots=1)
    assert recorded(tmp_path / "xla").xla is True


@pytest.fixture
def _uncompiled(monkeypatch):
    """Lets the MLP have an operation for which XLA has no kernel."""
    original = NETWORKS["mlp"]

    def square(x):
        return tf.stop_gradient(x[:2, :2])

    def mlp(input_shape, classes, **arguments):
        plain = original(input_shape, classes, **arguments)
        one = keras.layers.Lambda(
            lambda x: x + 0 * tf.math.real(tf.linalg.eigvals(square(x)))[0]
        )
        return keras.Model(plain.input, one(plain.output))

    monkeypatch.setitem(NETWORKS._entries, "mlp", mlp)
    # To look at it as at code of a user's own would take longer.
    monkeypatch.setattr(own_code, "is_own", lambda *_: False)


@pytest.mark.usefixtures("_uncompiled")
def test_what_it_cannot_compile_is_trained_without_it_or_refused(
    tmp_path, monkeypatch, capsys
):
    with pytest.raises(UserError, match=r"cannot compile it: .*--xla=off"):
        run(tmp_path / "asked", xla="on")
    on_gpus(monkeypatch)
    run(tmp_path / "auto")
    assert recorded(tmp_path / "auto").xla is False
    assert "without XLA, which cannot compile it" in capsys.readouterr().out


def test_an_unknown_value_is_refused():
    with pytest.raises(UserError, match="--xla"):
        Options("sweep", xla="yes")


SCRIPT = """
import sys, dps_tf
from tensorflow.python.framework import config
sweep = dps_tf.sweep("smoke/quickstart", values={})
dps_tf.run(sweep, sys.argv[1], deterministic=True)
assert config.is_op_determinism_enabled()
"""


def test_a_deterministic_study_has_deterministic_operations(tmp_path):
    # They stay so until the process ends.
    text = SCRIPT.format(VALUES)
    done = interpreter.run(["-c", text, tmp_path / "sweep"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert recorded(tmp_path / "sweep").deterministic is True
