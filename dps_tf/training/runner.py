"""The runner of trained workloads, which runs turns of trials on programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from dps_tf.core import (
    TRAIN_LOSS,
    Job,
    Runner,
    TrialProvenance,
    TrialState,
    TurnReport,
    UserError,
    derive_seed,
    examples_at,
    lane_of,
)
from dps_tf.sparsity import MaskSet, entries_outside, masked
from dps_tf.training.evaluation import Evaluation
from dps_tf.training.program import Advance, Loaded, Program
from dps_tf.training.strategy import intra_op_threads, kind
from dps_tf.training.streamed_data import data_wait

SLICE_SECONDS = 5.0
"""Most seconds of a slice: signals are handled only between two slices."""
SplitsAt = Callable[[int, Mapping[str, float], bool], Sequence[str]]
"""See `StudySpecification.splits_at`."""
TURN_SECONDS = 20.0
"""Seconds after which a turn ends even before its evaluation, to save its state."""


class TrainingRunner(Runner):
    """Trains trials of one study on programs, one program per slot.

    Args:
        programs: one per slot, all of one network, optimizer and batch size.
        study_seed: decides the seeds of each trial, together with the trial's number.
        order: `per_trial`, or `shared` for one order of examples for all trials.
        prune: maps (trial, initial point) to masks; None trains dense networks.
        splits_at: returns the splits to evaluate beside the validation split; by
            default none.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        study_seed: int,
        order: str = "per_trial",
        prune: Callable[[int, list[np.ndarray]], MaskSet] | None = None,
        splits_at: SplitsAt = lambda step, metrics, is_bound: (),
    ):
        self._programs = tuple(programs)
        self._seed = study_seed
        self._shared_order = order == "shared"
        self._prune = prune
        self._splits_at = splits_at
        self._pruned: dict[int, MaskSet] = {}
        # Seconds of a step, and of the last evaluation, by slot; both without tracing.
        self._pace: dict[int, float] = {}
        self._evaluation: dict[int, float] = {}
        self._warm: set[int] = set()

    @property
    def slots(self) -> int:
        """The number of slots, one per program."""
        return len(self._programs)

    @property
    def lanes(self) -> int:
        """The number of trials that a slot advances together."""
        return self._programs[0].lanes

    def initial_seed(self, trial: int) -> int:
        """Returns the seed of a trial's initial point, the same in every cell."""
        return derive_seed(self._seed, trial, "initial point")

    def order_seed(self, trial: int) -> int:
        """Returns the seed of a trial's order of examples."""
        return derive_seed(self._seed, 0 if self._shared_order else trial, "order")

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds and the pruning of a trial; may compute its masks first."""
        pruned = self._mask_set(trial)
        return TrialProvenance(
            initial_seed=self.initial_seed(trial),
            order_seed=self.order_seed(trial),
            realised_sparsity=pruned.realised_sparsity,
            layers=tuple(pruned.layers),
            examples=pruned.examples,
        )

    def _mask_set(self, trial: int) -> MaskSet:
        if self._prune is None:
            return MaskSet()
        if trial not in self._pruned:
            initial = self._programs[0].initial_point(self.initial_seed(trial))
            self._pruned[trial] = self._prune(trial, initial)
        return self._pruned[trial]

    def _begin(self, program: Program, trial: int) -> TrialState:
        """Returns the state of a trial before its first step, pruned entries zero."""
        values = program.initial_point(self.initial_seed(trial))
        masks = self._mask_set(trial).masks
        if masks is not None:
            values = masked(program.network, values, masks)
        return program.fresh_state(values)

    def try_step(self, point: Mapping[str, float], slot: int = 0) -> list[np.ndarray]:
        """Makes the first step of trial 0 at a point, and keeps nothing.

        Errors of a trial's initial point, pruning or step are raised here, before any
        trial is run. Returns its loss and metrics, and what it changed of the state.
        """
        program = self._programs[slot]
        begun = self._begin(program, 0)
        jobs = [Job(0, point, begun, 1)]
        self._load(program, jobs)
        done = self._slice(slot, program, jobs, 0)[0]
        metrics = done.evaluation.metrics.values() if done.evaluation else ()
        pairs = zip(program.states()[0].arrays, begun.arrays, strict=True)
        changes = [np.asarray(x, np.float64) - np.asarray(y) for x, y in pairs]
        return [np.array([done.loss, *metrics]), *changes]

    def check_repeats(self, point: Mapping[str, float]) -> None:
        """Raises UserError unless two programs of the same make the same first step.

        With one thread of a CPU they are the same to the bit; else sums may round.
        """
        first, again = (self.try_step(point, slot) for slot in (0, 1))
        is_exact = kind(self._programs[0].strategy).repeats and intra_op_threads() == 1
        off = [float(np.linalg.norm(x - y)) for x, y in zip(first, again, strict=True)]
        sizes = [0.0 if is_exact else 0.1 * float(np.linalg.norm(x)) for x in first]
        # Where both are NaN, nothing can be told.
        if any(a > b for a, b in zip(off, sizes, strict=True)):
            raise UserError(
                "a first step, built twice, gives two results: parts of your own "
                "(network, loss, optimizer, ...) must depend on their arguments alone, "
                "and on no counter, variable or random number."
            )

    def step_seconds(self, point: Mapping[str, float], limit: float) -> float:
        """Returns the seconds of a step of trial 0 at a point; no state is kept.

        `try_step` comes before, as the first step includes compilation. `limit`:
        seconds after which no more steps are timed.
        """
        program, job = self._programs[0], Job(0, point, None, 1)
        seconds, passed, number = 0.0, 0.0, 1
        while passed < limit:
            self._load(program, [job])
            begun = time.monotonic()
            indices = examples_at(
                0,
                number,
                self.order_seed(0),
                program.data.train_count,
                program.batch_size,
            )
            steps = program.advance(indices).steps
            lasted = time.monotonic() - begun
            seconds, passed = lasted / steps, passed + lasted
            if steps < number:  # The trial diverged, as it would again.
                break
            number *= 2
        return seconds

    def evaluation_seconds(self) -> float:
        """Returns the seconds of an evaluation of the trial that was loaded last."""
        self._programs[0].evaluate()  # The first evaluation includes compilation.
        begun = time.monotonic()
        self._programs[0].evaluate()
        return time.monotonic() - begun

    def _load(self, program: Program, jobs: Sequence[Job]) -> None:
        """Loads the trials of jobs into a program, each into its lane."""
        trials = []
        for job in jobs:
            number = job.trial
            state = self._begin(program, number) if job.state is None else job.state
            masks, seed = self._mask_set(number).masks, self.initial_seed(number)
            lane = lane_of(number, self.lanes)
            trials.append(Loaded(lane, state, job.point, masks, seed))
        program.load_lanes(trials)

    def run(
        self, slot: int, jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> list[TurnReport]:
        """Trains to the jobs' evaluation, divergence, `stop` or TURN_SECONDS."""
        begun, waited = time.monotonic(), data_wait()
        program = self._programs[slot]
        last: dict[int, Advance] = {}
        self._load(program, jobs)
        first = step = jobs[0].state.step if jobs[0].state else 0
        running = list(jobs)
        while True:
            made = self._slice(slot, program, running, step)
            last |= made
            running = [job for job in running if not made[job.trial].diverged]
            step += max(done.steps for done in made.values())
            is_late = stop() or time.monotonic() - begun > TURN_SECONDS
            if not running or step >= jobs[0].until or is_late:
                break
        further: dict[str, Mapping[int, Evaluation]] = {}
        states, ended = program.states(), []
        for job in jobs:
            done, lane = last[job.trial], lane_of(job.trial, self.lanes)
            reached, metrics, is_bound = states[lane], None, False
            if done.evaluation is not None and not done.diverged:
                is_bound = done.evaluation.is_bound or self._is_too_dense(program, step)
                metrics = {**done.evaluation.metrics, TRAIN_LOSS: done.loss}
                metrics = self._with_further_splits(
                    program, lane, step, metrics, is_bound, further
                )
            if not done.is_sparse:
                self._check_sparse(program, job.trial, reached)
            ended.append(
                partial(
                    TurnReport,
                    trial=job.trial,
                    state=reached,
                    step=reached.step,
                    metrics=metrics,
                    is_bound=is_bound,
                    diverged_step=reached.step if done.diverged else None,
                    steps_executed=reached.step - first,
                )
            )
        seconds = (time.monotonic() - begun) / len(jobs)
        waited = (data_wait() - waited) / len(jobs)
        return [report(seconds=seconds, data_wait=waited) for report in ended]

    def _is_evaluated(self, job: Job, step: int) -> bool:
        """Returns whether a turn that ends at a step evaluates there."""
        return step == job.until

    def _check_sparse(self, program: Program, trial: int, reached: TrialState) -> None:
        """Raises UserError where the optimizer has moved pruned entries from zero."""
        masks, arrays = self._mask_set(trial).masks, [*map(np.asarray, reached.arrays)]
        for place, outside in entries_outside(program.network, arrays, masks or ()):
            raise UserError(
                f"trial {trial} has {len(outside)} pruned entries of "
                f"{program.network.trainable_variables[place].name} that are not zero "
                f"after {reached.step} steps, so it is no result of its sparsity: the "
                f"optimizer {program.optimizer.name!r} moves them"
            )

    def _with_further_splits(
        self,
        program: Program,
        lane: int,
        step: int,
        metrics: dict[str, float],
        is_bound: bool,
        found: dict[str, Mapping[int, Evaluation]],
    ) -> dict[str, float]:
        """Returns metrics with the metrics of a step's further splits added.

        `found`: evaluations of all lanes by split, which this extends.
        """
        evaluated: list[str] = []
        # The splits to evaluate may depend on the metrics of a further split.
        while asked := [
            split
            for split in self._splits_at(step, metrics, is_bound)
            if split not in evaluated
        ]:
            evaluated += asked
            for split in asked:
                if split not in found:
                    found[split] = program.evaluate_lanes(split)
                metrics = {**metrics, **found[split][lane].metrics}
        return metrics

    def _is_too_dense(self, program: Program, step: int) -> bool:
        """Returns whether pruning during training has not reached its sparsity yet.

        The network is then denser than its cell, and meeting the goal does not count.

        Raises:
            UserError: by this step the sparsity should have been reached.
        """
        gradual = program.gradual
        if gradual is None or step < gradual.reached_at:
            return gradual is not None
        program.check_sparsity_reached(step)
        return False

    def _slice(
        self, slot: int, program: Program, jobs: Sequence[Job], step: int
    ) -> dict[int, Advance]:
        """Trains a slice of at most SLICE_SECONDS; returns results by trial."""
        left = jobs[0].until - step
        steps = min(left, self._steps_that_fit(slot))
        pace, longer = self._pace.get(slot, 0.0), self._evaluation.get(slot, 0.0)
        if steps == left > 1 and left * pace + longer > SLICE_SECONDS:
            steps -= 1  # The call that evaluates makes the last step alone.
        count, size = program.data.train_count, program.batch_size
        indices = {
            lane_of(job.trial, self.lanes): examples_at(
                step, steps, self.order_seed(job.trial), count, size
            )
            for job in jobs
        }
        begun, evaluates = time.monotonic(), self._is_evaluated(jobs[0], step + steps)
        advances = program.advance_lanes(indices, evaluates)
        done = max(advance.steps for advance in advances.values())
        lasted = time.monotonic() - begun
        if slot in self._warm and not evaluates:
            self._learn_pace(slot, done, lasted)
        elif slot in self._pace:
            self._evaluation[slot] = lasted - done * self._pace[slot]
        self._warm.add(slot)  # the first call includes optimization or compilation
        return {job.trial: advances[lane_of(job.trial, self.lanes)] for job in jobs}

    def _steps_that_fit(self, slot: int) -> int:
        if slot not in self._pace:
            return 4  # Enough to learn the pace from, once the program is compiled.
        return max(1, int(SLICE_SECONDS / self._pace[slot]))

    def _learn_pace(self, slot: int, steps: int, seconds: float) -> None:
        # The slowest recent pace, because a slice that is too short costs little.
        latest = max(seconds, 1e-6) / steps
        previous = self._pace.get(slot, latest)
        self._pace[slot] = max(latest, 0.8 * previous + 0.2 * latest)
