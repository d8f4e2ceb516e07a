"""Where sweeps lie: on a disk, or on an object store such as `gs://`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dps_tf.cli.command_line import import_tensorflow
from dps_tf.store.files import FileSystem, LocalFiles

if TYPE_CHECKING:
    from dps_tf.analysis.loading import Tables
    from dps_tf.core.goal import Goal


def files_of(directory: str) -> FileSystem:
    """Returns the file system of a sweep directory.

    TensorFlow, which knows object stores, is imported for a path with a scheme only.
    """
    if "://" not in directory:
        return LocalFiles()
    import_tensorflow()
    from dps_tf.training import gfile_files

    return gfile_files.files_for(directory)


def load(
    *sweep_dirs: str | os.PathLike[str],
    goal: Goal | float | None = None,
    labels: Sequence[str] = (),
) -> Tables:
    """Returns the tables of sweeps, on disks or object stores; see `loading.load`."""
    from dps_tf.analysis import loading

    return loading.load(*sweep_dirs, goal=goal, labels=labels, files=files_of)
