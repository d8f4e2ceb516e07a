"""Measurement of smoothness and noise along trials, which are trained again for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from dps_tf import models, objectives
from dps_tf._keras import own_settings
from dps_tf.core import UserError, check_whole
from dps_tf.data import Dataset, Examples
from dps_tf.probing.gradients import ExampleGradients
from dps_tf.probing.noise import OPTIMIZER_NOISE, of_optimizer
from dps_tf.probing.quantities import CURVATURE, QUANTITIES, measure_update
from dps_tf.probing.replay import Arrays, dataset_of, log_spaced, read_recorded, replay
from dps_tf.sparsity import Pruner, prunes_while_training
from dps_tf.store import (
    MEASUREMENTS,
    NETWORK,
    CellLayout,
    DamagedError,
    FileSystem,
    Lock,
    RecordedTrial,
    StudyReader,
    SweepLayout,
    environment_differences,
    set_aside,
    write_table,
)
from dps_tf.training import Program, environment, kind
from dps_tf.tuning.resources import Resources


@dataclass(frozen=True)
class Wanted:
    """The settings of a measurement: which updates, quantities and examples.

    Attributes:
        examples: number of first training examples that gradients are taken over, or
            all if there are fewer; 0 takes all.
        times: number of measured updates along training; see `replay.log_spaced`.
        steps: steps k of the updates to k + 1 to measure instead of `times`.
        until: step up to which trials are trained past the goal; 0 ends at the goal.
        curvature: whether to measure `quantities.CURVATURE` too.
        optimizer_noise: whether to measure `noise.OPTIMIZER_NOISE` too.
    """

    examples: int = 5_000
    times: int = 10
    steps: tuple[int, ...] = ()
    until: int = 0
    curvature: bool = False
    optimizer_noise: bool = False

    def __post_init__(self) -> None:
        if self.examples < 0 or self.examples == 1:
            raise UserError(
                f"examples is {self.examples}; it must be at least 2, or 0 for all."
            )
        check_whole("times", self.times)
        check_whole("until", self.until, 0)
        for step in self.steps:
            check_whole("a step", step, 0)

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of the quantities that are measured at each update."""
        further = (CURVATURE, self.curvature), (OPTIMIZER_NOISE, self.optimizer_noise)
        return sum((names for names, is_wanted in further if is_wanted), QUANTITIES)

    def looks(self, trial: RecordedTrial) -> list[int]:
        """Returns the steps k of a trial at which the update to k + 1 is measured.

        Raises:
            UserError: a step lies after the end of the trial and after `until`.
        """
        end = max(trial.end, self.until)
        if not self.steps:
            return log_spaced(end, self.times)
        steps = sorted(set(self.steps))
        if steps[-1] >= end:
            raise UserError(
                f"trial {trial.number} ends at step {end}, so there is no update from "
                f"step {steps[-1]}: go on past its end with --until={steps[-1] + 1}."
            )
        return steps

    def count(self, available: int) -> int:
        """Returns how many of the `available` training examples are used."""
        return min(self.examples or available, available)


class ProgramCache:
    """A cache of the latest program and gradients, for trials and studies in sequence.

    A program serves all trials of a study. Gradients serve all studies of a network and
    data set, and are computed on one device in float32, however trials are trained.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        """Uses no device yet. None as `resources` is one device of this machine."""
        self._resources = resources
        self._program: tuple[str, Program] | None = None
        self._gradients: tuple[object, ExampleGradients] | None = None

    def program(self, study: StudyReader, dataset: Dataset) -> Program:
        """Returns a program of a study, with exact evaluation.

        Recorded bounds of evaluations that stopped early depend on the goal of that
        time, so they are compared with exact values.
        """
        key = study.trained().fingerprint + dataset.content_hash
        if self._program is None or self._program[0] != key:
            exact = replace(study.trained(), evaluation="exact")
            self._program = None  # its memory is free before the next one is built
            self._program = key, self._machine().programs(exact, dataset)[0]
        return self._program[1]

    def environment(self) -> dict[str, str]:
        """Returns the environment of trials that are trained again, as text by name."""
        return environment(self._machine().replicas)

    def _machine(self) -> Resources:
        if self._resources is None:
            self._resources = Resources.of_this_machine(slots=1)
        return self._resources

    def gradients(
        self, study: StudyReader, dataset: Dataset, examples: int
    ) -> ExampleGradients:
        """Returns gradients over the first `examples` training examples."""
        workload = study.trained().workload
        objective = objectives.build_for(workload, dataset.token_bytes)
        names = tuple(n for n in objective.reads if n in workload.metaparameters)
        network = workload.network, dict(workload.network_arguments)
        loss = workload.objective, dict(workload.objective_arguments)
        key = (network, dataset.content_hash, examples, loss, names)
        if self._gradients is None or self._gradients[0] != key:
            train = dataset.train
            first = Examples(train.inputs[:examples], train.labels[:examples])
            of_data = dataset.input_shape, dataset.classes
            gradients = ExampleGradients(
                lambda: models.build_for(workload, *of_data),
                first,
                objective,
                metaparameters=names,
            )
            self._gradients = key, gradients
        return self._gradients[1]


@dataclass(frozen=True)
class Measurer:
    """Measures updates along the trials of closed cells of one sweep.

    Attributes:
        files: file system of the sweep.
        layout: paths of the sweep.
        wanted: settings of the measurement.
        data_dir: folder of prepared data sets.
        programs: cache of compiled programs; by default on one device.
        stop: returns whether to stop early.
        say: prints a sentence for the user.
    """

    files: FileSystem
    layout: SweepLayout
    wanted: Wanted
    _: KW_ONLY
    data_dir: str | None = None
    programs: ProgramCache = field(default_factory=lambda: ProgramCache())
    stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = print

    @own_settings()
    def measure(self, cell: str, trials: Sequence[int] = ()) -> pd.DataFrame:
        """Measures some trials of a cell; returns their table, schema MEASUREMENTS.

        Trials that have all wanted measurements are not trained again. The file of
        measurements is replaced after each trial, in one piece, so a kill loses only
        the measurements of the trial that was being trained.

        Args:
            cell: name of the cell.
            trials: numbers of the trials; by default the trial that won.

        Raises:
            UserError: the cell is not finished, or another process runs it; it has no
                such trial; or a trial does not repeat its record.
            Interrupted: `stop` returned True.
        """
        study = read_recorded(self.files, self.layout, cell)
        if study is None:
            raise UserError(f"{cell} is not finished: run its sweep to the end first.")
        if NETWORK not in study.training_inputs:
            self.say(f"{cell}: no network was trained, so none is trained again.")
            return self._measured(study.layout)
        best = study.best_trial()
        numbers = list(trials) or ([] if best is None else [best])
        if not numbers:
            self.say(f"{cell}: no trial reached the goal; name one with --trial.")
        for trial in [study.trial(number) for number in numbers]:
            if not self._is_done(study, trial):
                self._measure(study, trial)
        measured = self._measured(study.layout)
        return measured[measured["trial"].isin(numbers)].reset_index(drop=True)

    def _is_done(self, study: StudyReader, trial: RecordedTrial) -> bool:
        """Returns whether a trial has exactly the wanted measurements."""
        measured = self._measured(study.layout)
        rows = measured[measured["trial"] == trial.number]
        steps = self.wanted.looks(trial)
        count = self.wanted.count(int(study.training_inputs["training_examples"]))
        keys = set(zip(rows["step"], rows["quantity"], rows["examples"], strict=True))
        names = self.wanted.quantities
        return keys == {(k, name, count) for k in steps for name in names}

    def _measured(self, paths: CellLayout) -> pd.DataFrame:
        """Returns the measurements of a cell; sets a damaged file aside."""
        try:
            return StudyReader(self.files, paths).measurements()
        except DamagedError as error:
            kept = set_aside(self.files, paths.measurements)
            self.say(f"note: {error} It is kept as {kept}.")
            return StudyReader(self.files, paths).measurements()

    def _measure(self, study: StudyReader, trial: RecordedTrial) -> None:
        lock = Lock(self.files, study.layout.root)
        if not lock.acquire():
            owner = lock.holder() or "another process"
            raise UserError(f"{study.name} is being run by {owner}: wait for it.")
        end = max(trial.end, self.wanted.looks(trial)[-1] + 1)
        with lock:
            self.say(
                f"{study.name}: trial {trial.number} is trained again, to step {end}."
            )
            rows = self._replayed(study, trial)
            measured = self._measured(study.layout)
            others = measured[measured["trial"] != trial.number]
            parts = [frame for frame in (others, rows) if len(frame)]
            lock.check()
            write_table(
                self.files,
                study.layout.measurements,
                pd.concat(parts, ignore_index=True),
                MEASUREMENTS,
            )

    def _replayed(self, study: StudyReader, trial: RecordedTrial) -> pd.DataFrame:
        """Trains a trial again and returns the measurements of it."""
        specification = study.trained()
        dataset = dataset_of(study, self.data_dir)
        program = self.programs.program(study, dataset)
        masks = self._masks(study, trial, dataset, program)
        count = self.wanted.count(len(dataset.train))
        gradients = self.programs.gradients(study, dataset, count)
        point, own = program.objective.split_point(trial.point)
        own = program.optimizer.values(own)
        values_at = {name: tf.constant(value) for name, value in own.items()}
        rows: list[dict[str, object]] = []

        def look(step: int, before: Arrays, after: Arrays) -> None:
            rate = None
            if self.wanted.curvature:
                at_step = tf.constant(step, tf.int64)
                rate = float(program.optimizer.rate(values_at, at_step))
            weights = len(program.network.weights)
            ends = before[:weights], after[:weights]
            values = measure_update(gradients, *ends, masks, point, rate)
            if self.wanted.optimizer_noise:
                slots, at = (before[weights:], after[weights:]), (ends[0], masks, point)
                values |= _optimizer_noise(program, own, step, slots, gradients, at)
            columns = {**specification.cell.to_json(), "trial": trial.number}
            columns |= {"step": step, "examples": gradients.examples}
            rows.extend(
                {**columns, "quantity": name, "value": value}
                for name, value in values.items()
            )

        replay(
            program,
            trial,
            masks,
            {step: functools.partial(look, step) for step in self.wanted.looks(trial)},
            differs=lambda change: self._report(study, trial, program, change),
            stop=self.stop,
        )
        return pd.DataFrame(rows)

    def _masks(
        self,
        study: StudyReader,
        trial: RecordedTrial,
        dataset: Dataset,
        program: Program,
    ) -> Sequence[np.ndarray] | None:
        """Returns the masks of a trial; None for a dense cell."""
        cell = study.trained().cell
        if cell.sparsity == 0:
            return None
        if prunes_while_training(cell):
            raise UserError(
                f"{study.name} prunes during training, so smoothness through one mask "
                "has no meaning for it: name other cells with --cell."
            )
        initial = models.initial_point(program.network, trial.initial_seed)
        prune = Pruner(study.trained(), dataset, self.layout.scores, self.files)
        return prune(trial.number, initial).masks

    def _report(
        self, study: StudyReader, trial: RecordedTrial, program: Program, change: str
    ) -> None:
        """Prints how a trial differs from its record; on CPUs raises UserError."""
        difference = (
            f"{study.name}: trial {trial.number}, trained again, differs {change}"
        )
        if not kind(program.strategy).repeats:
            device = program.strategy.extended.worker_devices[0]
            self.say(f"note: {difference}; sums have no fixed order on {device}.")
            return
        here = self.programs.environment()
        places = "; ".join(environment_differences(study.environments, here))
        raise UserError(
            f"{difference}: "
            + (
                f"it was trained elsewhere ({places}); measure it there, by the same "
                "--strategy."
                if places
                else "the record is not of this code and these data."
            )
        )


def _optimizer_noise(
    program: Program,
    point: Mapping[str, float],
    step: int,
    slots: tuple[Arrays, Arrays],
    gradients: ExampleGradients,
    at: tuple[Any, ...],
) -> dict[str, float]:
    """Returns OPTIMIZER_NOISE by name; `at`: the arguments of `gradients.at`."""
    optimizer = program.optimizer
    variables = program.network.trainable_variables
    before, after = (optimizer.named(values, variables) for values in slots)
    where = gradients.at(*at), gradients.batches(*at)
    noise = of_optimizer(optimizer, point, step, before, after, *where)
    numbers = noise.gradient_square, noise.noise_trace, noise.scale
    return dict(zip(OPTIMIZER_NOISE, numbers, strict=True))
