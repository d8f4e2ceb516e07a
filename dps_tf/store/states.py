"""A state is a step with arrays, from which an unfinished trial continues.

Its file is an npz file (no pickle, not compressed), which NumPy can read; the zip
comment is the sha256 of all bytes before it. The newest two states of each trial are
kept, so that a damaged one costs some steps but never all.
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

from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.records import canonical, set_aside

Array = npt.NDArray[Any]

_NAME = re.compile(r"trial-(\d+)\.step-(\d+)\.npz")
_KEPT = 2
_DIGEST_LENGTH = 64  # hexadecimal digits of a sha256


class State(NamedTuple):
    """The state of a trial: steps done, its variables in order, and a JSON object."""

    step: int
    arrays: list[Array]
    meta: dict[str, Any]


class StateStore:
    """The states of one study's trials in one folder.

    A trial's newest state is the one with the highest step. Training is a function of
    the trial and the step, so it does not matter which worker wrote a state. A state
    that comes late and is older than the two that are kept is dropped.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        files.remove_stale(directory)

    def save_many(self, states: Mapping[int, State]) -> None:
        """Writes states of several trials, at the price of one fsync of the folder.

        The new states are on the disk before older ones are removed. After a failure or
        a kill each trial has its old or its new state.
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

    def trials(self) -> list[int]:
        """Returns the numbers of the trials that have a state, sorted."""
        return sorted(self._steps())

    def _read(self, trial: int, step: int, problems: list[str]) -> State | None:
        path = self._path(trial, step)
        try:
            return decode_state(path, trial, step, self._files.read_bytes(path))
        except FileNotFoundError:
            # Another worker has just replaced the state by a newer one.
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
        return {trial: sorted(numbers) for trial, numbers in steps.items()}


def encode_state(trial: int, state: State) -> bytes:
    """Returns the bytes of a state file; ValueError for what npz files cannot hold."""
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
        DamagedError: the bytes are torn, changed, or of another trial or step.
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
