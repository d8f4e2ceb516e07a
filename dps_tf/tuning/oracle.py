"""keras-tuner's oracles: which point a trial gets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import keras_tuner

from dps_tf.core.errors import UserError
from dps_tf.core.space import Parameter, Space

OBJECTIVE = keras_tuner.Objective("steps_to_result", "min")
"""What keras-tuner minimizes; a trial that did not reach the goal gets a finite value
behind every step it could have. It only steers keras-tuner: K* is read off records."""

_REVERSED = "one_minus_"


def hyperparameters(
    space: Space, *, adaptive: bool = False
) -> keras_tuner.HyperParameters:
    """Returns the space in keras-tuner's words.

    Args:
        space: ours.
        adaptive: the oracle draws itself. A reverse-log parameter is then searched as
            `one_minus_<name>` on a log scale, because keras-tuner's own reverse_log is
            another scale.
    """
    found = keras_tuner.HyperParameters()
    for parameter in space.parameters:
        _add(found, parameter, adaptive)
    return found


def _add(found: Any, parameter: Parameter, adaptive: bool) -> None:
    name, low, high = parameter.name, parameter.low, parameter.high
    if parameter.scale == "discrete":
        found.Choice(name, list(parameter.choices))
    elif parameter.scale == "integer":
        found.Int(name, int(low), int(high))
    elif parameter.scale == "reverse_log" and adaptive:
        found.Float(_REVERSED + name, 1 - high, 1 - low, sampling="log")
    else:
        sampling = "log" if parameter.scale == "log" else "linear"
        found.Float(name, low, high, sampling=sampling)


def point_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns keras-tuner's values as a point of ours."""
    point = {}
    for name, value in values.items():
        if name.startswith(_REVERSED):
            point[name.removeprefix(_REVERSED)] = 1 - float(value)
        else:
            point[name] = float(value)
    return point


def values_of(
    point: Mapping[str, float], searched: keras_tuner.HyperParameters
) -> dict[str, Any]:
    """Returns a point of ours as keras-tuner's values: the inverse of `point_of`.

    Args:
        point: fixed names in it are left out.
        searched: the space in keras-tuner's words, as an oracle that learns has it.
    """
    values: dict[str, Any] = {}
    for parameter in searched.space:
        name = parameter.name
        if name.startswith(_REVERSED):
            values[name] = 1 - point[name.removeprefix(_REVERSED)]
        elif isinstance(parameter, keras_tuner.engine.hyperparameters.Float):
            values[name] = point[name]
        else:
            values[name] = min(parameter.values, key=lambda v: abs(v - point[name]))
    return values


class QuasiRandomOracle(keras_tuner.Oracle):
    """Gives trial i the i-th point of the study.

    A point depends on (study seed, index) only, so nothing that happens to
    keras-tuner's files can change what is sampled.
    """

    def __init__(
        self,
        space: Space,
        values_of: Callable[[int], Mapping[str, float]],
        max_trials: int,
    ):
        """Makes the oracle of one study.

        Args:
            space: tuned metaparameters; fixed ones stand in the values alone.
            values_of: point by trial number.
            max_trials: points that may be asked for.
        """
        super().__init__(
            objective=OBJECTIVE,
            max_trials=max_trials,
            hyperparameters=hyperparameters(space),
            allow_new_entries=False,
            tune_new_entries=False,
            seed=1,  # Not used: keras-tuner would take 0 for 'any'.
            max_consecutive_failed_trials=max_trials + 1,
        )
        self.verbose = 0
        self._values_of = values_of

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns the values of a trial; keras-tuner numbers trials from 0."""
        return {
            "status": keras_tuner.engine.trial.TrialStatus.RUNNING,
            "values": dict(self._values_of(int(trial_id))),
        }


def adaptive_oracle(
    name: str, arguments: Mapping[str, Any], space: Space, max_trials: int, seed: int
) -> keras_tuner.Oracle:
    """Returns an oracle of keras-tuner that chooses one trial after another.

    Args:
        name: dotted name of its class.
        arguments: further keywords of the class.
        space: ours.
        max_trials: trials it may choose.
        seed: study seed; keras-tuner takes 0 for 'any', so it is given seed + 1.
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
            seed=seed + 1,
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
