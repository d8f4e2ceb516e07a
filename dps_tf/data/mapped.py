"""Examples that stay in a file until they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

Preprocess = Callable[[np.ndarray], np.ndarray]


class MappedRows:
    """Rows of an array that is mapped from a file, preprocessed when they are read.

    Stands for `preprocess(array[indices])`, which may be larger than memory. Indexed by
    whole numbers, of any shape, it gives an array; a slice is a view, as in NumPy, and
    `numpy.asarray` reads it.

    Attributes:
        dtype: of the array that it stands for.
    """

    def __init__(
        self,
        array: np.ndarray,
        indices: np.ndarray,
        preprocess: Preprocess | None = None,
    ):
        """Reads one row, for its shape and type.

        Args:
            array: [n, ...].
            indices: int [m], rows of `array`.
            preprocess: turns rows [k, ...] into what is read, each by itself; None
                leaves them.
        """
        self._array = array
        self._indices = indices
        self._preprocess = preprocess
        like = self._read(indices[:1])
        self._row_shape = like.shape[1:]
        self.dtype = like.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that it stands for."""
        return (len(self._indices), *self._row_shape)

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """What it would take in memory."""
        return self.size * self.dtype.itemsize

    def _read(self, rows: np.ndarray) -> np.ndarray:
        found = np.asarray(self._array[rows])
        return found if self._preprocess is None else self._preprocess(found)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._indices)

    def __getitem__(self, key: slice | np.ndarray) -> np.ndarray | MappedRows:
        """Returns a view of a slice of rows, or the rows at whole numbers."""
        rows = self._indices[key]
        if isinstance(key, slice):
            view = copy.copy(self)
            view._indices = rows
            return view
        return self._read(rows.reshape(-1)).reshape(*rows.shape, *self._row_shape)

    def __array__(
        self,
        dtype: DTypeLike | None = None,
        copy: bool | None = None,
    ) -> np.ndarray:
        """Returns all rows as an array, which is always a new one."""
        if copy is False:
            raise ValueError("rows of a file cannot be an array without a copy")
        return self._read(self._indices).astype(dtype or self.dtype, copy=False)
