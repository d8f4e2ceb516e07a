"""Optimizers and schedules by name, with tensors as metaparameters.

`build(name, schedule)` makes an optimizer, a pair of pure functions. `TensorOptimizer`
is the same optimizer for Keras' `fit`.

The default space of an optimizer is searched if a gin file says `'default'`.
Comparing optimizers is fair only if each is searched as widely as its use asks for,
with equally many points; reports state points and dimensions beside every comparison.
Momentum and betas are drawn so that one minus them is log-uniform, as in every source.

Sources:
    S19     Shallue et al. 2019, the published space of ResNet-50 (momentum as in Lee et
            al. 2021).
    AP      AlgoPerf, Dahl et al. 2023, paper baselines: NAdamW (used here for the Adams
            and LAMB) and Shampoo. Their learning rates end at 1e-2; here one decade
            further, because networks of a few thousand parameters want larger ones.
    own     of this package, around what the optimizer's paper used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.core import Reads, Registry, UserError, with_shares
from dps_tf.optim import elementwise, tensorwise
from dps_tf.optim.base import COMPILED, LEARNING_RATE, Optimizer, Rule
from dps_tf.optim.schedules import SCHEDULES, Schedule, check_rates, register_schedule

__all__ = [
    "COMPILED",
    "OPTIMIZERS",
    "SCHEDULES",
    "Optimizer",
    "Rule",
    "Schedule",
    "TensorOptimizer",
    "build",
    "check_rates",
    "default_space",
    "reads",
    "register",
    "register_schedule",
]

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


_SGD_RATE = ("log", 1e-4, 10.0)  # S19
_MOMENTUM = ("reverse_log", 0.9, 0.9999)  # S19
_ADAM_RATE = ("log", 1e-4, 1e-1)  # AP, widened
_ADAM_BETA = ("reverse_log", 0.9, 0.996)  # AP
_FREE_BETA = ("reverse_log", 0.9, 0.98)
_DECAY = ("log", 5e-3, 1.0)  # AP
_SGD_SPACE = {"learning_rate": _SGD_RATE}
_MOMENTUM_SPACE = {"learning_rate": _SGD_RATE, "momentum": _MOMENTUM}
_ADAM_SPACE = {"learning_rate": _ADAM_RATE, "beta_1": _ADAM_BETA}
_ADAMW_SPACE = {**_ADAM_SPACE, "weight_decay": _DECAY}

_SHIPPED: tuple[tuple[str, Rule, Mapping[str, Any]], ...] = (
    ("sgd", elementwise.SGD, _SGD_SPACE),
    ("momentum", elementwise.MOMENTUM, _MOMENTUM_SPACE),
    ("nesterov", elementwise.NESTEROV, _MOMENTUM_SPACE),
    ("adam", elementwise.ADAM, _ADAM_SPACE),
    ("adamw", elementwise.ADAMW, _ADAMW_SPACE),
    ("lamb", tensorwise.LAMB, _ADAMW_SPACE),
    (
        # own: rates ten times smaller and decays ten times larger than AdamW's, as Chen
        # et al. 2023 advise (3 to 10 times).
        "lion",
        elementwise.LION,
        {
            "learning_rate": ("log", 1e-5, 1e-2),
            "beta_1": _ADAM_BETA,
            "weight_decay": ("log", 5e-2, 10.0),
        },
    ),
    (
        # own: Defazio et al. 2024 use rates up to 10 and betas 0.9, 0.95 and 0.98.
        "schedule_free_sgd",
        elementwise.SCHEDULE_FREE,
        {"learning_rate": ("log", 1e-3, 100.0), "beta_1": _FREE_BETA},
    ),
    (
        "schedule_free_adamw",
        elementwise.SCHEDULE_FREE_ADAMW,
        {"learning_rate": _ADAM_RATE, "beta_1": _FREE_BETA, "weight_decay": _DECAY},
    ),
    (
        # own: You et al. 2017 use rates of about 10 with a decay of 5e-4.
        "lars",
        tensorwise.LARS,
        {
            "learning_rate": ("log", 1e-1, 100.0),
            "momentum": _MOMENTUM,
            "weight_decay": ("log", 1e-5, 1e-2),
        },
    ),
    (
        # own: updates have the size of Adam's, so rates are Adam's; momentum as usual.
        "muon",
        tensorwise.MUON,
        {
            "learning_rate": _ADAM_RATE,
            "momentum": ("reverse_log", 0.9, 0.99),
            "weight_decay": _DECAY,
        },
    ),
    (
        "soap",
        tensorwise.SOAP,
        {
            "learning_rate": _ADAM_RATE,
            "beta_1": ("reverse_log", 0.85, 0.99),  # AP, Shampoo
        },
    ),
)
for _name, _rule, _space in _SHIPPED:
    register(_name, _rule, _space)


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
    # Lengths that are given as shares are read in place of those in steps.
    given += set(offered) - set(with_shares(offered, given))
    options = [option for option in offered if option in given]
    return Optimizer(rule, schedule, options, step_budget, delay, workers, name)


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
