"""The base of all optimizers: a rule for a variable, and what goes around every rule.

An optimizer is a pair of pure functions, `init` and `update`. Metaparameters, slots and
weights are tensors that are passed in, so that nothing is traced again for another
point. Slots start at zero, so that a state can be made without an optimizer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from dps_tf.core import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Argument,
    Range,
    Reads,
    UserError,
    lengths_in_steps,
    resolve,
)
from dps_tf.optim.schedules import SCHEDULES, warmed_up

LEARNING_RATE: Reads = {"learning_rate": Argument(range=NOT_NEGATIVE)}
OPTIONS: Reads = {
    "weight_decay": Argument(0.0, NOT_NEGATIVE),
    "clip_norm": Argument(math.inf, POSITIVE),
    "averaging_decay": Argument(0.0, FRACTION),
    "warmup_steps": Argument(0.0, NOT_NEGATIVE),
    "warmup_start_factor": Argument(0.0, SHARE),
    "delay": Argument(0.0, Range(whole=True)),
    "workers": Argument(1.0, Range(1, whole=True)),
    "local_steps": Argument(1.0, Range(1, whole=True)),
}
"""Metaparameters of every optimizer; each costs nothing where no point names it.

Options:
    weight_decay: decoupled; w = (1 - rate weight_decay) w before the update, with the
        rate of that step, for every variable (Loshchilov and Hutter 2019, in the form
        of PyTorch and optax, which multiply by the rate and not by its schedule alone).
    clip_norm: greatest norm of all gradients together (Pascanu et al. 2013).
    averaging_decay: d of a = d a + (1 - d) w; evaluations use a / (1 - d^t) after t
        updates (Kingma and Ba 2015, section 7.2).
    warmup_steps, warmup_start_factor: length of a linear warm-up, and where it starts;
        see `schedules.warmed_up`.
    delay: tau; an update applies the gradient at the weights of tau updates before, and
        the first tau apply none (Stich et al. 2021, section 2; Dean et al. 2012). The
        number of gradients that wait is part of the compiled program, so that it is
        fixed for a cell.
    workers, local_steps: W and H of local SGD (Lin et al. 2020): each of W workers
        makes H updates alone, with its share of every global batch and slots of its
        own, before their weights are averaged; see `training.local_workers`. W is fixed
        for a cell, as delay is. Without `workers` there is one.
"""

COMPILED = ("delay", "workers")
"""Options that are part of the compiled program: fixed for a cell, and not tuned."""

T: TypeAlias = tf.Tensor
Slots = Mapping[str, tf.Tensor]
"""The slots of one variable by name, without slots that the variable lacks."""
Point = Mapping[str, tf.Tensor]
"""Metaparameters by name, float32 []; for a rule also `rate`, the rate of the step."""
Updated = tuple[tf.Tensor, Slots]
"""(weight, slots) of a variable after an update."""


def _same_shape(slot: str, variable: Any) -> Sequence[int] | None:
    """Returns the shape of the variable, for every slot."""
    del slot
    return list(variable.shape)


@dataclass(frozen=True, eq=False)
class Rule:
    """The rule by which an optimizer updates a variable, to be registered by name.

    Attributes:
        update: maps (gradient, slots, weight, point, step) to (weight, slots). `point`
            has the values of `reads`, of the options in use, and `rate`, the learning
            rate of this step; `step` is the number of updates before, int64 [].
        reads: metaparameters besides the learning rate, the metaparameters of the
            schedule and OPTIONS. An option that is named here is always in use.
        slots: names of the accumulators of a variable, which begin at zero. One named
            `averages` holds the weights to evaluate with.
        slot_shape: maps (name of a slot, variable) to its shape, or None if the
            variable has no such slot; by default the shape of the variable.
        carries_weights: slots that `update` makes the variable of, whatever its value
            was: local SGD averages them as it does the variables.
        elementwise: whether an entry depends on its own gradients alone, so that a zero
            entry without gradients stays zero and needs no mask.
        decays_weights: whether `update` itself applies `weight_decay`.
        fused: the same update, to the bit, in fewer passes over memory, for compiled
            float32 programs without XLA.

    Examples:
        >>> def descend(gradient, slots, weight, point, step):
        ...     return weight - point["rate"] * gradient, slots
        >>> Rule(descend).slots
        ()
    """

    update: Callable[[T, Slots, T, Point, T], Updated]
    reads: Reads = field(default_factory=dict)
    slots: tuple[str, ...] = ()
    _: KW_ONLY
    slot_shape: Callable[[str, Any], Sequence[int] | None] = _same_shape
    carries_weights: tuple[str, ...] = ()
    elementwise: bool = False
    decays_weights: bool = False
    fused: Callable[[T, Slots, T, Point, T], Updated] | None = None

    @property
    def options(self) -> Reads:
        """The entries of OPTIONS that go with the rule."""
        kept = dict(OPTIONS)
        if "averages" in self.slots:
            del kept["averaging_decay"]
        return kept


@dataclass(frozen=True, eq=False)
class Optimizer:
    """A rule under a schedule, with options: `init` and `update` are pure functions.

    Slots are `{name: [one per variable]}`, None for a variable without such a slot.

    Attributes:
        rule: the rule of a variable.
        schedule: one of SCHEDULES.
        options: names of the OPTIONS in use.
        step_budget: number of steps that lengths given as shares are multiplied by.
        delay: number of updates by which gradients are late.
        workers: number of workers of local SGD; they are in `training.local_workers`.
        name: name of the optimizer in messages.
        is_fused: whether rules that have a `fused` form use it.
    """

    rule: Rule
    schedule: str = "constant"
    options: Collection[str] = ()
    step_budget: int | None = None
    delay: int = 0
    workers: int = 1
    name: str = ""
    is_fused: bool = False

    @functools.cached_property
    def reads(self) -> Reads:
        """The metaparameters that are read, by name."""
        schedule, offered = SCHEDULES[self.schedule], self.rule.options
        own = {**LEARNING_RATE, **schedule.reads, **self.rule.reads}
        return {**own, **{n: offered[n] for n in self.options if n not in own}}

    @functools.cached_property
    def slot_names(self) -> tuple[str, ...]:
        """The names of all slots, in the order of `flat`."""
        averages = ("averages",) if "averaging_decay" in self.reads else ()
        waiting = ("waiting",) if self.delay else ()
        return tuple(dict.fromkeys((*self.rule.slots, *averages, *waiting)))

    @property
    def averages_weights(self) -> bool:
        """Whether evaluations are to use `evaluated` weights."""
        return "averages" in self.slot_names

    def values(self, point: Mapping[str, float]) -> dict[str, float]:
        """Returns the value of each metaparameter that is read, by name.

        Names with a default may be left out. A length, such as `decay_steps`, can be
        given as a share of the step budget, such as `decay_share`. UserError for names
        that nothing here reads, for missing ones, and for values without meaning.
        """
        owner = f"optimizer {self.name!r} with the {self.schedule} schedule"
        point = lengths_in_steps(point, self.reads, self.step_budget)
        values = resolve(owner, self.reads, point)
        for name, built in zip(COMPILED, (self.delay, self.workers), strict=True):
            if values.get(name, built) != built:
                raise UserError(
                    f"{name} is {values[name]!r}, and {owner} was built for {built}: "
                    "fix it in workload.fixed"
                )
        return {name: float(value) for name, value in values.items()}

    def rate(self, point: Point, step: T) -> T:
        """Returns the learning rate of the update from a step, float32 []."""
        schedule = SCHEDULES[self.schedule]
        rate = schedule.rate
        if "warmup_steps" in self.reads and "warmup_steps" not in schedule.reads:
            rate = warmed_up(rate)
        return rate(point, step)

    def init(self, weights: Sequence[Any]) -> dict[str, list[np.ndarray | None]]:
        """Returns the slots before the first update, all zero.

        `weights`: variables, or whatever has a shape, type and name as these do.
        """
        return {
            slot: [
                None if shape is None else np.zeros(shape, w.dtype.as_numpy_dtype)
                for w in weights
                for shape in [self._shape_of(slot, w)]
            ]
            for slot in self.slot_names
        }

    def _shape_of(self, slot: str, variable: Any) -> Sequence[int] | None:
        if slot in self.rule.slots:
            return self.rule.slot_shape(slot, variable)
        lengths = [self.delay] if slot == "waiting" else []
        return [*lengths, *variable.shape]

    def update(
        self,
        gradients: Sequence[T],
        slots: Mapping[str, Sequence[T | None]],
        weights: Sequence[T],
        point: Point,
        step: T,
    ) -> tuple[list[T], dict[str, list[T | None]]]:
        """Returns (weights, slots) after one update.

        Args:
            gradients: one for each weight, of the whole batch.
            slots: `{name: [one per variable]}`, as `init` makes them.
            weights: the trained weights.
            point: values of `reads`, float32 [].
            step: number of updates made before, int64 [].
        """
        at = {**point, "rate": self.rate(point, step)}
        after: dict[str, list[T | None]] = {name: [] for name in self.slot_names}
        updated = []
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        for i, (gradient, weight) in enumerate(
            zip(self._clipped(gradients, point), weights, strict=True)
        ):
            before = {n: s for n in slots if (s := slots[n][i]) is not None}
            weight, own = self._update_one(gradient, before, weight, at, step)
            updated.append(weight)
            for name in self.slot_names:
                after[name].append(own.get(name))
        if all(new is old for new, old in zip(updated, weights, strict=True)):
            raise UserError(
                f"the rule of optimizer {self.name!r} returns every weight as it was, "
                "so that nothing is trained: change its `update`."
            )
        return updated, after

    def _clipped(self, gradients: Sequence[T], point: Point) -> Sequence[T]:
        if "clip_norm" not in self.reads:
            return gradients
        norm, most = tf.linalg.global_norm(gradients), point["clip_norm"]
        factor = tf.where(norm > most, most / norm, 1.0)
        return [gradient * factor for gradient in gradients]

    def _update_one(
        self, gradient: T, slots: Slots, weight: T, point: Point, step: T
    ) -> Updated:
        further: dict[str, T] = {}
        gradient = tf.cast(gradient, weight.dtype)
        if self.delay:
            # The gradient that waited longest is applied, and the new one takes its
            # place.
            place, waiting = tf.cast(step % self.delay, tf.int32), slots["waiting"]
            further["waiting"] = tf.tensor_scatter_nd_update(
                waiting, [[place]], [gradient]
            )
            gradient = waiting[place]
        if "weight_decay" in self.reads and not self.rule.decays_weights:
            weight = weight - point["rate"] * point["weight_decay"] * weight
        is_fused = self.is_fused and weight.dtype == tf.float32
        rule = (self.rule.fused if is_fused else None) or self.rule.update
        weight, updated = self._applied(rule, gradient, slots, weight, point, step)
        if "averaging_decay" in self.reads:
            decay = point["averaging_decay"]
            further["averages"] = decay * slots["averages"] + (1.0 - decay) * weight
        return weight, {**updated, **further}

    def _applied(
        self, rule: Any, gradient: T, slots: Slots, weight: T, point: Point, step: T
    ) -> Updated:
        """Returns what a rule returns; UserError unless it is a weight and its slots.

        The check is one of static shapes: it costs nothing once a graph is traced.
        """
        own = {name: slots[name] for name in self.rule.slots if name in slots}
        try:
            returned = rule(gradient, slots, weight, point, step)
        except KeyError as error:
            if error.args[0] in {**slots, **point}:
                raise
            raise UserError(
                f"the rule of optimizer {self.name!r} takes {error.args[0]!r}, which "
                "neither its `reads` nor its `slots` name: add it there."
            ) from error
        form = isinstance(returned, tuple) and len(returned) == 2
        after, updated = returned if form else (None, None)
        if not form or not isinstance(updated, Mapping):
            found = f"{type(returned).__name__}, no (weight, slots)"
        elif not {*own} <= {*updated} <= {*slots}:
            found = f"slots named {sorted(updated)}, and declares {sorted(own)}"
        else:
            pairs = {"weight": (after, weight)}
            pairs |= {n: (updated[n], slots[n]) for n in updated}
            wrong = [name for name, pair in pairs.items() if not _alike(*pair)]
            if not wrong:
                return after, updated
            found = f"a {wrong[0]} of another shape or type than it got"
        raise UserError(
            f"the rule of optimizer {self.name!r} returns {found}: change its "
            "`update`, which is called for one weight at a time and keeps nothing."
        )

    def evaluated(
        self,
        slots: Mapping[str, Sequence[Any]],
        weights: Sequence[T],
        point: Point,
        step: T,
    ) -> list[T]:
        """Returns the weights to evaluate with, after at least one update."""
        if not self.averages_weights:
            return list(weights)
        averages = [tf.convert_to_tensor(average) for average in slots["averages"]]
        if "averages" in self.rule.slots:
            return averages
        made = tf.cast(step, tf.float32)
        share = 1.0 - tf.pow(point["averaging_decay"], made)
        return [average / share for average in averages]

    def flat(self, slots: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Returns slots in one list: slot by slot, each in the order of variables."""
        return [s for name in self.slot_names for s in slots[name] if s is not None]

    def named(
        self, values: Iterable[Any], weights: Sequence[Any]
    ) -> dict[str, list[Any]]:
        """Returns slots from values in the order of `flat`; `weights`: see `init`."""
        rest = iter(values)
        return {
            slot: [
                None if self._shape_of(slot, w) is None else next(rest) for w in weights
            ]
            for slot in self.slot_names
        }


def _alike(value: Any, other: T) -> bool:
    """Returns whether a value is a tensor of the shape and type of another one."""
    if not tf.is_tensor(value) or value.dtype != other.dtype:
        return False
    return bool(value.shape.is_compatible_with(other.shape))
