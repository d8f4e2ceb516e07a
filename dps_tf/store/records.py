"""Checked JSON records: what is read is what was written, or a DamagedError.

A record is {"content": ..., "sha256": ...}, sorted and indented; the digest is that of
the content's canonical form. Reading demands the very bytes that writing gives, so that
no damaged byte passes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import set_aside_path


def canonical(value: Any) -> str:
    """Returns the one JSON text of a value: sorted keys, no spaces, ASCII.

    Raises:
        ValueError: NaN or an infinity, which JSON has not.
        TypeError: a key that is no string, or a value that is not JSON.
    """
    _check_keys(value)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _check_keys(value: Any) -> None:
    """Raises TypeError for a key that is no string: JSON would silently make it one."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is no string, as JSON objects need.")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def fingerprint(value: Any) -> str:
    """Returns the sha256 of the canonical JSON, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def encode_record(content: Any) -> bytes:
    """Returns the bytes of a record file."""
    document = {"content": content, "sha256": fingerprint(content)}
    text = json.dumps(document, sort_keys=True, indent=2, allow_nan=False)
    return f"{text}\n".encode("ascii")


def decode_record(path: str, data: bytes) -> Any:
    """Returns the content of the bytes that `encode_record` gives, or DamagedError."""
    if not data.strip():
        raise DamagedError(path, "it is empty")
    try:
        document = json.loads(data.decode("ascii"))
        content = document["content"]
        expected = encode_record(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(path, f"it is no whole record ({error})") from error
    if expected != data:
        raise DamagedError(path, "its content does not match its checksum")
    return content


def write_json(files: FileSystem, path: str, content: Any) -> None:
    """Writes a record atomically, with its checksum."""
    files.write_atomic(path, encode_record(content))


def read_json(files: FileSystem, path: str) -> Any:
    """Returns the content of a record.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: torn, empty or changed; `set_aside` puts it out of the way.
    """
    return decode_record(path, files.read_bytes(path))


def set_aside(files: FileSystem, path: str) -> str:
    """Renames a damaged file to `<name>.damaged-<n>`, n unused; returns the new path.

    Nothing is ever deleted because it is damaged: somebody may want to look at it.
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
