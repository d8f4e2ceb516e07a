"""Where sweeps lie: on a disk, or on an object store such as `gs://`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dps_tf.cli.command_line import import_tensorflow, tell_of_damage
from dps_tf.store.files import FileSystem, LocalFiles

if TYPE_CHECKING:
    from dps_tf.analysis.loading import Tables
    from dps_tf.analysis.sweep_status import CellStatus
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


def cell_statuses(sweep_dirs: Sequence[str], told: set[str]) -> list[CellStatus]:
    """Returns how far every cell of some sweeps is; tells of damage on standard error.

    Args:
        sweep_dirs: sweep directories, such as the shards of one sweep.
        told: what has been told already, and is not again; added to.
    """
    # After the flags are checked: tables take a second to load.
    from dps_tf.analysis.sweep_status import merged_status, sweep_status
    from dps_tf.store.sweep_reader import SweepReader

    statuses = []
    for directory in sweep_dirs:
        files = files_of(directory)
        sweep = SweepReader(files, directory)
        statuses.append(sweep_status(files, sweep))
        tell_of_damage(sweep.problems, told)
    return merged_status(statuses)


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
