"""Records are JSON files with a checksum and the number of their format.

A record is {"content": ..., "format": ..., "sha256": ...}, sorted and indented; the
digest is of content and format in their canonical form. A reader accepts only the bytes
that the writer gives, so that every damaged byte is noticed. Other bytes raise a
DamagedError, and a record of another format raises an OtherFormatError.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dps_tf.store.errors import DamagedError, OtherFormatError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import set_aside_path

FORMAT = 2
"""The number of the format of records, logs, states, tables and scores for pruning.

The number is part of every record, of the first event of every session and of the keys
of scores. A change of the format raises it and brings a migration; the fields of a
specification are part of the format."""
_LAST_WITHOUT_FORMAT = "31a3605"
"""The last commit that reads and writes records without a format."""


def canonical(value: Any) -> str:
    """Returns the canonical JSON text of a value: sorted keys, no spaces, ASCII.

    Raises:
        ValueError: the value holds NaN or an infinity, which JSON does not have.
        TypeError: a part of the value is not JSON.
    """
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def fingerprint(value: Any) -> str:
    """Returns the sha256 of the canonical JSON, 64 hexadecimal digits."""
    return sha256(canonical(value).encode("ascii"))


def sha256(data: bytes) -> str:
    """Returns the sha256 of bytes, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def encode_record(content: Any) -> bytes:
    """Returns the bytes of a record file."""
    return _encoded(content, FORMAT)


def _encoded(content: Any, number: Any) -> bytes:
    digest = fingerprint({"content": content, "format": number})
    document = {"content": content, "format": number, "sha256": digest}
    text = json.dumps(document, sort_keys=True, indent=2, allow_nan=False)
    return f"{text}\n".encode("ascii")


def decode_record(path: str, data: bytes) -> Any:
    """Returns the content of the bytes that `encode_record` gives.

    Raises:
        DamagedError: the bytes are torn or changed.
        OtherFormatError: the record has another format.
    """
    if not data.strip():
        raise DamagedError(path, "it is empty")
    try:
        document = json.loads(data.decode("ascii"))
        content = document["content"]
        number = document.get("format")
        has_no_format = document.keys() == {"content", "sha256"}
        is_whole = has_no_format or _encoded(content, number) == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(path, f"it is no whole record ({error})") from error
    if not is_whole:
        raise DamagedError(path, "its content does not match its checksum")
    check_format(path, number)
    return content


def check_format(path: str, number: Any) -> None:
    """Raises OtherFormatError unless a record has FORMAT; None stands for no number."""
    if number == FORMAT:
        return
    if number is None:
        raise OtherFormatError(
            f"{path} was written before formats had numbers, and the last version of "
            f"dps_tf that reads it is commit {_LAST_WITHOUT_FORMAT}: use that one, or "
            "choose another directory."
        )
    raise OtherFormatError(
        f"{path} has format {number}, and this version of dps_tf reads format "
        f"{FORMAT}: use the version that wrote it, or choose another directory."
    )


def write_json(files: FileSystem, path: str, content: Any) -> None:
    """Writes a record atomically, with its checksum."""
    files.write_atomic(path, encode_record(content))


def read_json(files: FileSystem, path: str) -> Any:
    """Returns the content of a record.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: the file is torn, empty or changed; `set_aside` renames it.
        OtherFormatError: another version of the package wrote it.
    """
    return decode_record(path, files.read_bytes(path))


def set_aside(files: FileSystem, path: str) -> str:
    """Renames a damaged file to `<name>.damaged-<n>`, n unused; returns the new path.

    A damaged file is never deleted, so that people can look at it.
    """
    target = free_name(files, path)
    files.move(path, target)
    return target


def free_name(files: FileSystem, path: str) -> str:
    """Returns the first unused name for setting a file aside."""
    number = 1
    while files.exists(set_aside_path(path, number)):
        number += 1
    return set_aside_path(path, number)
