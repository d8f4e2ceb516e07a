"""Scores and iterative masks on disk: each is computed once and shared by workers.

The name of a file is the sha256 of its key, so nothing that the arrays depend on can
change without their being computed anew. Two workers that compute the same arrays at
once write the same file, each atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem, LocalFiles
from dps_tf.store.layout import absolute
from dps_tf.store.records import canonical, fingerprint, set_aside
from dps_tf.store.states import State, decode_state, encode_state


class ScoreCache:
    """Arrays by key in one folder: npz without pickle, with a digest of every byte.

    Attributes:
        hits: how often arrays were found.
        computations: how often they had to be computed.
    """

    def __init__(
        self,
        directory: str,
        files: FileSystem | None = None,
        report: Callable[[str], None] = logging.warning,
    ):
        """`directory`: `SweepLayout.scores`; made when needed. `report`: of damage."""
        self.hits = 0
        self.computations = 0
        self._directory = absolute(directory)
        self._files = LocalFiles() if files is None else files
        self._report = report

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Sequence[np.ndarray]]
    ) -> list[np.ndarray]:
        """Returns the arrays of a key, computed and saved if they are not there.

        Args:
            key: JSON values only.
            compute: returns the arrays; its errors pass, and nothing is saved.

        Raises:
            StoreError: the file system refused.
        """
        key = dict(key)
        found = self._read(key)
        if found is not None:
            self.hits += 1
            return found
        self.computations += 1
        arrays = [np.asarray(array) for array in compute()]
        state = State(0, arrays, {"key": key})
        self._files.write_atomic(self.path(key), encode_state(0, state))
        return arrays

    def path(self, key: Mapping[str, Any]) -> str:
        """Returns the file of a key."""
        return f"{self._directory}/{fingerprint(dict(key))}.npz"

    def _read(self, key: dict[str, Any]) -> list[np.ndarray] | None:
        path = self.path(key)
        try:
            state = decode_state(path, 0, 0, self._files.read_bytes(path))
            if canonical(state.meta.get("key")) != canonical(key):
                raise DamagedError(path, "it holds the scores of another key")
        except FileNotFoundError:
            return None
        except DamagedError as error:
            try:
                kept = set_aside(self._files, path)
            except FileNotFoundError:  # another worker was quicker
                kept = "damaged"
            self._report(
                f"Pruning scores in {path} are damaged ({error.reason}); the file was "
                f"set aside as {kept} and they are computed anew."
            )
            return None
        return state.arrays
