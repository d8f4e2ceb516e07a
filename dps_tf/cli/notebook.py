"""The functions of the package that do in Python what the commands do."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dps_tf._tensorflow import import_tensorflow
from dps_tf.analysis import loading
from dps_tf.cli.command_line import tell_of_damage
from dps_tf.core import UserError, check_known
from dps_tf.store import files_for

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dps_tf.analysis.fit_table import TableFit
    from dps_tf.analysis.recommend import Recommendation
    from dps_tf.core import Goal
    from dps_tf.probing.trained_trial import TrainedTrial
    from dps_tf.workloads.reading import SweepConfiguration


class Tables(loading.Tables):
    """The tables of some sweeps, with displays and a plot for notebooks.

    See `analysis.loading.Tables` for the tables. Modules that draw are imported only
    when something is drawn.
    """

    def plot(self) -> Figure:
        """Returns the figure of K* against the batch size, with law and regimes."""
        from dps_tf.analysis.report.headline import steps_figure

        return steps_figure(self.results)

    def fit(self) -> TableFit:
        """Returns the fits of c1/B + c2; `print` shows what the command `fit` does."""
        from dps_tf.analysis.fit_table import fit_table

        return fit_table(self.results)

    def predict(self, batch_sizes: Sequence[float]) -> pd.DataFrame:
        """Returns K* at further batch sizes; see `dps_tf.predict`."""
        from dps_tf.analysis.recommend import predict

        return predict(self, batch_sizes)

    def recommend(
        self,
        devices: int = 1,
        step_times: pd.DataFrame | None = None,
        deadline: float | None = None,
    ) -> dict[str, Recommendation]:
        """Returns the batch size to train with on N devices, by curve.

        `step_times` has batch_size, devices, seconds (of a step) and perhaps price (of
        an hour); None stands for the times of the sweep itself. See
        `analysis.recommend.recommend`.
        """
        from dps_tf.analysis.recommend import recommend_curves
        from dps_tf.analysis.step_times import recorded_step_times

        recorded = recorded_step_times(self.work)
        return recommend_curves(self.results, step_times, recorded, devices, deadline)

    def __repr__(self) -> str:
        """Returns the number of cells, and K* of the first ones, in about ten lines."""
        from dps_tf.analysis.report.terminal import short_table

        return short_table(self)

    def _repr_html_(self) -> str:
        """Returns the table of results as HTML for notebooks."""
        from dps_tf.analysis.report.terminal import html_table

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
        sweep_dirs: sweep directories, on disks or object stores. A cell may be in one
            directory only, or in several under different precisions or labels.
        goal: another goal than the studies' own, or another threshold for the metric
            of each study's own goal. No training is needed; where a trial was stopped
            before it could answer, K* is bounded (`steps_bound`).
        labels: one per directory, so that sweeps of the same cells lie side by side.
            Cells then have the axis `workload.label`, unless their label is empty.

    Raises:
        UserError: no directory, one that holds no sweep, two that hold the same cell,
            not one label per directory, or a goal that the curves cannot answer.

    Example, of a sweep that was run before:

        tables = dps_tf.load("sweeps/mnist", goal=0.05)
        tables.best[["batch_size", "steps_to_result"]]
    """
    read = loading.load(*sweep_dirs, goal=goal, labels=labels)
    return Tables(**vars(read))


def run(
    sweep: SweepConfiguration | None = None,
    sweep_dir: str | os.PathLike[str] = "",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Tables:
    """Runs a sweep, or continues it, and returns its tables.

    The command `python -m dps_tf.train` does the same with the same configuration and
    directory: either continues where the other was stopped. In a notebook, lines now
    and then show the progress of a cell. Interrupting the kernel (or Ctrl-C) saves
    everything; the same call continues the sweep.

    Args:
        sweep: a sweep that `dps_tf.sweep` has returned; None makes it of `options`.
        sweep_dir: directory in which the sweep is kept, with its gin file.
        data_dir: folder of prepared data sets.
        options: keywords of `dps_tf.sweep` where there is no sweep yet; and further
            fields of `tuning.options.Options`, such as `slots`, `strategy` or
            `engine`. Only `lanes` changes a result: how numbers round.

    Returns:
        The tables that `dps_tf.load(sweep_dir)` returns.

    Raises:
        UserError: the command `train` would refuse the sweep too.
        KeyboardInterrupt: the run was stopped; everything is saved.

    Example, which trains for some minutes:

        sweep = dps_tf.sweep("quickstart")
        dps_tf.run(sweep, "sweeps/quickstart", slots=2)

    and of a network and arrays of one's own, without a gin file:

        tables = dps_tf.run(
            sweep_dir="sweeps/mine", network=build_network, dataset=(x, y), goal=0.05,
            batch_sizes=(8, 32, 128), step_budget=2000)
    """
    import_tensorflow()
    from dps_tf.cli.sweep_run import SweepRun
    from dps_tf.tuning.interruption import Interrupted, StopRequest
    from dps_tf.tuning.options import Options
    from dps_tf.workloads.reading import SweepConfiguration, configure

    if not isinstance(sweep, SweepConfiguration | None) or not sweep_dir:
        raise UserError(
            "run takes a sweep of dps_tf.sweep, or its keywords, and sweep_dir=FOLDER."
        )
    taken = [field.name for field in fields(Options)]
    # The first ones are gin files.
    parts = [*inspect.signature(configure).parameters][1:] if sweep is None else []
    for name in options:
        check_known("option", name, [*taken, *parts])
    made = {name: options.pop(name) for name in parts if name in options}
    sweep = sweep or configure(**made)
    folder = None if data_dir is None else os.fspath(data_dir)
    run_options = Options(os.fspath(sweep_dir), folder, **options)
    sweep_run = SweepRun(sweep, run_options)
    if sweep.objects:
        print(
            f"note: {' and '.join(sweep.objects)}: only this program has it. Give it "
            "again to resume, and to load_trial; export, measure and Ray need it in a "
            "module."
        )
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
    sweep_run.print_outcome(outcome)
    return load(sweep_dir)


def load_trial(
    sweep_dir: str | os.PathLike[str],
    cell: str | None = None,
    trial: int | str = "best",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    network: Any = None,
    dataset: Any = None,
) -> TrainedTrial:
    """Returns a trained trial: its Keras model, its weights and masks by name.

    The command `python -m dps_tf.export` saves the same trial.

    Args:
        sweep_dir: a sweep directory.
        cell: name of the cell, as in `status` and the column `cell` of `Tables.best`;
            it may be left out if there is only one cell.
        trial: number of the trial, or `best` for the one that met the goal first.
        data_dir: folder of prepared data sets.
        network: as in `dps_tf.sweep`, where this program has not given it yet.
        dataset: likewise.

    Raises:
        UserError: the cell or trial does not exist, its state was not kept, or the
            data are others.

    Example, of a sweep that was run before:

        cell = dps_tf.load("sweeps/quickstart").best["cell"].iloc[0]
        trial = dps_tf.load_trial("sweeps/quickstart", cell)
    """
    directory = os.fspath(sweep_dir)
    import_tensorflow()
    from dps_tf.probing.trained_trial import trained_trial
    from dps_tf.store import SweepReader
    from dps_tf.tuning.resources import configure_threads
    from dps_tf.workloads.given import given_name

    files = files_for(directory)
    sweep = SweepReader(files, directory)
    # A sweep that is run afterwards, and scores computed again, have these threads.
    configure_threads(sweep.intra_op_threads)
    names = list(sweep.studies)
    if cell is None and len(names) != 1:
        raise UserError(
            f"{directory} has {len(names)} cells: name one, for example "
            f"{next(iter(names), 'after training')!r}."
        )
    folder = None if data_dir is None else os.fspath(data_dir)
    workload = sweep.study(cell or names[0]).trained().workload
    for kind, given in (("network", network), ("dataset", dataset)):
        if given is not None:
            given_name(kind, given, getattr(workload, kind))
    trained = trained_trial(files, sweep, cell or names[0], str(trial), folder)
    tell_of_damage(trained.problems, set())
    return trained
