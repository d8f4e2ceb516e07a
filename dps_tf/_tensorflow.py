"""The import of TensorFlow without its start-up lines, and quick imports of others."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator

_OPTIONAL = ("jax", "matplotlib", "IPython")
"""Packages that TensorFlow and Keras import where they are, for what no command does.

TensorFlow Lite converts models of JAX; Keras plots, and shows what it plots.
"""
_BACKEND = "KERAS_BACKEND"
_IN_COMMAND = False


def import_tensorflow(*, in_command: bool = False) -> None:
    """Imports TensorFlow; shows the output of its libraries only if that fails.

    With TF_CPP_MIN_LOG_LEVEL=0 or 1 the output is shown in any case. `in_command`:
    whether the process is one of this package's commands, see `quick_imports`.

    Raises:
        UserError: Python runs without docstrings.
    """
    global _IN_COMMAND
    if sys.flags.optimize > 1:
        from dps_tf.core import UserError

        raise UserError(
            "TensorFlow's Keras needs docstrings, which Python leaves out here: unset "
            "PYTHONOPTIMIZE, or leave out -OO."
        )
    _IN_COMMAND = _IN_COMMAND or in_command
    with quick_imports():
        _import_quietly()
    if in_command:
        gc.freeze()  # No later pass looks through what stays to the end.


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Imports collect no garbage, and in a command they find none of `_OPTIONAL`.

    Nor do they ask for the backend of Keras 3 that the user has set. To be used while
    no other thread imports. Outside a command, where a program of the user goes on,
    imports find what they would.
    """
    backend = os.environ.get(_BACKEND)
    if _IN_COMMAND:
        os.environ[_BACKEND] = "tensorflow"
    hidden = [name for name in _OPTIONAL if _IN_COMMAND and name not in sys.modules]
    is_collecting = gc.isenabled()
    gc.disable()  # Each of many passes would look through all that is imported.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if _IN_COMMAND:
            del os.environ[_BACKEND]
            if backend is not None:
                os.environ[_BACKEND] = backend
        if is_collecting:
            gc.enable()


def _import_quietly() -> None:
    # The libraries write about missing devices; errors are raised anyway.
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules or level in ("0", "1"):
        return
    with tempfile.TemporaryFile() as written:
        # The libraries write to the file descriptor itself, not to sys.stderr.
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            importlib.import_module("tensorflow")
        except BaseException:
            written.seek(0)
            os.write(before, written.read())
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)
