"""Checked files, JSON records and states: what is read is what was written.

What is not is a DamagedError. A record is {"content": ..., "format": ..., "sha256":
...}, sorted and indented; the digest is that of the content's canonical form. Reading
demands the very bytes that writing gives, so that no damaged byte passes. A record of
another format is an OtherFormatError.

A state holds arrays and a step, from which an unfinished trial goes on: an npz file (no
pickle, not compressed) whose zip comment is the sha256 of all bytes before it, which
NumPy reads as it is. The newest two of each trial are kept, so that a damaged one costs
some steps but never all.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dps_tf.store.errors import DamagedError, OtherFormatError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import set_aside_path

FORMAT = 1
"""The form of all that lies in a sweep directory: of records, logs, states, tables and
scores for pruning. It is part of every record, of the first event of every session and
of the keys of scores. A change of it raises this number and brings a migration."""
_LAST_WITHOUT_FORMAT = "31a3605"
"""The last commit that reads and writes records without a format."""


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
    return _encoded(content, FORMAT)


def _encoded(content: Any, number: Any) -> bytes:
    digest = fingerprint({"content": content, "format": number})
    document = {"content": content, "format": number, "sha256": digest}
    text = json.dumps(document, sort_keys=True, indent=2, allow_nan=False)
    return f"{text}\n".encode("ascii")


def decode_record(path: str, data: bytes) -> Any:
    """Returns the content of the bytes that `encode_record` gives.

    Raises:
        DamagedError: they are not such bytes.
        OtherFormatError: they are those of another format.
    """
    if not data.strip():
        raise DamagedError(path, "it is empty")
    try:
        document = json.loads(data.decode("ascii"))
        content = document["content"]
        number = document.get("format")
        is_of_before = document.keys() == {"content", "sha256"}
        is_whole = is_of_before or _encoded(content, number) == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(path, f"it is no whole record ({error})") from error
    if not is_whole:
        raise DamagedError(path, "its content does not match its checksum")
    check_format(path, number)
    return content


def check_format(path: str, number: Any) -> None:
    """Raises OtherFormatError unless this is the number of the format, None if none."""
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
        FileNotFoundError: there is none.
        DamagedError: torn, empty or changed; `set_aside` puts it out of the way.
        OtherFormatError: another version of the package wrote it.
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


Array = npt.NDArray[Any]

_NAME = re.compile(r"trial-(\d+)\.step-(\d+)\.npz")
_KEPT = 2
_DIGEST_LENGTH = 64  # hexadecimal digits of a sha256


class State(NamedTuple):
    """Where a trial stands: steps done, its variables in order, and a JSON object."""

    step: int
    arrays: list[Array]
    meta: dict[str, Any]


class StateStore:
    """The states of one study's trials in one folder.

    A trial's newest state is the one with the highest step. Training is a function of
    the trial and the step, so it does not matter which worker wrote it, and a state
    older than the two kept is dropped when it comes late.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        files.remove_stale(directory)

    def save_many(self, states: Mapping[int, State]) -> None:
        """Writes states of several trials, at the price of one fsync of the folder.

        They are on the disk before older ones are removed. After a failure or a kill
        each trial has its old or its new state.
        """
        self._files.write_many(
            {
                self._path(trial, state.step): encode_state(trial, state)
                for trial, state in states.items()
            }
        )
        kept = self._steps()
        for trial in states:
            for step in kept.get(trial, [])[:-_KEPT]:
                self._files.remove(self._path(trial, step))

    def load(self, trial: int) -> tuple[State | None, list[str]]:
        """Returns the newest intact state or None, and sentences about damaged ones.

        Damaged states are set aside.
        """
        states, problems = self.load_many([trial])
        return states.get(trial), problems

    def load_many(
        self, trials: Iterable[int] | None = None
    ) -> tuple[dict[int, State], list[str]]:
        """Returns the newest intact state of each trial that has one, and problems."""
        kept = self._steps()
        states: dict[int, State] = {}
        problems: list[str] = []
        for trial in kept if trials is None else trials:
            for step in reversed(kept.get(trial, [])):
                state = self._read(trial, step, problems)
                if state is not None:
                    states[trial] = state
                    break
        return states, problems

    def discard_all(self) -> None:
        """Removes all states."""
        for trial, steps in self._steps().items():
            for step in steps:
                self._files.remove(self._path(trial, step))

    def trials(self) -> list[int]:
        """Returns the numbers of the trials that have a state, sorted."""
        return sorted(self._steps())

    def _read(self, trial: int, step: int, problems: list[str]) -> State | None:
        path = self._path(trial, step)
        try:
            return decode_state(path, trial, step, self._files.read_bytes(path))
        except FileNotFoundError:
            # Another worker has just replaced it by a newer one.
            return None
        except DamagedError as error:
            kept = set_aside(self._files, path)
            problems.append(
                f"The state of trial {trial} at step {step} is damaged "
                f"({error.reason}); it was set aside as {kept} and the trial goes on "
                "from its previous state, or from its beginning if it has none."
            )
            return None

    def _path(self, trial: int, step: int) -> str:
        return f"{self._directory}/trial-{trial:06d}.step-{step:010d}.npz"

    def _steps(self) -> dict[int, list[int]]:
        """Returns the steps of each trial's states, ascending."""
        steps: dict[int, list[int]] = {}
        for name in self._files.list_names(self._directory):
            if match := _NAME.fullmatch(name):
                steps.setdefault(int(match[1]), []).append(int(match[2]))
        return {trial: sorted(found) for trial, found in steps.items()}


def encode_state(trial: int, state: State) -> bytes:
    """Returns the bytes of a state file.

    Raises:
        ValueError: an array of objects or of a type that npz files cannot name.
    """
    entries: dict[str, Array] = {}
    for position, array in enumerate(state.arrays):
        plain = np.asarray(array, order="C")
        if plain.dtype.hasobject or plain.dtype.kind == "V":
            raise ValueError(
                f"Array {position} of trial {trial} has the type {plain.dtype}, which "
                "a state cannot hold: convert it to a number type of NumPy."
            )
        entries[f"array_{position:06d}"] = plain
    header = {"trial": trial, "step": state.step, "meta": state.meta}
    entries["header"] = np.frombuffer(canonical(header).encode("ascii"), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **entries)  # type: ignore[arg-type]  # stubs of NumPy 2.1 and up
    # The file ends with the length of the zip comment, which is zero so far.
    body = buffer.getvalue()[:-2] + struct.pack("<H", _DIGEST_LENGTH)
    return body + _digest(body)


def decode_state(path: str, trial: int, step: int, data: bytes) -> State:
    """Returns the state in a file's bytes; `path` is for the message.

    Raises:
        DamagedError: torn, changed, or the state of another trial or step.
    """
    body, digest = data[:-_DIGEST_LENGTH], data[-_DIGEST_LENGTH:]
    if _digest(body) != digest:
        raise DamagedError(path, "its content does not match its checksum")
    with np.load(io.BytesIO(data), allow_pickle=False) as entries:
        header = json.loads(entries["header"].tobytes())
        names = sorted(name for name in entries.files if name.startswith("array_"))
        arrays = [entries[name] for name in names]
    if (header["trial"], header["step"]) != (trial, step):
        raise DamagedError(
            path, f"it holds trial {header['trial']} at step {header['step']}"
        )
    return State(step, arrays, header["meta"])


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")
