"""Does one trial fit the memory of the device that it is given?

A plain count, made before anything is put on the device: variables, optimizer slots and
gradients, the outputs of all layers for one batch, and the data where they lie there.
It is an estimate and no bound: TensorFlow's workspace comes on top, and what a compiler
fuses is not kept.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.errors import UserError
from dps_tf.training.task import Task

TPU_TYPE = "TPU_ACCELERATOR_TYPE"
"""Environment variable in which a TPU's host names its type, such as `v3-8`."""
_TPU_GIBIBYTES = {"v2": 8, "v3": 16, "v4": 32, "v5litepod": 16, "v5p": 95, "v6e": 32}
"""Memory of a core by the beginning of its type: half of the chip's for v2 and v3, all
of it for the others. Written from memory of Google's pages; v4's alone was looked up.
TensorFlow itself gives every type the same number."""


@dataclass(frozen=True)
class TrialMemory:
    """What a trial takes on its device, in bytes.

    Attributes:
        variables: weights, and a mask per trainable one.
        slots: of the optimizer.
        gradients: one per trainable weight.
        activations: outputs of all layers for one batch.
        data: the data set, where it lies on the device.
    """

    variables: int
    slots: int
    gradients: int
    activations: int
    data: int = 0

    @property
    def total(self) -> int:
        """All of it together."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        """Returns the parts that are there, for a message."""
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} {_size(value)}" for name, value in parts if value)


def of_trial(task: Task, batch_size: int, data: int = 0) -> TrialMemory:
    """Returns the estimate for one trial whose whole batch is on one device.

    Args:
        task: its network is built once more, on the host.
        batch_size: examples per step.
        data: bytes of the data set that lie on the device.
    """
    with tf.device("/device:CPU:0"):
        network = task.network()
        model = task.pruning_wrapper(network).model if task.pruning_wrapper else network
        slots = task.optimizer().slot_bytes(model.trainable_variables)
    trained = _bytes_of(model.trainable_variables)
    return TrialMemory(
        variables=_bytes_of(model.weights) + trained,
        slots=slots,
        gradients=trained,
        activations=output_bytes(model) * batch_size,
        data=data,
    )


def output_bytes(model: keras.Model) -> int:
    """Returns the bytes that the outputs of all layers take for one example."""
    return sum(
        math.prod(side or 1 for side in shape[1:])
        * int(tf.as_dtype(layer.compute_dtype or "float32").size)
        for layer in model.layers
        for shape in _shapes(layer.output_shape)
    )


def _shapes(shape: Any) -> list[tuple[int | None, ...]]:
    """Returns the output shapes of a layer, which may have several, as a list."""
    return shape if isinstance(shape, list) else [shape]


def _bytes_of(variables: Iterable[tf.Variable]) -> int:
    return sum(math.prod(v.shape) * int(v.dtype.size) for v in variables)


def device_memory(device: str) -> int | None:
    """Returns the bytes that a device has, or None where nobody tells.

    Not run on a GPU or TPU by us.

    Args:
        device: name of a logical device.
    """
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "TPU":
        kind = os.environ.get(TPU_TYPE, "").partition("-")[0]
        gibibytes = _TPU_GIBIBYTES.get(kind)
        return None if gibibytes is None else gibibytes * 2**30
    if spec.device_type == "GPU":
        return _gpu_memory().get(spec.device_index)
    return None


@functools.cache
def _gpu_memory() -> dict[int | None, int]:
    """Returns what TensorFlow may take of each GPU, by its number."""
    # The one public call that tells: tf.config knows what is in use, and no limit.
    options = tf.compat.v1.ConfigProto()
    options.gpu_options.allow_growth = True
    try:
        with tf.compat.v1.Session(graph=tf.Graph(), config=options) as session:
            devices = session.list_devices()
    except (RuntimeError, ValueError, tf.errors.OpError):
        return {}
    return {
        tf.DeviceSpec.from_string(device.name).device_index: device.memory_limit_bytes
        for device in devices
        if device.device_type == "GPU" and device.memory_limit_bytes > 0
    }


def check(name: str, needed: TrialMemory, device: str, sharing: str) -> str:
    """Returns what a user is told where nothing can be checked; else nothing.

    Args:
        name: of the cell, for the message.
        needed: of one of its trials.
        device: where that would be trained.
        sharing: the option by which several devices share each batch; empty where
            there is one device.

    Raises:
        UserError: the trial does not fit.
    """
    has = device_memory(device)
    if has is None:
        return (
            f"memory: nobody tells how much {device} has, so that it is not checked "
            "whether a trial fits"
        )
    if needed.total <= has:
        return ""
    ways = [f"share each batch by {sharing}"] if sharing else []
    ways.append("choose smaller batches")
    if needed.data:
        ways.append("leave the data with the host by --data_placement=stream")
    raise UserError(
        f"one trial of {name} takes about {_size(needed.total)} ({needed}), and "
        f"{device} has {_size(has)}: {', or '.join(ways)}."
    )


def _size(count: int) -> str:
    """Returns bytes in words.

    >>> _size(1_500_000_000), _size(249_384)
    ('1.5 GB', '0.2 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
