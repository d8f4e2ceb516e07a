r"""One event as one line of a log: JSON with its length and checksum.

A line is `crc32 length json\n`: eight hexadecimal digits over the JSON, its length in
bytes, the JSON itself. The length finds the end where a line's own end is damaged; the
checksum finds any changed byte.

Floats come back bit for bit (JSON holds their shortest exact form). Those that JSON
has not are the strings "nan", "inf", "-inf"; a string that reads so (or so behind any
number of '~') gets one '~' put before it, so that both can be told apart.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.store.records import canonical

Event = dict[str, Any]

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LIKE_NON_FINITE = re.compile(r"~*(nan|inf|-inf)")
_HEADER = re.compile(rb"([0-9a-f]{8}) (\d{1,12}) (?={)")


def encode_event(event: Event) -> bytes:
    """Returns the line of an event: an object of JSON values, floats of any kind.

    NumPy scalars are written as the numbers they are, tuples as lists.
    """
    payload = canonical(_plain(event)).encode("ascii")
    return b"%b %d %b\n" % (_checksum(payload), len(payload), payload)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str) and _LIKE_NON_FINITE.fullmatch(value):
        return f"~{value}"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _original(value: Any) -> Any:
    if isinstance(value, str):
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        return value[1:] if _LIKE_NON_FINITE.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: _original(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_original(item) for item in value]
    return value


@dataclass(frozen=True)
class Scan:
    """What the bytes of a log hold.

    Attributes:
        events: every intact event, in order.
        damaged: (position, length) in bytes of each stretch that is no intact line.
        intact_end: where the last intact line ends, its own line end not counted if
            it is missing.
        lacks_line_end: whether the last intact line lacks its line end.
    """

    events: list[Event]
    damaged: list[tuple[int, int]]
    intact_end: int
    lacks_line_end: bool


def scan(data: bytes) -> Scan:
    """Finds every intact line, also between, behind and inside damaged ones."""
    events: list[Event] = []
    damaged: list[tuple[int, int]] = []
    reached = intact_end = 0
    lacks_line_end = False
    for start, end, payload in _intact_lines(data):
        if start > reached:
            damaged.append((reached, start - reached))
        events.append(_original(json.loads(payload)))
        lacks_line_end = data[end : end + 1] != b"\n"
        reached = intact_end = end if lacks_line_end else end + 1
    if reached < len(data):
        damaged.append((reached, len(data) - reached))
    return Scan(events, damaged, intact_end, lacks_line_end)


def _intact_lines(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Gives start, end (line end not counted) and payload of each intact line."""
    position = 0
    while header := _HEADER.search(data, position):
        end = header.end() + int(header[2])
        payload = data[header.end() : end]
        if len(payload) == int(header[2]) and _checksum(payload) == header[1]:
            yield header.start(), end, payload
            position = end
        else:
            # A line may begin anywhere behind one that was torn.
            position = header.start() + 1


def _checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)
