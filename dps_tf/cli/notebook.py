"""Functions for Python and notebooks that do what the commands do."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dps_tf._tensorflow import import_tensorflow
from dps_tf.analysis import loading
from dps_tf.analysis.tables import documentation
from dps_tf.cli.command_line import tell_of_damage
from dps_tf.core import UserError, check_known
from dps_tf.store import files_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dps_tf.core import Goal
    from dps_tf.probing.trained_trial import TrainedTrial
    from dps_tf.workloads.reading import SweepConfiguration


class Tables(loading.Tables):
    """The tables of some sweeps, which show themselves; see `analysis.loading.Tables`.

    Drawing is the report's: it is loaded when something is drawn.
    """

    def plot(self) -> Figure:
        """Returns the figure of K* against the batch size, with law and regimes."""
        from dps_tf.analysis.report.headline import steps_figure

        return steps_figure(self.results)

    def __repr__(self) -> str:
        """Returns what there is, and K* of the first cells, in about ten lines."""
        from dps_tf.analysis.report.results import short_table

        return short_table(self)

    def _repr_html_(self) -> str:
        """Returns the table of results, as notebooks show it."""
        from dps_tf.analysis.report.results import html_table

        return html_table(self)


def load(
    *sweep_dirs: str | os.PathLike[str],
    goal: Goal | float | None = None,
    labels: Sequence[str] = (),
) -> Tables:
    """Returns the tables of one or several sweeps, as pandas DataFrames.

    A notebook shows the table of results; `best` has the winner of each cell, `plot()`
    draws K* against the batch size, `columns` says what each column means.

    Args:
        sweep_dirs: sweep directories, on disks or object stores.
        goal: another goal than the studies' own, or another threshold for their metric.
        labels: one per directory, so that sweeps of the same cells lie side by side.

    Raises:
        UserError: see `analysis.loading.load`.
    """
    read = loading.load(*sweep_dirs, goal=goal, labels=labels)
    return Tables(**vars(read))


# What `help(dps_tf.load)` shows.
load.__doc__ = f"{load.__doc__}\nColumns of the tables:\n{documentation()}\n"


def run(
    sweep: SweepConfiguration,
    sweep_dir: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Tables:
    """Runs a sweep, or goes on with it, and returns its tables.

    It is what `python -m dps_tf.train` does with the same configuration, in the same
    directory: either goes on where the other was stopped. In a notebook a line says now
    and then how a cell of the grid stands. Interrupting the kernel (or Ctrl-C) saves
    everything; run the same again to go on.

    Args:
        sweep: of `dps_tf.sweep`.
        sweep_dir: where the sweep is kept.
        data_dir: folder of prepared data sets.
        options: further fields of `tuning.options.Options`, such as `slots`,
            `strategy` or `engine`; none changes a result.

    Returns:
        What `dps_tf.load(sweep_dir)` returns.

    Raises:
        UserError: whatever the command would refuse.
        KeyboardInterrupt: it was stopped; everything is saved.
    """
    import_tensorflow()
    from dps_tf.cli.sweep_run import SweepRun
    from dps_tf.tuning.interruption import Interrupted, StopRequest
    from dps_tf.tuning.options import Options
    from dps_tf.tuning.resources import configure_threads

    for name in options:
        check_known("option", name, [field.name for field in fields(Options)])
    configure_threads()
    folder = None if data_dir is None else os.fspath(data_dir)
    given = Options(os.fspath(sweep_dir), folder, **options)
    sweep_run = SweepRun(sweep, given)
    stop = StopRequest()
    # Python gives signals to the main thread alone.
    is_main = threading.current_thread() is threading.main_thread()
    with stop.listening() if is_main else contextlib.nullcontext():
        try:
            outcome = sweep_run.run(stop)
        except Interrupted:
            raise KeyboardInterrupt(
                f"stopped by {stop.signal_name}; run the same again to continue"
            ) from None
    sweep_run.tell(outcome)
    return load(sweep_dir)


def load_trial(
    sweep_dir: str | os.PathLike[str],
    cell: str | None = None,
    trial: int | str = "best",
    *,
    data_dir: str | os.PathLike[str] | None = None,
) -> TrainedTrial:
    """Returns a trained trial: its Keras model, its weights and masks by name.

    `python -m dps_tf.export` saves the same.

    Args:
        sweep_dir: a sweep directory.
        cell: name of the cell, as `status` and the column `cell` of `Tables.best` have
            it; it may be left out where there is only one.
        trial: its number, or `best`: the one that met the goal first.
        data_dir: folder of prepared data sets.

    Raises:
        UserError: unknown cell or trial, no kept state, or other data.
    """
    directory = os.fspath(sweep_dir)
    import_tensorflow()
    from dps_tf.probing.trained_trial import trained_trial
    from dps_tf.store import SweepReader
    from dps_tf.tuning.resources import configure_threads

    files = files_for(directory)
    sweep = SweepReader(files, directory)
    names = list(sweep.studies)
    if cell is None and len(names) != 1:
        raise UserError(
            f"{directory} has {len(names)} cells: name one, for example "
            f"{next(iter(names), 'after training')!r}."
        )
    folder = None if data_dir is None else os.fspath(data_dir)
    if sweep.study(cell or names[0]).trained().cell.sparsity > 0:
        # Its scores may have to be taken again: with the threads of training.
        configure_threads()
    found = trained_trial(files, sweep, cell or names[0], str(trial), folder)
    tell_of_damage(found.problems, set())
    return found
