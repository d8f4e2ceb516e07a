"""Optimizers and schedules by name, whose metaparameters are tensors.

`build(name, schedule)` is the one way to make one. An optimizer is a subclass of
`TensorOptimizer`, which see for what all of them share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dps_tf.core.errors import UserError
from dps_tf.core.registry import Reads, Registry
from dps_tf.core.workload import with_shares
from dps_tf.optim import elementwise, tensorwise
from dps_tf.optim.base import COMPILED, LEARNING_RATE, TensorOptimizer
from dps_tf.optim.schedules import SCHEDULES, Schedule, register_schedule
from dps_tf.optim.spaces import DEFAULT_SPACES

__all__ = [
    "COMPILED",
    "OPTIMIZERS",
    "SCHEDULES",
    "Schedule",
    "TensorOptimizer",
    "build",
    "default_space",
    "reads",
    "register",
    "register_schedule",
]

OPTIMIZERS: Registry[type[TensorOptimizer]] = Registry("optimizer")
"""What `build` knows."""


_SPACES: dict[str, Mapping[str, Any]] = {}


def register(
    name: str,
    optimizer: type[TensorOptimizer],
    space: Mapping[str, Any] | None = None,
) -> None:
    """Makes `build(name, schedule)` return an instance of a class.

    Side effect: changes the registry of this process. Registering the same class again
    changes nothing; another one under a taken name is refused.

    Args:
        name: as `workload.optimizer` in gin files.
        optimizer: a subclass of `TensorOptimizer`.
        space: its default space, `{name: (scale, low, high)}`.
    """
    OPTIMIZERS.register(name, optimizer, optimizer.READS)
    if space is not None:
        _SPACES[name] = space


for _name, _optimizer in (
    ("sgd", elementwise.GradientDescent),
    ("momentum", elementwise.Momentum),
    ("nesterov", elementwise.Nesterov),
    ("adam", elementwise.Adam),
    ("adamw", elementwise.AdamW),
    ("lion", elementwise.Lion),
    ("schedule_free_sgd", elementwise.ScheduleFree),
    ("schedule_free_adamw", elementwise.ScheduleFreeAdamW),
    ("lars", tensorwise.LARS),
    ("lamb", tensorwise.LAMB),
    ("muon", tensorwise.Muon),
    ("soap", tensorwise.SOAP),
):
    register(_name, _optimizer, DEFAULT_SPACES[_name])


def reads(name: str, schedule: str = "constant") -> Reads:
    """Returns the metaparameters of an optimizer under a schedule, options included."""
    own = {**SCHEDULES[schedule].reads, **OPTIMIZERS[name].READS}
    return {**LEARNING_RATE, **OPTIMIZERS[name].options(), **own}


def build(
    name: str,
    schedule: str = "constant",
    metaparameters: Iterable[str] = (),
    step_budget: int | None = None,
    delay: int = 0,
    workers: int = 1,
) -> TensorOptimizer:
    """Returns a new optimizer; its metaparameters are to be set before training.

    Args:
        name: one of OPTIMIZERS.
        schedule: one of SCHEDULES.
        metaparameters: names that its points will hold; options are in use if theirs
            are among them.
        step_budget: what lengths that are given as shares are shares of.
        delay: updates by which gradients are late; see `base.OPTIONS`.
        workers: of local SGD; likewise.

    Raises:
        UserError: an unknown name.
    """
    optimizer = OPTIMIZERS[name]
    offered, given = optimizer.options(), list(metaparameters)
    # Lengths that are given as shares are read in place of those in steps.
    given += set(offered) - set(with_shares(offered, given))
    options = [option for option in offered if option in given]
    return optimizer(schedule, options, step_budget, delay, name, workers)


def default_space(name: str) -> Mapping[str, Any]:
    """Returns the default space of an optimizer, `{name: (scale, low, high)}`.

    Raises:
        UserError: an unknown optimizer, or one that has none.
    """
    OPTIMIZERS[name]
    if name not in _SPACES:
        raise UserError(f"optimizer {name!r} has no default space: bind workload.space")
    return _SPACES[name]
