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
    """Returns the tables of one or several sweeps, as pandas DataFrames.

    A notebook shows the table of results; `best` has the winner of each cell, `plot()`
    draws K* against the batch size, `columns` tells what each column means.

    Args:
        sweep_dirs: sweep directories, on disks or object stores.
        goal: another goal than the studies' own, or another threshold for their metric.
        labels: one per directory, so that sweeps of the same cells lie side by side.

    Raises:
        UserError: see `analysis.loading.load`.
    """
    from dps_tf.analysis import loading

    return loading.load(*sweep_dirs, goal=goal, labels=labels, files=files_of)
