"""The only import of Keras: `from dps_tf._keras import keras` gives tf_keras.

Two Keras versions live in one process (keras-tuner brings Keras 3, tfmot needs
tf_keras), and the order of imports decides which of them `tf.keras` means. No other
module of the package imports either, so the package does not depend on that order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from dps_tf._tensorflow import import_tensorflow

import_tensorflow()

import tensorflow as tf  # noqa: E402
import tf_keras as keras  # noqa: E402

__all__ = ["keras", "own_settings"]

_POLICY = keras.mixed_precision.global_policy, keras.mixed_precision.set_global_policy
_LOCK = threading.Lock()
_INSIDE = 0
_FOUND = contextlib.ExitStack()


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Gives Keras this package's settings, and then its former ones again.

    A network is built and traced with them, whatever `~/.keras/keras.json` or the
    program of a user says. They are channels last, float32, no global policy, functions
    that are graphs, and Keras's own meaning of its names. Threads may overlap: the
    first one sets, and the last one restores.

    >>> keras.backend.set_image_data_format("channels_first")
    >>> with own_settings():
    ...     keras.backend.image_data_format()
    'channels_last'
    >>> keras.backend.image_data_format()
    'channels_first'
    >>> keras.backend.set_image_data_format("channels_last")
    """
    global _INSIDE
    with _LOCK:
        _INSIDE += 1
        if _INSIDE == 1:
            _set()
    try:
        with keras.utils.custom_object_scope(_own_names()):
            yield
    finally:
        with _LOCK:
            _INSIDE -= 1
            if not _INSIDE:
                _FOUND.close()


def _set() -> None:
    """Sets what differs, and notes in `_FOUND` how to restore it."""
    backend, config = keras.backend, tf.config
    for read, write, own in (
        (backend.image_data_format, backend.set_image_data_format, "channels_last"),
        (backend.floatx, backend.set_floatx, "float32"),
        (backend.epsilon, backend.set_epsilon, 1e-7),
        (config.functions_run_eagerly, config.run_functions_eagerly, False),
        (*_POLICY, "float32"),  # after `floatx`, which names the policy of none
    ):
        found = read()
        if getattr(found, "name", found) != own:
            _FOUND.callback(write, found)
            write(own)


def _own_names() -> dict[str, Any]:
    """Returns what Keras means by its names, where a program means something else."""
    with keras.utils.custom_object_scope() as scope:
        others = {*keras.utils.get_custom_objects(), *scope.backup}
    parts = keras.activations, keras.initializers, keras.layers, keras.regularizers
    return {n: getattr(p, n) for p in parts for n in others if hasattr(p, n)}
