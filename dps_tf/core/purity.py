"""Own code that reads what its arguments do not hold, such as a clock."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import site
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np

from dps_tf.core.errors import UserError

LIBRARIES = {"absl", "dps_tf", "gin", "google", "keras", "keras_tuner", "numpy"}
LIBRARIES |= {"tensorflow", "tensorflow_model_optimization", "tf_keras", "wrapt"}
_THROUGH = {"_collections_abc", "abc", "calendar", "collections", "datetime", "os"}
_THROUGH |= {"random", "secrets", "threading", "uuid"}
"""Modules of Python through which own code reads; the rest, as `logging`, may."""
_INSTALLED = tuple(f"{path}{os.sep}" for path in site.getsitepackages())
_READS = {name for name in dir(time) + dir(random.Random) if name[0] != "_"}
_READS |= {"UuidCreate", "generate_time_safe", "getpid", "getppid"}
_READS |= {"now", "today", "urandom", "utcnow"}
"""Names of the functions of C that read."""
_DURATIONS = {"monotonic", "perf_counter", "process_time", "thread_time"}
_NOISE = "random numbers of the system, as a generator without a seed does"
_GENERATORS = np.random.Generator, np.random.RandomState, np.random.BitGenerator


@contextlib.contextmanager
def arguments_alone(*, may_time: bool = False) -> Iterator[None]:
    """Raises UserError if own code reads what its next call may find changed.

    These are clocks, random generators that it did not seed itself, the number of its
    process, and environment variables: a step is compiled once, and keeps what was
    read. `may_time` allows clocks that tell durations alone.

    >>> with arguments_alone():
    ...     round(np.random.default_rng(0).random(), 3)
    0.637
    """
    read: list[str] = []
    seeded: set[int] = set()
    reads, installed = _READS, _INSTALLED

    def look(frame: FrameType, event: str, called: Any) -> None:
        # Millions of events a graph: nearly all end here.
        if event == "c_call":
            if called.__name__ not in reads:
                return
            name = _called(frame, called, seeded)
        elif event == "call":
            if frame.f_code.co_filename.startswith(installed):
                return
            name = _entered(frame)
        else:
            return
        if not name:
            return
        is_duration = name.removeprefix("time.").removesuffix("_ns") in _DURATIONS
        at = None if may_time and is_duration else _own(frame)
        # NumPy's RandomState reads it before it takes the seed that is given.
        if at is not None and (
            name != _NOISE or "RandomState" not in at.f_code.co_names
        ):
            read.append(f"{at.f_code.co_filename}, line {at.f_lineno}, reads {name}")

    before, state = sys.getprofile(), _global_state()
    sys.setprofile(look)
    try:
        yield
    finally:
        # A profiler that is written in C, as Python's own, sets itself.
        getattr(before, "enable", lambda: sys.setprofile(before))()
    if not read and _global_state() != state:
        read.append("own code draws from NumPy's global generator")
    if read:
        timed = ", or time a duration by time.perf_counter" if may_time else ""
        raise UserError(
            f"{read[0]}, and parts of your own must depend on their arguments alone: "
            f"read it once, outside of the function{timed}."
        )


def _global_state() -> tuple[bytes, Any]:
    state: Any = np.random.get_state()  # noqa: NPY002 - to see whether one draws
    return state[1].tobytes(), state[2:]


def _called(frame: FrameType, called: Any, seeded: set[int]) -> str:
    """Returns what a function of C reads, or ''; notes generators that are seeded."""
    name, module = called.__name__, getattr(called, "__module__", None)
    owner = getattr(called, "__self__", None)
    if isinstance(owner, random.Random):
        if name == "seed" and frame.f_locals.get("a") is not None:
            seeded.add(id(owner))
        return "" if name == "seed" or id(owner) in seeded else f"random.{name}"
    is_date = isinstance(owner, type) and issubclass(owner, datetime.date)
    for reads, text in (
        (module == "time" and name not in ("mktime", "sleep", "strptime"), "time"),
        (is_date and name in ("now", "today", "utcnow"), "datetime"),
        (module in ("nt", "posix") and name in ("getpid", "getppid"), "os"),
        (module == "_uuid", "uuid"),
    ):
        if reads:
            return f"{text}.{name}"
    return _NOISE if name == "urandom" else ""


def _entered(frame: FrameType) -> str:
    """Returns what a function of Python reads when it is entered, or ''."""
    if frame.f_code is type(os.environ).__getitem__.__code__:
        return f"the environment variable {frame.f_locals['key']!r}"
    if not _is_own(frame):
        return ""
    held = {**frame.f_globals, **getattr(frame.f_locals.get("self"), "__dict__", {})}
    read = [held.get(name) for name in frame.f_code.co_names]
    read += [frame.f_locals.get(name) for name in frame.f_code.co_freevars]
    found = [type(x).__name__ for x in read if isinstance(x, _GENERATORS)]
    return f"a {found[0]} of NumPy" if found else ""


def _own(frame: FrameType | None) -> FrameType | None:
    """Returns the frame of own code that reads itself or through Python's modules."""
    while frame is not None and not _is_own(frame):
        module = str(frame.f_globals.get("__name__"))
        is_converted = module.startswith("tensorflow.python.autograph")
        if not is_converted and module.partition(".")[0] not in _THROUGH:
            return None
        frame = frame.f_back
    return frame


def _is_own(frame: FrameType) -> bool:
    # Installed code may time itself, as hooks of the garbage collector do.
    if frame.f_code.co_filename.startswith(_INSTALLED):
        return False
    return is_own_module(str(frame.f_globals.get("__name__")))


def is_own_module(name: str) -> bool:
    """Returns whether a module is a user's own: neither Python's nor installed.

    >>> is_own_module("argparse"), is_own_module("my_losses")
    (False, True)
    """
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    is_installed = file.startswith(_INSTALLED) and name != "__main__"
    top = name.partition(".")[0]
    return not (is_installed or top in sys.stdlib_module_names or top in LIBRARIES)
