"""Networks as functions of their weights.

A network that is built by `functional` can be called on given weights: its variables
then read as the tensors that stand in for them. What layers assign, such as moving
averages, is kept and returned. Keras' AutoCastVariable has the same pattern. Outside of
`given`, the variables are ordinary ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from dps_tf._keras import keras
from dps_tf.core import UserError

_TAKEN = {"initial_value", "trainable", "name", "dtype", "caching_device"}
_TAKEN |= {"constraint", "synchronization", "aggregation", "shape"}
_STANDS = "_dps_tf_stands"


class _Stand(ResourceVariable):
    """A variable that reads as the tensor `now` while one is set, and assigns to it."""

    now: tf.Tensor | None = None

    def value(self) -> tf.Tensor:
        return super().value() if self.now is None else self.now

    def read_value(self) -> tf.Tensor:
        return super().read_value() if self.now is None else self.now

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if self.now is None:
            return super().sparse_read(indices, name)
        return tf.gather(self.now, indices)

    def _dense_var_to_tensor(
        self, dtype: Any = None, name: Any = None, as_ref: bool = False
    ) -> Any:
        if self.now is None:
            return super()._dense_var_to_tensor(dtype, name, as_ref)
        is_same = dtype is None or dtype == self.now.dtype
        return self.now if is_same else NotImplemented

    def assign(self, value: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.now is None:
            return super().assign(value, *arguments, **keywords)
        self.now = tf.convert_to_tensor(value, self.dtype)
        return self.now

    def assign_add(self, delta: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.now is None:
            return super().assign_add(delta, *arguments, **keywords)
        return self.assign(self.now + delta)

    def assign_sub(self, delta: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.now is None:
            return super().assign_sub(delta, *arguments, **keywords)
        return self.assign(self.now - delta)


def functional(build: Callable[[], keras.Model]) -> keras.Model:
    """Returns the network that `build` makes, which can be called on `given` weights.

    Raises:
        UserError: a variable of the network was made before.
    """
    stands = []

    def create(next_creator: Any, **keywords: Any) -> tf.Variable:
        del next_creator
        stands.append(_Stand(**{k: keywords[k] for k in _TAKEN & {*keywords}}))
        return stands[-1]

    with tf.variable_creator_scope(create):
        model = build()
    by_handle = {id(stand.handle): stand for stand in stands}
    for variable in model.weights:
        if id(variable.handle) not in by_handle:
            raise UserError(
                f"network {model.name!r} has the variable {variable.name!r}, which its "
                "builder has not made, and every program needs its own: make all "
                "layers inside of the function that builds the network."
            )
    # Past Keras, which would count them as further weights.
    own = [by_handle[id(variable.handle)] for variable in model.weights]
    object.__setattr__(model, _STANDS, own)
    return model


def varying_averages(model: keras.Model) -> list[int]:
    """Returns where weights stand that replicas compute each for itself.

    They are places in `model.weights`: moving averages of batch normalization.
    """
    alone = tf.VariableSynchronization.ON_READ
    return [
        place
        for place, stand in enumerate(getattr(model, _STANDS))
        if stand.synchronization is alone and stand.dtype.is_floating
    ]


@contextmanager
def given(
    model: keras.Model, weights: Sequence[tf.Tensor]
) -> Iterator[Callable[[], list[tf.Tensor]]]:
    """Lets a network of `functional` read weights within; for one thread at a time.

    `weights` are in the order of `model.weights`. The function that is returned gives
    the weights after all assignments so far.
    """
    stands = getattr(model, _STANDS)
    for stand, value in zip(stands, weights, strict=True):
        stand.now = value
    try:
        yield lambda: [stand.now for stand in stands]
    finally:
        for stand in stands:
            stand.now = None
