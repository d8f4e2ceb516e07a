from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from dps_tf.tuning.interruption import (
    PARENT_VARIABLE,
    SIGNALS,
    StopRequest,
    stop_with_parent,
)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_asks_to_stop_and_is_named(number):
    with StopRequest().listening() as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        assert stop.signal_name == signal.Signals(number).name


def test_first_signal_is_the_one_that_is_named():
    with StopRequest().listening() as stop:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_name == "SIGUSR1"


def test_handlers_are_as_before_afterwards_whatever_happened():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.raises(ZeroDivisionError), StopRequest().listening():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


PROGRAM = """
import signal, sys, time
from dps_tf.tuning.interruption import StopRequest
with StopRequest().listening() as stop:
    print("ready", flush=True)
    while not stop():
        time.sleep(0.01)
    print("saving", flush=True)
    time.sleep(60)
"""


def test_second_ctrl_c_ends_at_once():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "saving\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)  # patience: not at once
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT


def wait_for(stop: StopRequest, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not stop() and time.monotonic() < end:
        time.sleep(0.01)
    return stop()


def test_worker_stops_when_the_process_that_started_it_is_gone(monkeypatch):
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getpid()))  # certainly not our parent
    stop = StopRequest()
    stop_with_parent(stop, every=0.01)
    assert wait_for(stop, 10)


def test_worker_goes_on_while_its_parent_lives_and_nobody_else_watches(monkeypatch):
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getppid()))
    stop = StopRequest()
    stop_with_parent(stop, every=0.01)
    monkeypatch.delenv(PARENT_VARIABLE)
    stop_with_parent(stop, every=0.01)
    assert not wait_for(stop, 0.2)
    stop.set()
