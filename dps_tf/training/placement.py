"""Where does a data set lie while it is trained on? No placement changes a result."""

from __future__ import annotations

import tensorflow as tf

from dps_tf.core.errors import UserError, near_matches
from dps_tf.data.dataset import Dataset, Examples
from dps_tf.training.device_data import DeviceData
from dps_tf.training.placed_data import PlacedData
from dps_tf.training.streamed_data import StreamedData

PLACEMENTS = ("auto", "device", "stream")
DATA_SHARE = 0.25
"""Of a device's free memory, what a data set may take there under `auto`. Activations
may take half of it; the rest is for weights, slots, and whatever else runs."""
UNTOLD_MEMORY = 8 * 2**30
"""Bytes that an accelerator is taken to have: TensorFlow tells what is in use there,
and not how much there is. No Cloud TPU core has less."""


def check(placement: str) -> None:
    """Raises UserError for a placement that is none."""
    if placement not in PLACEMENTS:
        raise UserError(
            f"data placement {placement!r} is unknown: "
            f"{near_matches(str(placement), PLACEMENTS)}."
        )


def place(
    dataset: Dataset,
    strategy: tf.distribute.Strategy,
    placement: str = "auto",
    host_memory: float = 0.0,
) -> DeviceData | StreamedData:
    """Returns a data set for the devices of a strategy.

    A group of processes streams as soon as one of them has to.

    Args:
        dataset: on the host.
        strategy: whose replicas read it.
        placement: `device`, `stream`, or `auto`: on the device where it fits.
        host_memory: bytes that the host has to spare, for `auto`; CPU devices hold data
            there.

    Raises:
        UserError: there is no such placement.
    """
    check(placement)
    fits = goes_on_devices(dataset, strategy, placement, host_memory)
    if _all_of_group(fits, strategy):
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
    """Returns what a user is told of where data lie; nothing where that is usual."""
    if data.placement == "device":
        return ""
    megabytes = example_bytes(dataset) / 1e6
    return f"{dataset.name}: {megabytes:.1f} MB, streamed from the host"


def example_bytes(dataset: Dataset) -> int:
    """Returns what the examples of a data set take."""
    test = 0 if dataset.test is None else _size(dataset.test)
    return _size(dataset.step_examples) + _size(dataset.validation) + test


def held_bytes(dataset: Dataset) -> int:
    """Returns what a data set takes on a device at most."""
    # The validation split lies there twice where evaluations stop at the goal; beside a
    # test set, as much of the training split is evaluated.
    return example_bytes(dataset) + (1 if dataset.test is None else 2) * _size(
        dataset.validation
    )


def _size(examples: Examples) -> int:
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
    """Returns the bytes in use on a device; 0 where TensorFlow does not tell."""
    spec = tf.DeviceSpec.from_string(device)
    try:
        name = f"{spec.device_type}:{spec.device_index}"
        return int(tf.config.experimental.get_memory_info(name)["current"])
    except (ValueError, tf.errors.OpError):
        return 0


def _all_of_group(fits: bool, strategy: tf.distribute.Strategy) -> bool:
    """Returns whether data are for the devices in all processes of a group.

    These exchange something at every piece of data, so they have to cut it equally.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return fits

    def vote() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        vote = tf.constant(float(fits))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, vote)

    @tf.function(autograph=False)
    def count() -> tf.Tensor:
        votes = strategy.experimental_local_results(strategy.run(vote))
        return votes[0]

    return bool(count() == strategy.num_replicas_in_sync)
