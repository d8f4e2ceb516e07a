"""Variables that are assigned and read together, in one transfer.

A turn of a race loads a trial and reads it back. One by one, the variables of an
optimizer with slots cost milliseconds of Python each time, of which all slots of a
process share one interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class PackedVariables:
    """Some variables as arrays, in their order."""

    def __init__(self, variables: Sequence[tf.Variable]):
        """Traces both ways; `variables` are those of one device or mirrored."""
        self._variables = list(variables)
        kinds = [variable.dtype.as_numpy_dtype for variable in self._variables]
        self._groups = [
            [place for place, other in enumerate(kinds) if other is kind]
            for kind in dict.fromkeys(kinds)
        ]
        self._assign = self._build_assign()
        self._read = tf.function(self._packed, input_signature=[], autograph=False)

    def assign(self, arrays: Sequence[np.ndarray]) -> None:
        """Gives each variable the value of an array.

        Raises:
            ValueError: the arrays are not of the number and shapes of the variables.
        """
        shapes = [tuple(np.shape(array)) for array in arrays]
        if shapes != [tuple(variable.shape) for variable in self._variables]:
            raise ValueError(f"arrays of shapes {shapes} are not those of a program")
        self._assign(
            [
                np.concatenate([np.ravel(arrays[place]) for place in group])
                for group in self._groups
            ]
        )

    def read(self) -> tuple[np.ndarray, ...]:
        """Returns copies of the values; of several replicas, those of the first."""
        found: list[Any] = [None] * len(self._variables)
        for group, packed in zip(self._groups, self._read(), strict=True):
            shapes = [tuple(self._variables[place].shape) for place in group]
            ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
            parts = np.split(packed.numpy(), ends[:-1])
            for place, part, shape in zip(group, parts, shapes, strict=True):
                found[place] = np.array(part.reshape(shape))
        return tuple(found)

    def _packed(self) -> list[tf.Tensor]:
        flat = [tf.reshape(first_replica(v), [-1]) for v in self._variables]
        return [tf.concat([flat[place] for place in g], 0) for g in self._groups]

    def _build_assign(self) -> Any:
        def assign(packed: Sequence[tf.Tensor]) -> None:
            for group, values in zip(self._groups, packed, strict=True):
                own = [self._variables[place] for place in group]
                sizes = [variable.shape.num_elements() for variable in own]
                parts = tf.split(values, sizes)
                for variable, part in zip(own, parts, strict=True):
                    variable.assign(tf.reshape(part, variable.shape))

        types = [self._variables[group[0]].dtype for group in self._groups]
        specs = [tf.TensorSpec([None], kind) for kind in types]
        return tf.function(assign, input_signature=[specs], autograph=False)


def first_replica(variable: Any) -> Any:
    """Returns a variable, or its first replica where it has several."""
    values = getattr(variable, "values", None)
    return values[0] if values else variable
