"""What the bits of a trial depend on, beside its specification."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras

# Instruction sets for which the kernels of TensorFlow's CPU build differ.
_INSTRUCTION_SETS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16")


def describe(replicas: int = 1, processes: int = 1) -> dict[str, str]:
    """Returns builds and instruction set, as text; equal ones give equal bits.

    At one intra-op thread, on a CPU. Another version of a library, or a processor with
    other instructions, may round otherwise.

    Args:
        replicas: devices that share each batch; sums over them round otherwise.
        processes: whose devices they are; they add up in another order.
    """
    together = f" in {processes} processes" if processes > 1 else ""
    return {
        "tensorflow": tf.version.VERSION,
        "tf_keras": keras.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instruction_sets": " ".join(_cpu_flags()),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "default"),
        "replicas": f"{replicas}{together}",
        "devices": " ".join(
            sorted({d.device_type for d in tf.config.list_physical_devices()})
        ),
    }


def _cpu_flags() -> list[str]:
    """Returns the known instruction sets of this processor; empty if not told."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return []
    lines = info.read_text(errors="replace").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return [name for name in _INSTRUCTION_SETS if name in flags.split()]
