from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from dps_tf.tuning.interruption import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_asks_to_stop_and_is_named(number):
    # Tests may run under nohup, which ignores one of them.
    before = signal.signal(number, signal.default_int_handler)
    try:
        with StopRequest().listening() as stop:
            assert not stop()
            signal.raise_signal(number)
            assert stop()
            assert stop.signal_name == signal.Signals(number).name
    finally:
        signal.signal(number, before)


def test_handlers_are_as_before_afterwards_whatever_happened():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.raises(ZeroDivisionError), StopRequest().listening():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_a_run_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest().listening() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


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
