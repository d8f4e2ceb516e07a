"""Placement of a data set: on the devices if it fits there, else on the host.

No result depends on the placement.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import PLACEMENTS, check_known
from dps_tf.data import Dataset, Examples
from dps_tf.training.device_data import DeviceData, PlacedData
from dps_tf.training.strategy import kind
from dps_tf.training.streamed_data import StreamedData

DATA_SHARE = 0.25
"""Share of a device's free memory that a data set may take under `auto`. Half of the
memory is for activations; the rest is for weights, slots and other programs."""
ASSUMED_MEMORY = 8 * 2**30
"""Bytes that an accelerator is assumed to have: TensorFlow reports the bytes in use and
not the size of the memory. No Cloud TPU core has less."""


def place(
    dataset: Dataset,
    strategy: tf.distribute.Strategy,
    placement: str = "auto",
    host_memory: float = 0.0,
) -> PlacedData:
    """Returns a data set that is placed for the devices of a strategy.

    Args:
        dataset: the data set on the host.
        strategy: strategy of the replicas that read the data.
        placement: `device`, `stream`, or `auto` (on the device if the data fit there).
        host_memory: free bytes of the host's memory, which CPU devices use; read for
            `auto` only.

    Raises:
        UserError: `placement` is none of PLACEMENTS.
    """
    check_known("data placement", placement, PLACEMENTS)
    if placement == "device" or (
        placement == "auto" and fits_devices(dataset, strategy, host_memory)
    ):
        return DeviceData(dataset, strategy)
    return StreamedData(dataset, strategy)


def explain(placement: str) -> str:
    """Returns a sentence for the user on where a placement puts data."""
    if placement == "auto":
        return (
            "data: on the device where lanes read them, or a set takes at most "
            f"{DATA_SHARE:.0%} of its free memory; else streamed from the host"
        )
    where = {"device": "on the device", "stream": "streamed from the host"}
    return f"data: {where[placement]}"


def note(dataset: Dataset, data: PlacedData) -> str:
    """Returns a note for the user about streamed data, or '' for data on the device."""
    if data.placement == "device":
        return ""
    megabytes = example_bytes(dataset) / 1e6
    return f"{dataset.name}: {megabytes:.1f} MB, streamed from the host"


def example_bytes(dataset: Dataset) -> int:
    """Returns the bytes that the examples of a data set take."""
    test = 0 if dataset.test is None else _bytes(dataset.test)
    return _bytes(dataset.step_examples) + _bytes(dataset.validation) + test


def held_bytes(dataset: Dataset) -> int:
    """Returns the most bytes that a data set takes on a device."""
    # Where evaluations stop at the goal, the device holds the validation split twice.
    # With a test set, an equally large part of the training split is evaluated too.
    copies = 1 if dataset.test is None else 2
    return example_bytes(dataset) + copies * _bytes(dataset.validation)


def _bytes(examples: Examples) -> int:
    return int(examples.inputs.nbytes + examples.labels.nbytes)


def fits_devices(
    dataset: Dataset, strategy: tf.distribute.Strategy, host_memory: float
) -> bool:
    """Returns whether each device of this process can hold a copy of a data set.

    The copies of all CPU devices together may take DATA_SHARE of the host's free
    memory, and the copy of each other device DATA_SHARE of that device's free memory.
    """
    needed, devices = held_bytes(dataset), strategy.extended.worker_devices
    if kind(strategy).on_host:
        return needed * len(devices) <= DATA_SHARE * host_memory
    return all(needed <= DATA_SHARE * (ASSUMED_MEMORY - _in_use(d)) for d in devices)


def _in_use(device: str) -> int:
    """Returns the bytes in use on a device; 0 where TensorFlow does not report them."""
    spec = tf.DeviceSpec.from_string(device)
    try:
        name = f"{spec.device_type}:{spec.device_index}"
        return int(tf.config.experimental.get_memory_info(name)["current"])
    except (ValueError, tf.errors.OpError):
        return 0


def output_bytes(model: keras.Model) -> int:
    """Returns the bytes that the outputs of all layers take for one example."""
    return sum(
        math.prod(side or 1 for side in shape[1:])
        * int(tf.as_dtype(layer.compute_dtype or "float32").size)
        for layer in model.layers
        # A layer that is used twice may have outputs of two shapes.
        for use in range(len(layer._inbound_nodes))
        for shape in _shapes(layer.get_output_shape_at(use))
    )


def _shapes(shape: Any) -> list[tuple[int | None, ...]]:
    """Returns the output shapes of a layer, which may have several, as a list."""
    return shape if isinstance(shape, list) else [shape]
