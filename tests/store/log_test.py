from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.store import (
    LocalFiles,
    StoreError,
    encode_event,
    open_log,
    read_log,
    read_logs,
    scan,
)
from dps_tf.store.log import LogWriter, SegmentedLogWriter
from tests.store.faulty_files import FaultyFiles, at_every_write_point
from tests.store.object_store import MemoryFiles

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["nan", "inf", "-inf", "~nan", "~~-inf"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
EVENTS = st.dictionaries(st.text(), VALUES, max_size=4)


def _bits(value):
    """A form in which floats are equal if and only if their bits are (NaN as one)."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, list):
        return [_bits(item) for item in value]
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    return (type(value).__name__, value)


@given(st.lists(EVENTS, max_size=5))
def test_events_come_back_bit_for_bit(events):
    found = scan(b"".join(map(encode_event, events)))
    assert _bits(found.events) == _bits(events)
    assert found.damaged == [] and not found.lacks_line_end


@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_costs_at_most_one_event_and_is_reported(events, data):
    lines = [encode_event(event) for event in events]
    log = bytearray(b"".join(lines))
    position = data.draw(st.integers(0, len(log) * 8 - 1))
    log[position // 8] ^= 1 << position % 8
    found = scan(bytes(log))
    assert found.damaged or found.lacks_line_end
    expected = [_bits(event) for event in events]
    assert len(found.events) >= len(events) - 1
    remaining = iter(expected)
    assert all(_bits(event) in remaining for event in found.events), "an invented event"


@given(st.lists(EVENTS, max_size=3), st.binary(max_size=40), st.lists(EVENTS))
def test_garbage_between_events_is_skipped(before, garbage, after):
    log = b"".join(map(encode_event, before)) + garbage
    log += b"".join(map(encode_event, after))
    found = scan(log)
    assert _bits(found.events) == _bits(before + after)
    assert sum(length for _, length in found.damaged) <= len(garbage)


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    log = LogWriter(LocalFiles(), f"{tmp_path}/w.log")
    log.append({"a": np.float32(0.1), "b": np.int64(3), "c": (np.bool_(True), 1)})
    log.flush()
    events, _ = read_log(LocalFiles(), f"{tmp_path}/w.log")
    assert events == [{"a": float(np.float32(0.1)), "b": 3, "c": [True, 1]}]


def test_the_form_of_a_line_is_frozen():
    assert encode_event({"step": 1, "loss": math.inf}) == (
        b'e28ccec7 23 {"loss":"inf","step":1}\n'
    )


def test_a_log_torn_at_any_byte_keeps_its_whole_lines_and_goes_on(tmp_path):
    lines = [encode_event({"n": n, "text": "x" * n}) for n in range(4)]
    whole = b"".join(lines)
    for length in range(len(whole) + 1):
        path = f"{tmp_path}/{length}.log"
        LocalFiles().write_atomic(path, whole[:length])
        # The line end itself carries nothing: an event without it is intact.
        kept = sum(length >= len(b"".join(lines[:n])) - 1 for n in (1, 2, 3, 4))
        for _ in range(2):
            events, problems = read_log(LocalFiles(), path)
            assert [event["n"] for event in events] == list(range(kept))
        log = LogWriter(LocalFiles(), path)
        assert len(problems) <= 1
        log.append({"n": 99})
        log.flush()
        events, problems = read_log(LocalFiles(), path)
        assert [event["n"] for event in events] == [*range(kept), 99]
        assert problems == []
        aside = [n for n in LocalFiles().list_names(str(tmp_path)) if "damaged" in n]
        tail = length - len(b"".join(lines[:kept]))
        assert len(aside) == (tail > 0)
        for name in aside:
            data = LocalFiles().read_bytes(f"{tmp_path}/{name}")
            assert data == whole[length - tail : length]
            LocalFiles().remove(f"{tmp_path}/{name}")


def test_damaged_middle_lines_stay_and_are_reported(tmp_path):
    path = f"{tmp_path}/w.log"
    lines = [encode_event({"n": n}) for n in range(3)]
    damaged = lines[0] + lines[1].replace(b"1}", b"7}") + lines[2]
    LocalFiles().write_atomic(path, damaged)
    log = LogWriter(LocalFiles(), path)
    log.append({"n": 3})
    log.flush()
    assert LocalFiles().read_bytes(path) == damaged + encode_event({"n": 3})
    events, problems = read_log(LocalFiles(), path)
    assert [event["n"] for event in events] == [0, 2, 3]
    assert len(problems) == 1 and path in problems[0]
    assert LocalFiles().list_names(str(tmp_path)) == ["w.log"]


def _write_twice(files, folder):
    log = open_log(files, f"{folder}/log/w.log")
    for first in (0, 3):
        for n in range(first, first + 3):
            log.append({"n": n})
        log.flush()
        files.flushed = first + 3


@pytest.mark.parametrize("can_append", [True, False])
@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_flushed_events_survive_a_kill_at_every_write_point(tmp_path, mode, can_append):
    def act(files, folder):
        files.can_append, files.flushed = can_append, 0
        _write_twice(files, folder)

    count = 0
    for files, folder in at_every_write_point(tmp_path, mode, act):
        count += 1
        before, _ = read_log(LocalFiles(), f"{folder}/log/w.log")
        local = LocalFiles()
        local.can_append = can_append
        log = open_log(local, f"{folder}/log/w.log")
        log.append({"n": "after"})
        log.flush()
        events, problems = read_log(LocalFiles(), f"{folder}/log/w.log")
        assert events == [*before, {"n": "after"}]
        numbers = [event["n"] for event in before]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= files.flushed
        assert len(problems) <= 1
        assert not problems or not can_append
    assert count >= 6


@pytest.mark.parametrize("can_append", [True, False])
def test_events_wait_until_a_full_disk_has_space(tmp_path, can_append):
    for fail_at in range(1, 20):
        files = FaultyFiles(LocalFiles(), fail_at, "full")
        files.can_append = can_append
        path = f"{tmp_path}/{can_append}-{fail_at}.log"
        log = open_log(files, path)
        for n in range(4):
            log.append({"n": n})
            for _ in range(2):
                try:
                    log.flush()
                except StoreError:
                    continue
        files.is_full, files.fail_at = False, None
        log.flush()
        events, problems = read_log(LocalFiles(), path)
        assert [event["n"] for event in events] == [0, 1, 2, 3]
        assert problems == []


def test_a_torn_tail_survives_a_kill_while_it_is_cut(tmp_path):
    def act(files, folder):
        line = encode_event({"n": 0})
        LocalFiles().write_atomic(f"{folder}/w.log", line + line[:9])
        LogWriter(files, f"{folder}/w.log")

    for _, folder in at_every_write_point(tmp_path, "kill", act):
        LogWriter(LocalFiles(), f"{folder}/w.log")
        events, problems = read_log(LocalFiles(), f"{folder}/w.log")
        assert events == [{"n": 0}] and problems == []


def test_segments_go_on_behind_the_highest_number():
    files = MemoryFiles()
    for n in range(3):
        log = SegmentedLogWriter(files, "gs://b/log/w.log")
        log.append({"n": n})
        log.flush()
        log.flush()
    names = files.list_names("gs://b/log/w.log.segments")
    assert names == ["00000001", "00000002", "00000003"]
    assert isinstance(open_log(files, "gs://b/log/w.log"), SegmentedLogWriter)
    events, problems = read_log(files, "gs://b/log/w.log")
    assert [event["n"] for event in events] == [0, 1, 2] and problems == []
    every, problems = read_logs(files, "gs://b/log")
    assert every == {"w": events} and problems == []


def test_the_logs_of_all_writers_are_read_by_name(tmp_path):
    for writer in ("b", "a"):
        log = open_log(LocalFiles(), f"{tmp_path}/{writer}.log")
        log.append({"by": writer})
        log.flush()
    LocalFiles().write_atomic(f"{tmp_path}/a.log.damaged-1", b"junk")
    every, problems = read_logs(LocalFiles(), str(tmp_path))
    assert list(every.items()) == [("a", [{"by": "a"}]), ("b", [{"by": "b"}])]
    assert problems == []
    assert read_logs(LocalFiles(), f"{tmp_path}/missing") == ({}, [])
