"""keras-tuner's oracles choose points, and its folders describe closed studies.

The records are the truth and nothing depends on keras-tuner's files. During a search
they are in a temporary folder, and stock keras-tuner can reload the folder of a closed
study.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import keras_tuner
import tensorflow as tf

from dps_tf.core import (
    Space,
    StudySpecification,
    TrialResult,
    UserError,
    derive_seed,
    plan,
)
from dps_tf.store import CellLayout, StudyRecord, explained, store_error, study_result
from dps_tf.tuning.driver import StudyDriver

OBJECTIVE = keras_tuner.Objective("steps_to_result", "min")
"""The metric that keras-tuner minimizes: the steps to the goal.

A trial that did not reach the goal gets a finite value above all steps. The metric only
guides keras-tuner: K* is computed from the records.
"""

_REVERSED = "one_minus_"
_COMPLETED = keras_tuner.engine.trial.TrialStatus.COMPLETED
_STOPPED = keras_tuner.engine.trial.TrialStatus.STOPPED
_SYSTEM_ERRORS = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.OutOfRangeError: errno.EFBIG,
    tf.errors.PermissionDeniedError: errno.EACCES,
}
"""TensorFlow's errors about keras-tuner's files, and their numbers in `errno`."""


def hyperparameters(
    space: Space, *, adaptive: bool = False
) -> keras_tuner.HyperParameters:
    """Returns a space as hyperparameters of keras-tuner.

    Where the oracle itself draws points (`adaptive`), a reverse-log parameter is
    searched as `one_minus_<name>` on a log scale: keras-tuner's own reverse_log is
    another scale.
    """
    hp = keras_tuner.HyperParameters()
    for parameter in space.parameters:
        name, low, high = parameter.name, parameter.low, parameter.high
        if parameter.scale == "discrete":
            hp.Choice(name, list(parameter.choices))
        elif parameter.scale == "integer":
            hp.Int(name, int(low), int(high))
        elif parameter.scale == "reverse_log" and adaptive:
            hp.Float(_REVERSED + name, 1 - high, 1 - low, sampling="log")
        else:
            sampling = "log" if parameter.scale == "log" else "linear"
            hp.Float(name, low, high, sampling=sampling)
    return hp


def point_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns hyperparameter values of keras-tuner as a point, by metaparameter."""
    point = {}
    for name, value in values.items():
        if name.startswith(_REVERSED):
            point[name.removeprefix(_REVERSED)] = 1 - float(value)
        else:
            point[name] = float(value)
    return point


def adaptive_oracle(
    name: str, arguments: Mapping[str, Any], space: Space, max_trials: int, seed: int
) -> keras_tuner.Oracle:
    """Returns an oracle of keras-tuner.

    `name` is the dotted name of its class, `arguments` are further keywords. Raises
    UserError where they do not make an oracle.
    """
    module, _, attribute = name.rpartition(".")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"oracle {name!r} is neither 'quasi_random' nor the dotted name of a class "
            "such as keras_tuner.oracles.BayesianOptimizationOracle."
        ) from error
    try:
        oracle = factory(
            objective=OBJECTIVE,
            max_trials=max_trials,
            hyperparameters=hyperparameters(space, adaptive=True),
            allow_new_entries=False,
            tune_new_entries=False,
            # keras-tuner adds 1 for each value it draws: seeds have to lie far apart.
            # It takes 0 for 'any', and scikit-learn no more than 32 bits.
            seed=1 + derive_seed(seed, 0, "oracle") % (2**32 - 1),
            max_consecutive_failed_trials=max_trials + 1,
            **arguments,
        )
    except TypeError as error:
        raise UserError(
            f"oracle {name!r} does not take {dict(arguments)}: {error}; bind "
            "workload.oracle_arguments to keywords of an oracle of keras-tuner."
        ) from error
    if not isinstance(oracle, keras_tuner.Oracle):
        raise UserError(f"oracle {name!r} is no oracle of keras-tuner.")
    oracle.verbose = 0
    return oracle


def search(record: StudyRecord, driver: StudyDriver) -> keras_tuner.Oracle:
    """Runs a study whose points an oracle chooses, one trial after another.

    The oracle chooses the next trial, the driver runs it to its own end, and the oracle
    gets its score. A study that continues is replayed from its record: recorded trials
    take no time, and the oracle then chooses as it would have. So a search ends at a
    failed trial that will be tried again: its score is not known yet.

    Returns:
        The oracle, which has seen every trial that is settled.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: the oracle has no further point.
    """
    study = record.specification
    workload, limit = study.workload, study.rule.draws_limit
    seed = study.cell.seed
    oracle = adaptive_oracle(
        workload.oracle, workload.oracle_arguments, workload.space, limit, seed
    )
    with TemporaryDirectory(prefix="dps_tf-") as directory, _explained(directory):
        oracle._set_project_dir(directory, "search")
        for number in range(limit):
            _run_next(oracle, number, record, driver)
            todo = plan(record.trajectories(), study.rule)
            is_last = todo.decided and number + 1 >= todo.prefix
            if is_last or record.is_tried_again(number):
                break
    return oracle


def _run_next(
    oracle: Any, number: int, record: StudyRecord, driver: StudyDriver
) -> None:
    """Runs the next trial that an oracle chooses."""
    trial = oracle.create_trial("driver")
    if trial.status == _STOPPED:
        raise UserError(
            f"the oracle chose {number} points and has no other for trial {number}: "
            "ask for fewer points, or give it a larger space."
        )
    _choose_point(record, number, trial)
    driver.run(alone=number)
    if record.is_tried_again(number):
        return
    result = study_result(record.specification, record.history).trials[number]
    oracle.update_trial(trial.trial_id, _metrics(record.specification, result))
    trial.status = _COMPLETED
    oracle.end_trial(trial)


def _choose_point(record: StudyRecord, number: int, trial: Any) -> None:
    """Records the point of a new trial; UserError if a recorded one had another."""
    fixed = record.specification.workload.fixed
    chosen = {**fixed, **point_of(trial.hyperparameters.values)}
    recorded = record.history[number].point
    if recorded is None:
        record.add_point(number, chosen)
    elif recorded != chosen:
        raise UserError(
            f"the oracle chooses {chosen} for trial {number}, and chose {recorded} "
            "when it was trained: continue the study where it was begun, with the "
            "same versions of dps_tf, keras-tuner, NumPy and SciPy."
        )


def recorded_oracle(
    study: StudySpecification,
    points: Sequence[Mapping[str, float]],
    results: Sequence[TrialResult],
) -> keras_tuner.Oracle:
    """Returns an oracle of keras-tuner with the trials of a finished race."""
    oracle = keras_tuner.Oracle(
        objective=OBJECTIVE,
        max_trials=study.rule.draws_limit,
        hyperparameters=hyperparameters(study.workload.space),
        allow_new_entries=False,
        tune_new_entries=False,
        seed=1,  # Not used: keras-tuner would take 0 for 'any'.
    )
    digits = len(str(oracle.max_trials))
    for number, (point, result) in enumerate(zip(points, results, strict=True)):
        hp = oracle.get_space()
        hp.values = dict(point)
        name = f"{number:0{digits}d}"
        trial = keras_tuner.engine.trial.Trial(hp, name, _COMPLETED)
        oracle.trials[name] = trial
        oracle.start_order.append(name)
        oracle.end_order.append(name)
        for metric, value in _metrics(study, result).items():
            trial.metrics.register(metric, direction="min")
            trial.metrics.update(metric, value, step=0)
        oracle.score_trial(trial)
        oracle._record_values(trial)
    return oracle


def save_project(oracle: keras_tuner.Oracle, layout: CellLayout) -> None:
    """Writes the folder that stock keras-tuner reloads; it is new, on a local disk."""
    with _explained(layout.keras_tuner):
        folder, name = os.path.split(layout.keras_tuner)
        tuner = keras_tuner.engine.base_tuner.BaseTuner(
            oracle, directory=folder, project_name=name
        )
        for trial in oracle.trials.values():
            oracle._save_trial(trial)
        tuner.save()


@contextmanager
def _explained(directory: str) -> Iterator[None]:
    """Turns an error about keras-tuner's own files into one sentence with advice."""
    with explained("write to", directory):
        try:
            yield
        except tuple(_SYSTEM_ERRORS) as error:
            number = _SYSTEM_ERRORS[type(error)]
            text = os.strerror(number)
            raise store_error("write to", directory, number, text) from error


def _metrics(study: StudySpecification, result: TrialResult) -> dict[str, float]:
    """Returns the metrics of a trial, all finite.

    Without a K*, `steps_to_result` is above any K*, after a divergence higher still.
    """
    reached = result.steps_to_result is not None
    diverged = result.outcome in ("infeasible", "failed")
    behind_all = study.rule.last_evaluation * (3 if diverged else 2)
    return {
        "steps_to_result": float(result.steps_to_result or behind_all),
        "reached": float(reached),
        "diverged": float(diverged),
    }
