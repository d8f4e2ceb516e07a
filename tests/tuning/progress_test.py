from __future__ import annotations

import io
import re

import pytest

from dps_tf.core import (
    EvaluationSchedule,
    Nearest,
    RaceRule,
    Trajectory,
    duration,
    plan,
)
from dps_tf.tuning import progress
from dps_tf.tuning.progress import Forecast, StudyProgress

RULE = RaceRule(4, 1, 100, EvaluationSchedule(10))
KNOWN = [
    Trajectory(30, 30),
    Trajectory(20),
    Trajectory(10, diverged_step=15),
    Trajectory(10),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (7380, "2 h 3 min"),
    ],
)
def test_durations_read_easily(seconds, text):
    assert duration(seconds) == text


def shown(stream: io.StringIO, clock: list[float], gaps: list[float]) -> str:
    with StudyProgress("tiny", RULE, stream=stream) as bar:
        known = [Trajectory() for _ in KNOWN]
        bar.update(plan(known, RULE), known, 2)
        for gap in gaps:
            clock[0] += gap
            bar.update(plan(KNOWN, RULE), KNOWN, 2)
    return stream.getvalue()


def test_line_tells_how_the_race_stands(clock):
    line = shown(io.StringIO(), clock, [20.0]).splitlines()[-1]
    assert line.startswith("tiny: 1 of 4 trials running (2 now), 1 reached, 1 diverged")
    assert "best 30" in line
    # 70 steps in 20 s; trial 3 has 10 of 20 to go, trial 1 none.
    assert "4 steps/s" in line
    assert "3 s left" in line


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (20.0, "whole sweep 40 s to 3 min left (80 %)"),
        (70.0, "whole sweep 0 s to 2 min 10 s left (80 %)"),
        (201.0, "whole sweep later than forecast"),
    ],
)
def test_line_tells_when_the_whole_sweep_ends(clock, seconds, told):
    stream = io.StringIO()
    bar = StudyProgress("tiny", RULE, stream=stream)
    bar.sweep = Forecast([1.0], (120.0, 400.0))
    bar.update(plan(KNOWN, RULE), KNOWN, 2)
    clock[0] += seconds
    bar.update(plan(KNOWN, RULE), KNOWN, 2)
    # In two slots.
    assert stream.getvalue().splitlines()[-1].endswith(told)


def test_line_tells_how_near_a_race_came_that_reached_nothing(clock):
    stream = io.StringIO()
    bar = StudyProgress("tiny", RULE, stream=stream)
    known = [Trajectory(10), Trajectory(10)]
    clock[0] += 20
    bar.update(plan(known, RULE), known, 2, nearest=lambda: Nearest(0.3, 10, 1))
    assert "none reached yet, nearest 0.3 at step 10 of trial 1, " in stream.getvalue()


@pytest.mark.parametrize(
    ("share", "end"),
    [(0.0, "left"), (0.004, "left"), (0.123, ", 12% waiting for data")],
)
def test_line_tells_of_waiting_for_data(clock, share, end):
    stream = io.StringIO()
    bar = StudyProgress("tiny", RULE, stream=stream)
    bar.update(plan(KNOWN, RULE), [Trajectory()], 2)
    clock[0] += 20.0
    bar.update(plan(KNOWN, RULE), KNOWN, 2, share)
    assert stream.getvalue().splitlines()[-1].endswith(end)


def test_logs_get_a_line_now_and_then_and_no_control_characters(clock):
    text = shown(io.StringIO(), clock, [1.0] * 40)
    assert 1 <= len(text.splitlines()) <= 4
    assert "\x1b" not in text and "\r" not in text


def test_terminals_get_a_live_line(clock):
    text = shown(Terminal(), clock, [1.0] * 3)
    assert "\x1b" in text
    assert "best 30" in text


def test_scores_are_shown_now_and_then(clock):
    stream = Terminal()
    with StudyProgress("tiny", RULE, stream=stream) as bar:
        for done in range(1, 11):
            clock[0] += 0.05
            bar.pruning(f"trial 3 is pruned by snip, {done} of 10 batches")
    text = stream.getvalue()
    assert "tiny: trial 3 is pruned by snip, 1 of 10 batches" in text
    assert 2 <= len(set(re.findall(r"(\d+) of 10", text))) <= 4


NAME = "mnist_simple_cnn-nesterov-snip-seed0-b1024-s0.9"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_what_matters_survives_at_any_width(clock, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with StudyProgress(NAME, RULE, "cell 3 of 9", stream) as bar:
        assert "cell 3 of 9" in stream.getvalue(), "it is silent while it starts"
        known = [Trajectory() for _ in KNOWN]
        bar.update(plan(known, RULE), known, 2)
        clock[0] += 20
        bar.update(plan(KNOWN, RULE), KNOWN, 2)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    # The live line is drawn anew in place, and cleared in the end.
    last = [line for line in re.split(r"[\r\n]", lines) if line.strip()][-1]
    assert len(last) <= width
    # 70 of 80 steps.
    for part in ("cell 3 of 9 ", "[########..]", "best 30", "3 s left"):
        assert part in last
    assert (NAME in last) == (width >= 100)
    assert ("4 steps/s" in last) == (width == 200)
    assert last.startswith("cell 3 of 9 mnist") and "s0.9" in last.replace("…", "")
