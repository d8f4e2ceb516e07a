from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.store import (
    FORMAT,
    DamagedError,
    OtherFormatError,
    canonical,
    encode_record,
    fingerprint,
    read_json,
    set_aside,
)
from dps_tf.store.records import decode_record
from tests.store.object_store import MemoryFiles

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_a_record_comes_back_as_it_was(content):
    back = decode_record("r", encode_record(content))
    assert back == content
    assert canonical(back) == canonical(content)
    assert fingerprint(back) == fingerprint(content)


@given(JSON, st.data())
def test_no_damaged_byte_of_a_record_passes(content, data):
    intact = encode_record(content)
    position = data.draw(st.integers(0, len(intact) * 8 - 1))
    flipped = bytearray(intact)
    flipped[position // 8] ^= 1 << position % 8
    with pytest.raises(DamagedError):
        decode_record("r", bytes(flipped))


def test_a_record_torn_at_any_byte_is_damaged():
    intact = encode_record({"batch_size": 64, "goal": [0.02, None]})
    for length in range(len(intact)):
        with pytest.raises(DamagedError) as caught:
            decode_record("some/study.json", intact[:length])
        assert "some/study.json" in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"null", b"\xff", b'{"content": 1}', b'{"a": 1}']
)
def test_foreign_bytes_are_damaged(data):
    with pytest.raises(DamagedError):
        decode_record("r", data)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}])
def test_what_json_lacks_is_refused(value):
    with pytest.raises(ValueError):
        encode_record(value)


def test_the_form_of_a_record_is_frozen():
    digest = "43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777"
    assert fingerprint({"b": 1, "a": [0.1]}) == fingerprint({"a": [0.1], "b": 1})
    assert canonical({"b": 1, "a": [0.1, "é"]}) == '{"a":[0.1,"\\u00e9"],"b":1}'
    assert fingerprint({"b": 2, "a": 1}) == digest
    content = {"a": 1, "b": 2}
    record = json.loads(encode_record(content))
    assert FORMAT == 2, "another form needs a migration: see CONTRIBUTING.md"
    assert record.pop("sha256") == fingerprint({"content": content, "format": 2})
    assert record == {"content": content, "format": 2}


def of_format(content: object, number: int | None) -> bytes:
    """Returns a record as written in another format, or before they had numbers."""
    record = {"content": content, "format": number}
    record["sha256"] = fingerprint(record)
    if number is None:
        record = {"content": content, "sha256": fingerprint(content)}
    return f"{json.dumps(record, sort_keys=True, indent=2)}\n".encode()


def test_a_record_of_another_format_is_refused_in_one_sentence():
    assert of_format({"a": 1}, FORMAT) == encode_record({"a": 1})
    with pytest.raises(
        OtherFormatError, match=r"^s/r has format 7, .* reads format 2:"
    ):
        decode_record("s/r", of_format({"a": 1}, 7))
    with pytest.raises(OtherFormatError, match="^s/r was .* commit 31a3605: use that"):
        decode_record("s/r", of_format({"a": 1}, None))


def test_a_damaged_number_of_a_format_is_damage():
    intact = encode_record({"a": 1})
    at = intact.index(b'"format": 2') + len('"format": ')
    with pytest.raises(DamagedError):
        decode_record("s/r", intact[:at] + b"7" + intact[at + 1 :])


def test_damaged_files_are_set_aside_side_by_side():
    files = MemoryFiles()
    for number in (1, 2, 3):
        files.write_atomic("s/study.json", b"junk")
        with pytest.raises(DamagedError):
            read_json(files, "s/study.json")
        aside = set_aside(files, "s/study.json")
        assert aside == f"s/study.json.damaged-{number}"
        assert not files.exists("s/study.json") and files.exists(aside)
    with pytest.raises(FileNotFoundError):
        read_json(files, "s/study.json")
