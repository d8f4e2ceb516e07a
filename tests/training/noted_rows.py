"""An array that remembers which of its rows were asked for."""

from __future__ import annotations

import threading

import numpy as np


class NotedRows:
    def __init__(self, array: np.ndarray):
        self._array = array
        self._lock = threading.Lock()
        self.asked: list[np.ndarray] = []
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        with self._lock:
            self.asked.append(rows.copy())
        return self._array[rows]
