"""One run of a sweep, by the command `train` or by `dps_tf.run`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from dps_tf.analysis.plan import WORK
from dps_tf.cli import sweep_plan
from dps_tf.cli.command_line import import_ray
from dps_tf.cli.sweep_plan import SweepRecords, asked_cells, plan_text
from dps_tf.core import UserError
from dps_tf.probing.replay import dataset_of, network_of
from dps_tf.store import (
    MOST_ATTEMPTS,
    StoreError,
    StudyReader,
    SweepLayout,
    SweepReader,
    absolute,
    files_for,
)
from dps_tf.training import explain
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.calibration import calibrate
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import configure_threads
from dps_tf.tuning.sweep import Sweep, SweepOutcome, describe_failures
from dps_tf.workloads.reading import SweepConfiguration, describe


class SweepRun:
    """A sweep that is about to be run with some options.

    Args:
        configuration: the sweep to run.
        options: where and how its trials run.
        threads: what `threads_of_run` has returned; None calls it.
    """

    def __init__(
        self,
        configuration: SweepConfiguration,
        options: Options,
        threads: int | None = None,
    ):
        """Raises UserError for names that are not registered; writes no file."""
        if configuration.objects and options.engine != "local":
            raise UserError(
                f"{' and '.join(configuration.objects)} is of this program alone, and "
                "the processes of Ray need it: define it in a module."
            )
        threads = threads or threads_of_run(options)
        studies = configuration.specification.studies
        studies = tuple(
            replace(study, intra_op_threads=threads, **options.settled)
            for study in studies
        )
        sweep = replace(configuration.specification, studies=studies)
        self.configuration = replace(configuration, specification=sweep)
        self.options = options
        self._files = files_for(options.sweep_dir)
        self._records = SweepRecords(self._files, options.sweep_dir)
        self._backends = Backends(options, self._files)
        self._backends.check(sweep)
        self._pruning = 0.0

    def try_out(self) -> str:
        """Tries out everything that a sweep needs; returns its description.

        The run opens the data, compares the sweep with the studies in its directory,
        and starts the devices. For each kind of cell (network, optimizer, method of
        pruning) one trial is initialized and pruned, and makes one step at the largest
        batch size. Nothing is written.

        Raises:
            UserError: a cell could not be trained.
        """
        if self.options.sweep_dir:
            check_place(self.options.sweep_dir)
            self._sweep(StopRequest()).check()
        self._pruning = self._backends.try_out(self.configuration.specification)
        text = describe(self.configuration.specification, self.configuration.gin)
        return f"{text}\n{explain(self.options.data_placement)}"

    def plan(
        self,
        like: Sequence[str],
        costs: Mapping[str, float],
        step_times: str | None = None,
    ) -> str:
        """Tries out everything, measures for some seconds, and returns the plan.

        Args:
            like: sweep directories and tables of published curves, from which steps
                of trials are predicted.
            costs: what an hour of the machine costs, by unit.
            step_times: file to write the seconds of a step to, or None.

        Raises:
            UserError: see `try_out`; a place in `like` is no sweep and no table, or the
                file cannot be written.
        """
        measured = [sweep_plan.like(place) for place in like]
        text = self.try_out()
        if self.options.sweep_dir:
            measured.append(self._records.done())
        studies = self.configuration.specification.studies
        waiting = [s for s in studies if not self._records.has_finished(s)]
        nothing = "nothing to plan: all cells are finished."
        if not (waiting or step_times):
            return f"{text}\n{nothing}"
        timed = waiting or studies
        calibration = calibrate(self._backends, timed, self._pruning)
        if step_times:
            # A step to recommend by is of one trial that has the device for itself.
            alone = [replace(study, lanes=1) for study in timed]
            found = calibrate(self._backends, alone, self._pruning)
            columns = {"devices": found.devices, "seconds": found.steps}
            table = pd.DataFrame(columns).rename_axis("batch_size")
            try:
                Path(step_times).write_text(table.to_csv(), "utf-8")
            except OSError as error:
                raise UserError(
                    f"--step_times={step_times} cannot be written: {error.strerror}."
                ) from error
            text += f"\nwritten: {step_times}, for python -m dps_tf.recommend"
        if not waiting:
            return f"{text}\n{nothing}"
        done = pd.concat([pd.DataFrame(columns=list(WORK)), *measured])
        plan = plan_text(done, asked_cells(waiting), calibration, costs)
        return f"{text}\n\n{plan}"

    def run(self, stop: StopRequest) -> SweepOutcome:
        """Runs the cells that are not finished; see `Sweep.run`.

        Objects of this program are compared with the objects of finished cells too:
        an object may have changed under its name.
        """
        if self.configuration.objects:
            for study in self.configuration.specification.studies:
                layout = SweepLayout(self.options.sweep_dir).cell(study.cell.name)
                if (reader := StudyReader(self._files, layout)).is_closed:
                    network_of(reader, dataset_of(reader, self.options.data_dir))
        gin_text = self.configuration.gin
        sweep = self._sweep(stop)
        if self.options.engine != "ray":
            return sweep.run(gin_text)
        engine = import_ray("ray_engine", self.options.ray_address)
        outcome: SweepOutcome = engine.run_sweep(sweep, gin_text)
        return outcome

    def _sweep(self, stop: StopRequest) -> Sweep:
        return Sweep(
            self._files,
            self.configuration.specification,
            self.options,
            self._backends,
            stop,
            forecast=self._records,
        )

    def print_outcome(self, outcome: SweepOutcome) -> None:
        """Prints the cells that were not run; failed trials go to standard error."""
        if not outcome.ran and not outcome.busy:
            cells = len(self.configuration.specification.studies)
            print(f"nothing to do: all {cells} cells are finished.")
        for name, owner in outcome.busy.items():
            print(f"{name}: being run by {owner}.")
        if outcome.busy or not outcome.failed:
            return
        for name in outcome.failed:
            print(describe_failures(name, outcome.ran[name]), file=sys.stderr)
        print(
            f"trials failed in {', '.join(outcome.failed)}: K* there may be a bound. "
            "Mend the cause, then run the sweep again: it tries a trial "
            f"{MOST_ATTEMPTS} times in all. Remove a cell's folder to begin it anew.",
            file=sys.stderr,
        )


def threads_of_run(options: Options) -> int:
    """Returns the threads per operation of a run; TensorFlow gets them if it can.

    A sweep directory keeps the number with which it was begun; a new one has 1, or
    the number that TensorFlow was started with, which the run then says.
    """
    begun = None
    if directory := options.sweep_dir:
        # Of a directory that cannot be read, the run says so later.
        with contextlib.suppress(UserError, StoreError):
            begun = SweepReader(files_for(directory), directory).intra_op_threads
    here = configure_threads(begun)
    if options.engine != "local":
        return begun or 1  # Slots are processes of their own.
    if here > 1 and begun is None:
        print(
            f"note: TensorFlow was started before this sweep, with {here} threads per "
            "operation, on which the sweep's numbers depend, and which the trials "
            "side by side share; for one thread, as the command has, begin a notebook "
            "with tf.config.threading.set_intra_op_parallelism_threads(1)."
        )
    return begun or here


def check_place(directory: str) -> None:
    """Raises UserError for a sweep directory on this machine that cannot be written."""
    if "://" in directory:
        return
    place = Path(absolute(directory))
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UserError(f"--sweep_dir={directory}: {place} is no folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(
            f"--sweep_dir={directory}: {place} cannot be written by this user: name "
            "another directory."
        )
