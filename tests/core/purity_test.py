"""Own code depends on its arguments alone: clocks, generators, the environment."""

from __future__ import annotations

import cProfile
import datetime
import logging
import os
import pstats
import random
import secrets
import sys
import time
import uuid

import numpy as np
import pytest

from dps_tf.core import UserError, arguments_alone

GENERATOR, STATE = np.random.default_rng(0), np.random.RandomState(0)
PYTHON = random.Random(0)


class Holder:
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def draws(self):
        return self.generator.random()


def closed():
    generator = np.random.default_rng(0)
    return lambda: generator.random()


READS = [
    ("time.time", lambda: time.time() % 2 < 1),
    ("time.time_ns", lambda: time.time_ns()),
    ("time.monotonic", lambda: time.monotonic()),
    ("time.perf_counter", lambda: time.perf_counter()),
    ("time.process_time", lambda: time.process_time()),
    ("time.localtime", lambda: time.localtime().tm_hour > 12),
    ("time.strftime", lambda: time.strftime("%H")),
    ("datetime.now", lambda: datetime.datetime.now().hour),
    ("datetime.today", lambda: datetime.date.today().day),
    ("random.random", lambda: random.random() < 0.5),
    ("random.getrandbits", lambda: random.choice([0, 1])),
    ("random.random", lambda: PYTHON.uniform(0, 1)),
    ("random.random", lambda: random.Random().random()),
    ("NumPy's global generator", lambda: np.random.uniform()),  # noqa: NPY002
    ("NumPy's global generator", lambda: np.random.randint(2)),  # noqa: NPY002
    ("a Generator", lambda: GENERATOR.integers(2)),
    ("a Generator", closed()),
    ("a Generator", Holder().draws),
    ("a RandomState", lambda: STATE.rand()),
    ("random numbers of the system", lambda: os.urandom(1)),
    ("random numbers of the system", lambda: secrets.randbelow(2)),
    ("random numbers of the system", lambda: uuid.uuid4().int % 2),
    ("uuid", lambda: uuid.uuid1().int % 2),
    ("os.getpid", lambda: os.getpid() % 2),
    ("variable 'HOME'", lambda: os.environ.get("HOME")),
    ("variable 'SOME'", lambda: "SOME" in os.environ),
    ("variable 'OTHER'", lambda: os.getenv("OTHER", "0")),
]
HONEST = {
    "generator of its own": lambda: np.random.default_rng(0).random(),
    "state of its own": lambda: np.random.RandomState(0).rand(),
    "seed of its own": lambda: random.Random(3).random(),
    "a given generator": lambda: (lambda own: own.random())(np.random.default_rng(0)),
    "logging": lambda: logging.getLogger("own").warning("traced"),
    "a given time": lambda: datetime.datetime(2026, 1, 1).year + time.mktime((0,) * 9),
    "sleep": lambda: time.sleep(0.0),
}


@pytest.mark.parametrize(("words", "code"), READS)
def test_code_that_reads_the_moment_is_named_with_its_place(words, code):
    place = "" if "NumPy's" in words else r"purity_test.py, line \d+, reads "
    with (
        pytest.raises(UserError, match=f"{place}.*{words}.* outside"),
        arguments_alone(),
    ):
        code()
    assert sys.getprofile() is None


@pytest.mark.parametrize("kind", HONEST)
def test_honest_code_is_let_through(kind):
    with arguments_alone():
        HONEST[kind]()


def test_a_method_that_prunes_may_time_itself():
    with arguments_alone(may_time=True):
        time.perf_counter_ns()
    told = "reads time.time, .* by time.perf_counter"
    with pytest.raises(UserError, match=told), arguments_alone(may_time=True):
        np.random.default_rng(int(time.time()))


def test_a_profiler_goes_on_afterwards():
    def after():
        return None

    with cProfile.Profile() as profiler:
        with arguments_alone():
            pass
        after()
    seen = {name for _, _, name in pstats.Stats(profiler).stats}
    assert "after" in seen and sys.getprofile() is None


def test_an_error_inside_is_raised_as_it_is():
    with pytest.raises(KeyError), arguments_alone():
        time.time()
        raise KeyError("own")
