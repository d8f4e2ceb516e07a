"""The arrays of a state as few tensors: small ones of a type share one.

A compiled call with dozens of tensors costs more Python than the step of a small
network. Large arrays stay alone, because packing copies them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SMALL = 1 << 16
"""Most bytes of an array that is packed with others."""


class Packing:
    """How arrays of given forms are packed; `packs` and `unpacks` work in graphs too.

    Attributes:
        forms: shape and type of each array.
        signature: types of the packed tensors.
        bytes: number of bytes of all arrays together.
    """

    def __init__(self, arrays: Sequence[Any], lanes: Sequence[int] = ()):
        """`arrays`: whatever has a shape and a type, as an array of the state has.

        `lanes`: (number of lanes,) where the first dimension of arrays counts them.
        """
        self._lanes = list(lanes)
        self.forms = [_form(array) for array in arrays]
        self.sizes = [int(np.prod(shape)) for shape, _ in self.forms]
        widths = [tf.as_dtype(kind).size for _, kind in self.forms]
        self.bytes = sum(map(operator.mul, self.sizes, widths))
        groups: dict[Any, list[int]] = {}
        for place, (_, kind) in enumerate(self.forms):
            is_small = self.sizes[place] * widths[place] <= SMALL
            groups.setdefault((kind, None if is_small else place), []).append(place)
        self._groups = list(groups.values())
        self.signature = []
        for group in self._groups:
            shape, kind = self.forms[group[0]]
            sides = [sum(self.sizes[i] for i in group)] if len(group) > 1 else shape
            self.signature.append(tf.TensorSpec([*lanes, *sides], kind))

    def pack(self, arrays: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the packed tensors of arrays."""
        return self._together(arrays, tf.concat, tf.reshape)

    def packed(self, arrays: Sequence[np.ndarray]) -> Packed:
        """Returns arrays of the host, packed: by NumPy, quicker for small ones."""
        return Packed(self, self._together(arrays, np.concatenate, np.reshape))

    def _together(
        self,
        arrays: Sequence[Any],
        concatenated: Callable[..., Any],
        reshaped: Callable[..., Any],
    ) -> list[tf.Tensor]:
        return [
            tf.convert_to_tensor(
                concatenated(
                    [reshaped(arrays[i], [*self._lanes, -1]) for i in group], -1
                )
                if len(group) > 1
                else arrays[group[0]]
            )
            for group in self._groups
        ]

    def joined(self, lanes: Sequence[Packed]) -> list[tf.Tensor]:
        """Returns the packed tensors of all lanes from the views of each."""
        sources: dict[int, tuple[int, Sequence[tf.Tensor]]] = {}
        rows, count = [], 0
        for view in lanes:
            tensors, lane = view.held
            if id(tensors) not in sources:
                whole = tensors
                if lane is None:
                    whole = [tf.expand_dims(tensor, 0) for tensor in tensors]
                sources[id(tensors)] = count, whole
                count += len(whole[0])
            rows.append(sources[id(tensors)][0] + (lane or 0))
        wholes = [whole for _, whole in sources.values()]
        parts = zip(*wholes, strict=True)
        return [
            tf.gather(tf.concat(values, 0) if len(values) > 1 else values[0], rows)
            for values in parts
        ]

    def unpack(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the arrays of packed tensors."""
        return self._apart(packed, lambda x, sizes: tf.split(x, sizes, -1), tf.reshape)

    def read(self, packed: Sequence[tf.Tensor]) -> tuple[np.ndarray, ...]:
        """Returns the arrays of packed tensors, on the host."""
        arrays = self._apart(
            [np.asarray(tensor) for tensor in packed],
            lambda x, sizes: np.split(x, np.cumsum(sizes)[:-1], -1),
            np.reshape,
        )
        return tuple(arrays)

    def _apart(
        self,
        packed: Sequence[Any],
        split: Callable[..., Any],
        reshaped: Callable[..., Any],
    ) -> list[Any]:
        arrays: list[Any] = [None] * len(self.forms)
        for group, values in zip(self._groups, packed, strict=True):
            parts = [values]
            if len(group) > 1:
                parts = split(values, [self.sizes[i] for i in group])
            for i, part in zip(group, parts, strict=True):
                arrays[i] = reshaped(part, [*self._lanes, *self.forms[i][0]])
        return arrays

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Returns whether arrays have the forms of this packing."""
        if isinstance(arrays, Packed):
            return arrays.packing.forms == self.forms
        return [_form(array) for array in arrays] == self.forms


def _form(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(array.shape), array.dtype.name


class Packed(Sequence[np.ndarray]):
    """Arrays that stay packed on their device until one of them is read.

    Attributes:
        packing: how they are packed.
        held: (packed tensors, lane of them), or (packed tensors, None).
    """

    def __init__(
        self, packing: Packing, tensors: Sequence[tf.Tensor], lane: int | None = None
    ):
        self.packing = packing
        self.held: tuple[Any, int | None] = tensors, lane

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The packed tensors of these arrays alone."""
        tensors, lane = self.held
        return tensors if lane is None else [tensor[lane] for tensor in tensors]

    def part(self) -> None:
        """Lets the tensors of the other lanes go."""
        if self.held[1] is not None:
            self.held = self.tensors, None

    @functools.cached_property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.packing.read(self.tensors)

    def __len__(self) -> int:
        return len(self.packing.forms)

    def __getitem__(self, place: Any) -> Any:
        return self._arrays[place]

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self._arrays)
