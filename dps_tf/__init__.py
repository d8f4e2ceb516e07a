"""Steps-to-result of neural-network training against batch size and sparsity.

`load(sweep_dir)` returns the tables of a sweep; `StepsToResult` is the Keras callback
that finds the first step at which a model meets a goal. Neither is imported before it
is asked for, so `import dps_tf` is quick and does not load TensorFlow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# TensorFlow reads this once, at its own import: set before anything can import it.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

if TYPE_CHECKING:
    from dps_tf.cli.sweep_files import load as load
    from dps_tf.training.callback import StepsToResult as StepsToResult

__version__ = "0.1.0"
__all__ = ["StepsToResult", "__version__", "load"]

_LAZY = {
    "load": ("dps_tf.cli.sweep_files", "load"),
    "StepsToResult": ("dps_tf.training.callback", "StepsToResult"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dps_tf' has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)
