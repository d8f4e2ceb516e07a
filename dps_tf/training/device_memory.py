"""What fits the memory of a device: a data set that lies there, and a trial.

Where a data set lies changes no result. What a trial takes is a plain count, made
before anything is put on the device: variables, optimizer slots and gradients, the
outputs of all layers for one batch, and the data where they lie there. It is an
estimate and no bound: TensorFlow's workspace comes on top, and what a compiler fuses is
not kept.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError, check_known
from dps_tf.data import Dataset, Examples
from dps_tf.training.device_data import DeviceData, PlacedData
from dps_tf.training.program import Task
from dps_tf.training.streamed_data import StreamedData

PLACEMENTS = ("auto", "device", "stream")
DATA_SHARE = 0.25
"""Share of a device's free memory that a data set may take under `auto`. Half of the
memory is for activations; the rest is for weights, slots and other programs."""
UNTOLD_MEMORY = 8 * 2**30
"""Bytes that an accelerator is assumed to have: TensorFlow reports the bytes in use and
not the size of the memory. No Cloud TPU core has less."""
TPU_TYPE = "TPU_ACCELERATOR_TYPE"
"""Environment variable in which a TPU's host names its type, such as `v3-8`."""
_TPU_GIBIBYTES = {"v2": 8, "v3": 16, "v4": 32, "v5litepod": 16, "v5p": 95, "v6e": 32}
"""Memory of a core by the beginning of its type: half of the chip's for v2 and v3, all
of it for the others. Written from memory of Google's pages; v4's alone was looked up.
TensorFlow itself gives every type the same number."""


def place(
    dataset: Dataset,
    strategy: tf.distribute.Strategy,
    placement: str = "auto",
    host_memory: float = 0.0,
) -> PlacedData:
    """Returns a data set for the devices of a strategy.

    Args:
        dataset: on the host.
        strategy: whose replicas read it.
        placement: `device`, `stream`, or `auto`: on the device where it fits.
        host_memory: bytes that the host has to spare, for `auto`; CPU devices hold data
            there.

    Raises:
        UserError: there is no such placement.
    """
    check_known("data placement", placement, PLACEMENTS)
    if goes_on_devices(dataset, strategy, placement, host_memory):
        return DeviceData(dataset, strategy)
    return StreamedData(dataset, strategy)


def goes_on_devices(
    dataset: Dataset,
    strategy: tf.distribute.Strategy,
    placement: str,
    host_memory: float,
) -> bool:
    """Returns whether this process would put a data set on its devices; see `place`."""
    return placement == "device" or (
        placement == "auto" and fits_devices(dataset, strategy, host_memory)
    )


def explain(placement: str) -> str:
    """Returns the sentence that says where data will lie."""
    if placement == "auto":
        return (
            f"data: on the device where a set takes at most {DATA_SHARE:.0%} of its "
            "free memory, else streamed from the host"
        )
    where = {"device": "on the device", "stream": "streamed from the host"}
    return f"data: {where[placement]}"


def note(dataset: Dataset, data: PlacedData) -> str:
    """Returns a note for the user on where the data lie, '' where they lie as usual."""
    if data.placement == "device":
        return ""
    megabytes = example_bytes(dataset) / 1e6
    return f"{dataset.name}: {megabytes:.1f} MB, streamed from the host"


def example_bytes(dataset: Dataset) -> int:
    """Returns what the examples of a data set take."""
    test = 0 if dataset.test is None else _bytes(dataset.test)
    return _bytes(dataset.step_examples) + _bytes(dataset.validation) + test


def held_bytes(dataset: Dataset) -> int:
    """Returns what a data set takes on a device at most."""
    # The validation split lies there twice where evaluations stop at the goal; beside a
    # test set, as much of the training split is evaluated.
    again = 1 if dataset.test is None else 2
    return example_bytes(dataset) + again * _bytes(dataset.validation)


def _bytes(examples: Examples) -> int:
    return int(examples.inputs.nbytes + examples.labels.nbytes)


def fits_devices(
    dataset: Dataset, strategy: tf.distribute.Strategy, host_memory: float
) -> bool:
    """Returns whether all devices of this process can hold a data set each.

    It may take DATA_SHARE of what is free: of the host's memory for all CPU devices
    together, of its own memory for each other device.
    """
    needed = held_bytes(dataset)
    devices = strategy.extended.worker_devices
    others = [device for device in devices if "CPU" not in device.upper()]
    on_host = needed * (len(devices) - len(others))
    return on_host <= DATA_SHARE * host_memory and all(
        needed <= DATA_SHARE * (UNTOLD_MEMORY - _in_use(device)) for device in others
    )


def _in_use(device: str) -> int:
    """Returns the bytes in use on a device; 0 where TensorFlow does not report them."""
    spec = tf.DeviceSpec.from_string(device)
    try:
        name = f"{spec.device_type}:{spec.device_index}"
        return int(tf.config.experimental.get_memory_info(name)["current"])
    except (ValueError, tf.errors.OpError):
        return 0


class TrialMemory(NamedTuple):
    """What a trial takes on its device, in bytes."""

    variables: int  # weights, and a mask per trainable one
    slots: int  # of the optimizer
    gradients: int
    activations: int  # outputs of all layers for one batch
    data: int = 0  # the data set, where it lies on the device

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return sum(self)

    def __str__(self) -> str:
        """Returns the parts that are there, for a message."""
        parts = zip(self._fields, self, strict=True)
        return ", ".join(f"{name} {_size(value)}" for name, value in parts if value)


def of_trial(task: Task, batch_size: int, data: int = 0) -> TrialMemory:
    """Returns the estimate for one trial whose whole batch is on one device.

    `data`: bytes of the data set that lie there. The network is built once more, on the
    host.
    """
    with tf.device("/device:CPU:0"):
        network = task.network()
        model = task.pruning_wrapper(network).model if task.pruning_wrapper else network
        slots = task.optimizer().slot_bytes(model.trainable_variables)
    trained = _variable_bytes(model.trainable_variables)
    return TrialMemory(
        variables=_variable_bytes(model.weights) + trained,
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


def _variable_bytes(variables: Iterable[tf.Variable]) -> int:
    return sum(math.prod(v.shape) * int(v.dtype.size) for v in variables)


def memory_of(device: str) -> int | None:
    """Returns the bytes of memory of a logical device, or None where unreported.

    Not run on a GPU or TPU by us.
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


def check_trial(name: str, needed: TrialMemory, device: str, sharing: str) -> str:
    """Returns a note for the user where nothing can be checked, else ''.

    Args:
        name: of the cell.
        needed: of one of its trials.
        device: where that would be trained.
        sharing: the option by which several devices share each batch; empty where
            there is one device.

    Raises:
        UserError: the trial does not fit.
    """
    has = memory_of(device)
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
