"""What one trial takes, against counts by hand, and what is said where it is too much.

No accelerator is here: how much memory one has is told by stand-ins.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from dps_tf import models, optim
from dps_tf.core import UserError
from dps_tf.data import Dataset, Examples
from dps_tf.training import Task, device_memory
from dps_tf.training.device_memory import TrialMemory

# (5*5*1 + 1) * 32 + (5*5*32 + 1) * 64 + (4*4*64 + 1) * 10
PARAMETERS = 832 + 51_264 + 10_250
# Image, convolution and pool twice, flat, logits: 28*28, 24*24*32, 12*12*32, ...
OUTPUTS = 784 + 18_432 + 4_608 + 4_096 + 1_024 + 1_024 + 10
TPU = "/job:localhost/replica:0/task:0/device:TPU:0"
GPU = "/job:localhost/replica:0/task:0/device:GPU:1"


def simple_cnn(optimizer: str = "momentum", precision: str = "float32") -> Task:
    empty = Examples(np.zeros((1, 28, 28, 1), np.float32), np.zeros(1, np.int32))
    return Task(
        lambda: models.in_precision(
            models.build("simple_cnn", (28, 28, 1), 10), precision
        ),
        functools.partial(optim.build, optimizer),
        Dataset("images", empty, empty, 10, "", "none"),
    )


@pytest.mark.parametrize(
    ("optimizer", "slots"), [("sgd", 0), ("momentum", 1), ("adam", 2)]
)
def test_parts_are_those_counted_by_hand(optimizer, slots):
    assert PARAMETERS == 62_346
    found = device_memory.of_trial(simple_cnn(optimizer), 64, data=1000)
    assert found == TrialMemory(
        variables=2 * 4 * PARAMETERS,  # weights and masks
        slots=slots * 4 * PARAMETERS,
        gradients=4 * PARAMETERS,
        activations=64 * 4 * OUTPUTS,
        data=1000,
    )
    assert found.total == (3 + slots) * 249_384 + 7_674_368 + 1000


def test_outputs_in_bfloat16_take_half_and_variables_as_much():
    plain = device_memory.of_trial(simple_cnn(), 64)
    half = device_memory.of_trial(simple_cnn(precision="mixed_bfloat16"), 64)
    # The image and the logits stay float32.
    assert half.activations == 64 * (2 * (OUTPUTS - 784 - 10) + 4 * (784 + 10))
    assert (half.variables, half.slots) == (plain.variables, plain.slots)
    assert half.gradients == plain.gradients


def test_estimate_is_made_on_the_host():
    placed = []

    def network():
        model = models.build("simple_cnn", (28, 28, 1), 10)
        placed.extend(variable.device for variable in model.weights)
        return model

    task = simple_cnn()
    with tf.device("/device:CPU:1"):
        device_memory.of_trial(Task(network, task.optimizer, task.dataset), 1)
    assert placed and all(name.endswith("CPU:0") for name in placed)


NEEDED = TrialMemory(498_768, 249_384, 249_384, 7_674_368)


def test_what_does_not_fit_is_told_with_both_sizes_and_ways_out(monkeypatch):
    monkeypatch.setattr(device_memory, "memory_of", lambda device: 8_000_000)
    with pytest.raises(UserError) as refused:
        device_memory.check_trial("mnist-b64", NEEDED, TPU, "--split=data")
    assert str(refused.value) == (
        "one trial of mnist-b64 takes about 8.7 MB (variables 0.5 MB, slots 0.2 MB, "
        f"gradients 0.2 MB, activations 7.7 MB), and {TPU} has 8.0 MB: share each "
        "batch by --split=data, or choose smaller batches."
    )
    with_data = TrialMemory(0, 0, 0, 0, data=3_000_000_000)
    with pytest.raises(UserError) as refused:
        device_memory.check_trial("mnist-b64", with_data, GPU, "")
    assert str(refused.value) == (
        f"one trial of mnist-b64 takes about 3.0 GB (data 3.0 GB), and {GPU} has 8.0 "
        "MB: choose smaller batches, or leave the data with the host by "
        "--data_placement=stream."
    )


def test_what_just_fits_is_not_refused(monkeypatch):
    monkeypatch.setattr(device_memory, "memory_of", lambda device: NEEDED.total)
    assert device_memory.check_trial("mnist-b64", NEEDED, TPU, "--split=data") == ""
    monkeypatch.setattr(device_memory, "memory_of", lambda device: NEEDED.total - 1)
    with pytest.raises(UserError):
        device_memory.check_trial("mnist-b64", NEEDED, TPU, "--split=data")


@pytest.mark.parametrize(
    ("kind", "gibibytes"),
    [("v2-8", 8), ("v3-32", 16), ("v4-8", 32), ("v5litepod-4", 16), ("v5p-8", 95)],
)
def test_core_of_a_tpu_is_known_by_its_type(monkeypatch, kind, gibibytes):
    monkeypatch.setenv(device_memory.TPU_TYPE, kind)
    assert device_memory.memory_of(TPU) == gibibytes * 2**30


def test_nothing_is_checked_and_that_is_told_where_nobody_knows(monkeypatch):
    monkeypatch.delenv(device_memory.TPU_TYPE, raising=False)
    large = TrialMemory(10**15, 0, 0, 0)
    told = device_memory.check_trial("mnist-b64", large, TPU, "--split=data")
    assert TPU in told and "not checked" in told
    monkeypatch.setenv(device_memory.TPU_TYPE, "v99-8")
    assert device_memory.memory_of(TPU) is None
    assert device_memory.memory_of("/device:CPU:0") is None


def test_memory_of_a_gpu_is_the_limit_that_tensorflow_tells(monkeypatch):
    devices = [
        SimpleNamespace(name=name, device_type=kind, memory_limit_bytes=limit)
        for name, kind, limit in (
            ("/job:localhost/replica:0/task:0/device:GPU:0", "GPU", 7_000),
            (GPU, "GPU", 9_000),
            ("/job:localhost/replica:0/task:0/device:CPU:1", "CPU", 256 << 20),
        )
    ]
    monkeypatch.setattr(tf.compat.v1.Session, "list_devices", lambda self: devices)
    device_memory._gpu_memory.cache_clear()
    try:
        assert device_memory.memory_of(GPU) == 9_000
        assert device_memory.memory_of(GPU.replace("GPU:1", "GPU:2")) is None
    finally:
        device_memory._gpu_memory.cache_clear()
