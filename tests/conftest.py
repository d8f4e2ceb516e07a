"""What every test shares: threads, seeds, and where raw data lies."""

from __future__ import annotations

import os
import random
import sys

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

# Machines that run the tests are shared: time says nothing about a single example.
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

LONGEST = (
    "distribution/slurm",
    "faults/ray",
    "end_to_end/readme",
)
"""Files whose tests take or wait a minute and more, the longest first."""


@pytest.fixture(autouse=True)
def reproducible() -> None:
    """Seeds every generator and clears gin, so that no test depends on another."""
    import numpy as np

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for libraries that use the global generator
    # Only if a test's own module has brought them in: pure tests stay quick.
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(0)
    if "gin" in sys.modules:
        sys.modules["gin"].clear_config()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the longest files, so that processes side by side end together."""
    place = {f"tests/{name}_test.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(place)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fixes TensorFlow's threads and devices before any test can use it.

    One intra-op thread: bits depend on it. Four virtual CPUs, so that the code for
    several devices runs everywhere.
    """
    if "tensorflow" not in sys.modules:
        return
    import tensorflow as tf

    from dps_tf.training import threads

    threads.configure(1, 2)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 4
    )
