"""Devices, threads and the rest of the environment that the bits of a trial depend on.

All tf.distribute strategies are made here.
"""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import context
from tensorflow.python.framework.config import is_op_determinism_enabled

from dps_tf._keras import keras
from dps_tf.core import UserError, check_known, processors

# Instruction sets for which the kernels of TensorFlow's CPU build differ.
_INSTRUCTION_SETS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16")

_VARIABLES = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "TF_DETERMINISTIC_OPS",
    "TF_CUDNN_DETERMINISTIC",
    "TF_CUDNN_USE_AUTOTUNE",
)
"""Environment variables by which TensorFlow or its libraries compute other bits."""


def configure_threads(intra_op: int, inter_op: int) -> int:
    """Sets TensorFlow's numbers of threads, unless it has started in this process.

    Returns the number of threads inside one operation that TensorFlow has, which is
    another than `intra_op` where it was started with another.

    On GPUs it also has memory taken as it is needed, so that processes can share one.
    It turns TensorFloat-32 off, TensorFlow's default, which would round the factors of
    float32 products to 10 bits.

    Args:
        intra_op: threads inside one operation. They change the bits of a trial, so
            they belong to the specification of a study. With 1, results do not
            depend on how many trials run side by side.
        inter_op: threads over operations; 0 leaves the choice to TensorFlow. They
            change no bits.

    Raises:
        UserError: a graph or a strategy of the caller is open, or tf.debugging is on.
    """
    if tf.distribute.has_strategy() or not tf.executing_eagerly():
        raise UserError(
            "this is called within a graph or a strategy.scope(), and trials have "
            "graphs and strategies of their own: call it outside."
        )
    if context().op_callbacks:
        raise UserError(
            "tf.debugging checks or records each operation here, and would be part of "
            "each trial: call tf.debugging.disable_check_numerics() before."
        )
    # Each slot makes its own functions at the same lines of code. TensorFlow would warn
    # of one function that is traced too often.
    tf.get_logger().setLevel("ERROR")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in tf.config.list_physical_devices("GPU"):
        _grow_memory(gpu)
    with contextlib.suppress(RuntimeError):  # It has started with other threads.
        tf.config.threading.set_intra_op_parallelism_threads(intra_op)
        tf.config.threading.set_inter_op_parallelism_threads(inter_op)
    return intra_op_threads()


def intra_op_threads() -> int:
    """Returns TensorFlow's number of threads inside one operation in this process."""
    # Told 0, TensorFlow takes the number of this variable, or all processors.
    chosen = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    number = int(chosen) if chosen.isdecimal() else 0
    told: int = tf.config.threading.get_intra_op_parallelism_threads()
    return told or number or processors()


def environment(replicas: int = 1) -> dict[str, str]:
    """Returns the properties that decide a trial's bits beside its specification.

    Equal builds and instruction sets give equal bits on a CPU with one intra-op thread.
    `replicas` is the number of devices that share each batch: sums over batches round
    differently for different numbers.
    """
    options = sorted(tf.config.optimizer.get_experimental_options().items())
    return {
        "tensorflow": tf.version.VERSION,
        "tf_keras": keras.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instruction_sets": " ".join(_cpu_flags()),
        "settings": " ".join(
            [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
            + [f"jit={jit}" for jit in [tf.config.optimizer.get_jit()] if jit]
            + [f"{x}={on}" for x, on in options if on or not x.startswith("disable_")]
            + ["op_determinism=1"] * is_op_determinism_enabled()
        ),
        "replicas": str(replicas),
        "devices": " ".join(
            sorted({d.device_type for d in tf.config.list_physical_devices()})
        ),
    }


def _cpu_flags() -> list[str]:
    """Returns the names in _INSTRUCTION_SETS that this processor has.

    The list is empty where there is no /proc/cpuinfo.
    """
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return []
    lines = info.read_text(errors="replace").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return [name for name in _INSTRUCTION_SETS if name in flags.split()]


def build(name: str, *, devices: tuple[str, ...] = ()) -> tf.distribute.Strategy:
    """Returns a new strategy.

    Args:
        name: `one_device` (the first GPU, or the CPU), `mirrored` (all GPUs of this
            host, or the CPU's logical devices), or `tpu` (all cores of this host's
            TPU).
        devices: other devices for `one_device` and `mirrored`; by default as above.

    Raises:
        UserError: the name is none of these, or there is no TPU.
    """
    check_known("strategy", name, ("one_device", "mirrored", "tpu"))
    if name == "tpu":
        return tf.distribute.TPUStrategy(_local_tpu()[0])
    devices = devices or local_devices()
    if name == "mirrored":
        # On CPUs TensorFlow would use collectives. Their groups belong to the process,
        # so both strategies fail when a second one of another size is made.
        is_cpu = "CPU" in devices[0].upper()
        reduction = tf.distribute.ReductionToOneDevice() if is_cpu else None
        return tf.distribute.MirroredStrategy(list(devices), reduction)
    return tf.distribute.OneDeviceStrategy(devices[0])


def local_devices() -> tuple[str, ...]:
    """Returns the GPUs of this process, or its logical CPU devices."""
    for kind in ("GPU", "CPU"):
        devices = tf.config.list_logical_devices(kind)
        if devices:
            return tuple(f"/device:{kind}:{i}" for i in range(len(devices)))
    raise UserError("TensorFlow finds neither a GPU nor a CPU device.")


def _grow_memory(gpu: object) -> None:
    try:
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        # The device was initialized earlier, and works with either setting.
        if "initialized" not in str(error):
            raise


def build_cores() -> list[tf.distribute.Strategy]:
    """Returns a new strategy for each core of this host's TPU.

    This has not been run on a TPU. It follows TensorFlow's documentation of subsets of
    cores, and is tested with TensorFlow's own topology of a made-up TPU.

    Raises:
        UserError: there is no TPU.
    """
    resolver, topology = _local_tpu()
    return [
        tf.distribute.TPUStrategy(resolver, experimental_device_assignment=core)
        for core in single_cores(topology)
    ]


def single_cores(
    topology: tf.tpu.experimental.Topology,
) -> list[tf.tpu.experimental.DeviceAssignment]:
    """Returns an assignment of one replica to each core of a topology."""
    coordinates = topology.device_coordinates  # [tasks, cores of a task, mesh rank]
    return [
        tf.tpu.experimental.DeviceAssignment(topology, core[None, None, :])
        for core in coordinates.reshape(-1, coordinates.shape[-1])
    ]


def _local_tpu() -> tuple[Any, Any]:
    """Starts the TPU of this host; returns (its cluster resolver, its topology)."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    except (OSError, ValueError, tf.errors.OpError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
        raise UserError(
            f"no TPU was found for --strategy=tpu or tpu_cores ({reason}): use it "
            "on a TPU host with the tensorflow-tpu wheel, or choose another strategy."
        ) from error
    return resolver, topology


@dataclass(frozen=True)
class Kind:
    """What the devices of a strategy can do, and what pays on them.

    What was not measured on a kind of device does not pay there.

    Attributes:
        repeats: whether sums have a fixed order, so that trials repeat to the bit.
        on_host: whether they compute in the memory of the host.
        loops_inside: whether a loop over steps may stand inside `strategy.run`.
        is_compiled: whether XLA compiles whatever runs.
        xla_pays: whether XLA makes more steps a second, see `launch/README.md`.
        lanes_pay: whether small networks make more steps a second in lanes.
        calls_pay: whether steps do that are called by their loop, see `Loop`.
    """

    repeats: bool
    on_host: bool
    loops_inside: bool
    is_compiled: bool
    xla_pays: bool
    lanes_pay: bool
    calls_pay: bool


def kind(strategy: tf.distribute.Strategy) -> Kind:
    """Returns the kind of the devices of a strategy.

    >>> kind(tf.distribute.OneDeviceStrategy("/cpu:0")).lanes_pay
    True
    """
    devices = [device.upper() for device in strategy.extended.worker_devices]
    are_cpus = all("CPU" in device for device in devices)
    return Kind(
        repeats=are_cpus,
        on_host=are_cpus,
        # Replicas of a mirrored strategy are threads of this program. Their all-reduce
        # cannot be part of a compiled loop, so the loop runs around `strategy.run`.
        loops_inside=not isinstance(strategy, tf.distribute.MirroredStrategy),
        is_compiled=isinstance(strategy, tf.distribute.TPUStrategy),
        xla_pays=all("GPU" in device for device in devices),
        lanes_pay=are_cpus,
        calls_pay=are_cpus,
    )


def check_batch_size(batch_size: int, strategy: tf.distribute.Strategy) -> None:
    """Raises UserError unless the replicas share a global batch equally."""
    replicas = strategy.num_replicas_in_sync
    if batch_size % replicas:
        raise UserError(
            f"batch size {batch_size} cannot be split over {replicas} replicas: use a "
            "multiple of it, fewer devices, or the strategy one_device."
        )


def check_shares(batch_size: int, workers: int, replicas: int = 1) -> None:
    """Raises UserError unless W workers divide a batch and the replicas divide W."""
    if batch_size % workers:
        raise UserError(
            f"batch size {batch_size} cannot be split over {workers} workers of local "
            "SGD: use a multiple of it, or fewer workers (workload.fixed.workers)."
        )
    if workers % replicas:
        raise UserError(
            f"{workers} workers of local SGD cannot be split over {replicas} replicas: "
            "use a multiple of it, fewer devices, or the strategy one_device."
        )
