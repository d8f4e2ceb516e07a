"""In which precision does a network compute?

Layers are given Keras's policy one by one, on a copy of the network: the policy that
Keras keeps for the whole process is never touched, so networks of several precisions
live side by side, built by any thread.
"""

from __future__ import annotations

from dps_tf._keras import keras
from dps_tf.core.errors import UserError

_FLOAT32 = "float32"


def in_precision(model: keras.Model, precision: str) -> keras.Model:
    """Returns a network of the same form and names that computes in `precision`.

    `mixed_bfloat16`: layers compute in bfloat16; variables and their gradients are
    float32, and so are the layers that give the outputs, for 8 bits cannot tell large
    logits apart. A layer whose own policy is not float32 keeps it. For `float32`
    returns the model itself.

    Args:
        model: functional, of layers that `get_config` describes; the values of its
            variables are not copied.
        precision: name of a Keras policy.

    Raises:
        UserError: the copy has other variables than the model.
    """
    if precision == _FLOAT32:
        return model
    copy = _copied(model, precision, keeps_outputs=True)
    if _variables(copy) != _variables(model):
        raise UserError(
            f"network {model.name!r} has other variables when it is copied for "
            f"precision {precision!r}: give its layers a get_config that describes "
            "them, or train it in 'float32'."
        )
    return copy


def _copied(model: keras.Model, precision: str, keeps_outputs: bool) -> keras.Model:
    exits = {id(tensor._keras_history.layer) for tensor in model.outputs}

    def copied(layer: keras.layers.Layer) -> keras.layers.Layer:
        stays = keeps_outputs and id(layer) in exits
        if isinstance(layer, keras.Model):
            return _copied(layer, precision, keeps_outputs=stays)
        config = layer.get_config()
        if not stays and layer.dtype_policy.name == _FLOAT32:
            config["dtype"] = precision
            if "cell" in config:
                # What a recurrent layer repeats is a layer with a policy of its own.
                config["cell"]["config"]["dtype"] = precision
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=copied)


def _variables(model: keras.Model) -> list[tuple[str, tuple[int, ...], str]]:
    """Returns (name, shape, dtype) of all variables, in the order of the weights."""
    return [(v.name, tuple(v.shape), v.dtype.name) for v in model.weights]
