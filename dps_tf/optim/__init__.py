"""Optimizers and schedules by name, with tensors as metaparameters.

`build(name, schedule)` makes an optimizer, a pair of pure functions. `TensorOptimizer`
is the same optimizer for Keras' `fit`. `default_spaces` has the spaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.core import Reads, Registry, UserError, Workload, with_shares
from dps_tf.optim import elementwise, tensorwise
from dps_tf.optim.base import COMPILED, LEARNING_RATE, Optimizer, Rule
from dps_tf.optim.default_spaces import SHIPPED_SPACES
from dps_tf.optim.schedules import SCHEDULES, Schedule, check_rates, register_schedule

OPTIMIZERS: Registry[Rule] = Registry("optimizer")
"""The rules of the optimizers that `build` makes, by name."""


_SPACES: dict[str, Mapping[str, Any]] = {}


def register(name: str, rule: Rule, space: Mapping[str, Any] | None = None) -> None:
    """Makes `build(name, schedule)` return an optimizer with a rule.

    The name is taken as by `Registry.register`. `space`: the default space of the
    optimizer, `{name: (scale, low, high)}`.

    Raises:
        UserError: `rule` is no `Rule`, such as an optimizer of Keras.

    Examples:
        >>> import dps_tf
        >>> def descend(gradient, slots, weight, point, step):
        ...     return weight - point["rate"] * gradient, slots
        >>> dps_tf.register_optimizer(
        ...     "my_sgd", Rule(descend), {"learning_rate": ("log", 1e-3, 1.0)}
        ... )
    """
    if not isinstance(rule, Rule):
        kind = rule.__name__ if isinstance(rule, type) else type(rule).__name__
        raise UserError(
            f"optimizer {name!r} is a {kind}, and a trial's update is a pure function, "
            "so that no optimizer of Keras is taken: write it as a dps_tf.optim.Rule, "
            "a function (gradient, slots, weight, point, step) -> (weight, slots)."
        )
    OPTIMIZERS.register(name, rule, rule.reads)
    if space is not None:
        _SPACES[name] = space


_SHIPPED = {
    "sgd": elementwise.SGD,
    "momentum": elementwise.MOMENTUM,
    "nesterov": elementwise.NESTEROV,
    "adam": elementwise.ADAM,
    "adamw": elementwise.ADAMW,
    "lamb": tensorwise.LAMB,
    "lion": elementwise.LION,
    "schedule_free_sgd": elementwise.SCHEDULE_FREE,
    "schedule_free_adamw": elementwise.SCHEDULE_FREE_ADAMW,
    "lars": tensorwise.LARS,
    "muon": tensorwise.MUON,
    "soap": tensorwise.SOAP,
}
for _name, _rule in _SHIPPED.items():
    register(_name, _rule, SHIPPED_SPACES[_name])


def reads(name: str, schedule: str = "constant") -> Reads:
    """Returns the metaparameters of an optimizer under a schedule, options included."""
    rule = OPTIMIZERS[name]
    return {**LEARNING_RATE, **rule.options, **SCHEDULES[schedule].reads, **rule.reads}


def build(
    name: str,
    schedule: str = "constant",
    metaparameters: Iterable[str] = (),
    step_budget: int | None = None,
    delay: int = 0,
    workers: int = 1,
) -> Optimizer:
    """Returns an optimizer, `init` and `update`.

    Args:
        name: one of OPTIMIZERS.
        schedule: one of SCHEDULES.
        metaparameters: names that its points will hold; an option is in use if its name
            is among them.
        step_budget: number of steps that lengths given as shares are multiplied by.
        delay: number of updates by which gradients are late; see `base.OPTIONS`.
        workers: number of workers of local SGD; see `base.OPTIONS`.
    """
    SCHEDULES[schedule]
    rule, given = OPTIMIZERS[name], list(metaparameters)
    offered = rule.options
    # A length that is given as a share is read in place of the length in steps.
    given += set(offered) - set(with_shares(offered, given))
    options = [option for option in offered if option in given]
    return Optimizer(rule, schedule, options, step_budget, delay, workers, name)


def check(workload: Workload, others: Reads) -> None:
    """Raises UserError for metaparameters of a workload that cannot be trained with.

    They are missing, nothing reads them, they can leave their range, or they are tuned
    and a program is compiled for one value. `others` are read by the objective.
    """
    for name in set(COMPILED) & set(workload.metaparameters):
        if name not in workload.fixed:
            raise UserError(
                f"{name} is tuned, and a program is compiled for one value: set it "
                f"in workload.fixed, or make workload.fixed.{name} an axis."
            )
    if len({"workers", "local_steps"} & set(workload.metaparameters)) == 1:
        raise UserError(
            "local SGD needs both workers and local_steps, the steps that each worker "
            "makes, and only one of these is given: set both in workload.fixed, or "
            "make them axes."
        )
    own = reads(workload.optimizer, workload.learning_rate_schedule)
    workload.check_metaparameters({**own, **others})


def build_for(workload: Workload, others: Reads) -> Optimizer:
    """Returns the optimizer of a workload, without the metaparameters in `others`."""
    return build(
        workload.optimizer,
        workload.learning_rate_schedule,
        [name for name in workload.metaparameters if name not in others],
        workload.step_budget,
        **{n: int(workload.fixed[n]) for n in COMPILED if n in workload.fixed},
    )


def default_space(name: str) -> Mapping[str, Any]:
    """Returns `{name: (scale, low, high)}`; UserError where an optimizer has none.

    >>> default_space("momentum")["learning_rate"]
    ('log', 0.0001, 10.0)
    """
    OPTIMIZERS[name]
    if name not in _SPACES:
        raise UserError(f"optimizer {name!r} has no default space: bind workload.space")
    return _SPACES[name]


from dps_tf.optim.keras_optimizer import TensorOptimizer  # noqa: E402 - it builds
