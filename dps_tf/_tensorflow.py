"""The import of TensorFlow without its start-up lines."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Imports TensorFlow; what its libraries write is shown only if that fails.

    It is shown too where TF_CPP_MIN_LOG_LEVEL is set to 0 or 1, which asks for it.
    """
    # Its libraries write about devices that they do not find; errors are raised.
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules or level in ("0", "1"):
        return
    with tempfile.TemporaryFile() as written:
        # Its libraries write to the file descriptor itself, whatever is set.
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
