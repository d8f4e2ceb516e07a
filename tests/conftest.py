"""What every test shares: threads, seeds, and where raw data lies."""

from __future__ import annotations

import csv
import gc
import os
import random
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import interpreter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

# Machines that run the tests are shared: time says nothing about a single example. By
# hand, as many of them as Hypothesis wants.
settings.register_profile(
    "shared",
    deadline=None,
    max_examples=100 if os.environ.get("DPS_TF_SLOW") else 40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")


@pytest.fixture(autouse=True)
def reproducible(request: pytest.FixtureRequest) -> None:
    """Seeds every generator and clears gin, so that no test depends on another.

    TensorFlow's own way to set a seed forgets all compiled functions, which would then
    be optimized anew in every test that shares one. So each test has another seed: what
    a test has drawn leaves no trace in the draws of the next.
    """
    import numpy as np

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for libraries that use the global generator
    # Only if a test's own module has brought them in: pure tests stay quick.
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context

        seed = zlib.crc32(request.node.nodeid.encode())
        held = context.context()
        held._seed, held._rng = seed, random.Random(seed)
    if "gin" in sys.modules:
        sys.modules["gin"].clear_config()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is on record as slow, and begins with the longest files.

    So processes that share the tests end together. `.ci/record_durations.py` records.
    """
    with Path(__file__).with_name("durations.csv").open(newline="") as file:
        seconds = {row["test"]: float(row["seconds"]) for row in csv.DictReader(file)}
    files: Counter[str] = Counter()
    for item in items:
        path, *names = item.nodeid.split("::")
        test = ".".join([path.removesuffix(".py").replace("/", "."), *names])
        files[path] += seconds.get(test, 0.0)
        if test in seconds:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: -files[item.nodeid.split("::")[0]])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fixes TensorFlow's threads and devices before any test can use it.

    One intra-op thread: bits depend on it. Four virtual CPUs, so that the code for
    several devices runs everywhere. A sweep collects garbage after each cell: that does
    not look through what was imported, which would take longer than a small study.
    Python's own collections, made while graphs are traced, take a tenth of the tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(interpreter.COLLECTED)
    if "tensorflow" not in sys.modules:
        return
    import tensorflow as tf
    from tensorflow.python.framework import random_seed

    from dps_tf.training import strategy as strategies

    # Called before each test of `tf.test.TestCase`; see `reproducible`.
    random_seed.set_random_seed = lambda seed: None

    strategies.configure_threads(1, 2)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 4
    )
