"""Refuses networks that draw random numbers by themselves.

A trial is a function of its seeds. A Keras layer such as Dropout draws from a generator
whose state belongs to the process, so its trial would depend on what ran before.
"""

from __future__ import annotations

from dps_tf._keras import keras
from dps_tf.core.errors import UserError

# How much a stock layer draws; one with nothing but zeros here draws nothing.
_AMOUNTS = ("rate", "stddev", "dropout", "recurrent_dropout", "attention_dropout")


def check(model: keras.Model) -> None:
    """Raises UserError if a layer of the model draws from a generator of its own."""
    for layer in model._flatten_layers():
        if _draws(layer):
            raise UserError(
                f"layer {layer.name!r} ({type(layer).__name__}) of model "
                f"{model.name!r} draws random numbers that no seed of the trial "
                "decides, so no trial could be repeated: remove it, or regularize by "
                "what is no draw, such as the metaparameter label_smoothing."
            )


def _draws(layer: keras.layers.Layer) -> bool:
    if not isinstance(layer, keras.__internal__.layers.BaseRandomLayer):
        return False
    amounts = [getattr(layer, name) for name in _AMOUNTS if hasattr(layer, name)]
    return not amounts or any(amounts)
