"""Which variable of a copied model belongs to which of the original?"""

from __future__ import annotations

import tensorflow as tf

from dps_tf._keras import keras


def twins(plain: keras.Model, wrapped: keras.Model) -> dict[int, tf.Variable]:
    """Returns the variables of `wrapped`, by the id of those they are copies of."""
    found = {}
    for layer, copy in zip(plain.layers, wrapped.layers, strict=True):
        if isinstance(layer, keras.Model):
            found.update(twins(layer, copy))
            continue
        inner = copy.layer if hasattr(copy, "pruning_vars") else copy
        for variable, own in zip(layer.weights, inner.weights, strict=True):
            found[id(variable)] = own
    return found
