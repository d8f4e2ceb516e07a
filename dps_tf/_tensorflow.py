"""The import of TensorFlow without its start-up lines."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Imports TensorFlow; shows the output of its libraries only if that fails.

    With TF_CPP_MIN_LOG_LEVEL=0 or 1 the output is shown in any case.
    """
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
