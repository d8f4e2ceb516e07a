"""The base of all optimizers: metaparameters that are variables, and options.

Everything that an update reads beside the gradient is a variable: metaparameters, so
that nothing is traced again for another point, and slots, which are part of a trial's
state. Slots start at zero, so that a state can be made without an optimizer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    REQUIRED,
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


class TensorOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer whose metaparameters are float32 variables.

    A point is set by `set_metaparameters` before the first step (what has no default is
    NaN until then) and may be changed between any two steps without a new trace. Works
    in `fit`, in own loops and inside `strategy.run`; create it under the strategy's
    scope. Gradients of embeddings are made dense, so every row of the accumulators
    decays at every step.

    A subclass declares READS and SLOTS and implements `update`. The constructor takes
    what `optim.build` does; `options` are those of OPTIONS in use.
    """

    READS: ClassVar[Reads] = {}
    """Metaparameters beyond `learning_rate`, those of the schedule and OPTIONS; one of
    OPTIONS that is named here is always in use."""
    SLOTS: ClassVar[tuple[str, ...]] = ()
    """Names of the accumulators of a variable."""
    CARRIES_WEIGHTS: ClassVar[tuple[str, ...]] = ()
    """Those of SLOTS that `update` makes the variable of, whatever its value was: local
    SGD averages them as it does the variables."""
    ELEMENTWISE: ClassVar[bool] = False
    """Whether an entry depends on its own gradients alone, so that a zero entry without
    gradients stays zero. Not inherited by subclasses: see `keeps_zeros`."""
    DECAYS_WEIGHTS: ClassVar[bool] = False
    """Whether `update` itself applies `weight_decay`."""

    def __init__(
        self,
        schedule: str = "constant",
        options: Collection[str] = (),
        step_budget: int | None = None,
        delay: int = 0,
        name: str | None = None,
        workers: int = 1,
    ):
        super().__init__(
            name or type(self).__name__, weight_decay=None, jit_compile=False
        )
        own = {**LEARNING_RATE, **SCHEDULES[schedule].reads, **self.READS}
        offered = self.options()
        used = {name: offered[name] for name in options if name not in own}
        self._reads = {**own, **used}
        self.schedule = schedule
        self._options = tuple(used)
        self._step_budget = step_budget
        self._delay = int(delay)
        self.workers = int(workers)
        with tf.init_scope():
            self._metaparameters = {
                name: tf.Variable(
                    math.nan if read.default is REQUIRED else read.default,
                    trainable=False,
                    name=name,
                    dtype=tf.float32,
                )
                for name, read in self._reads.items()
            }
        # Keras looks here for `optimizer.learning_rate`.
        self._learning_rate = self._metaparameters["learning_rate"]
        self._slots: dict[str, list[tf.Variable | None]] = {}

    @classmethod
    def options(cls) -> Reads:
        """Returns those of OPTIONS that the class offers."""
        kept = dict(OPTIONS)
        if "averages" in cls.SLOTS:
            del kept["averaging_decay"]
        return kept

    @property
    def metaparameters(self) -> dict[str, tf.Variable]:
        """The float32 scalars that this optimizer and its schedule read, by name."""
        return dict(self._metaparameters)

    @property
    def slots(self) -> list[tf.Variable]:
        """The accumulators: slot by slot, each in the order of the built variables."""
        return [s for slots in self._slots.values() for s in slots if s is not None]

    def named_slots(self, values: Iterable[Any]) -> dict[str, list[Any]]:
        """Returns values given in the order of `slots`, by slot, one per variable.

        A variable that has no such slot has None.
        """
        rest = iter(values)
        return {
            name: [None if slot is None else next(rest) for slot in slots]
            for name, slots in self._slots.items()
        }

    @property
    def keeps_zeros(self) -> bool:
        """Whether entries that are pruned stay exactly zero without being masked again.

        Only the class itself is asked: a subclass may update in another way.
        """
        return bool(vars(type(self)).get("ELEMENTWISE", False))

    def set_metaparameters(self, point: Mapping[str, float]) -> None:
        """Assigns `point`; names with a default may be left out and get that default.

        A length, such as `decay_steps`, can be given as a share of the step budget,
        such as `decay_share`. UserError for names that nothing here reads, for missing
        ones, and for values without meaning; then nothing has been assigned.
        """
        owner = f"optimizer {self.name!r} with the {self.schedule} schedule"
        point = lengths_in_steps(point, self._reads, self._step_budget)
        values = resolve(owner, self._reads, point)
        for name, built in zip(COMPILED, (self._delay, self.workers), strict=True):
            if values.get(name, built) != built:
                raise UserError(
                    f"{name} is {values[name]!r}, and {owner} was built for {built}: "
                    "fix it in workload.fixed"
                )
        self._assign([float(values[name]) for name in self._metaparameters])

    @functools.cached_property
    def _assign(self) -> Any:
        """Assigns all metaparameters, in one call instead of one for each."""
        variables = list(self._metaparameters.values())

        def assign(values: tf.Tensor) -> None:
            for variable, value in zip(variables, tf.unstack(values), strict=True):
                variable.assign(value)

        specs = [tf.TensorSpec([len(variables)], tf.float32)]
        return tf.function(assign, input_signature=specs, autograph=False)

    def value(self, name: str) -> tf.Tensor:
        """Returns the value of a metaparameter, float32 []."""
        return tf.convert_to_tensor(self._metaparameters[name])

    def current_learning_rate(self) -> tf.Tensor:
        """Returns the rate of the next update, float32 [], from `iterations`."""
        return self.learning_rate_at(self.iterations)

    def learning_rate_at(self, step: tf.Tensor | tf.Variable) -> tf.Tensor:
        """Returns the rate of the update from a step, int64 [], as float32 []."""
        schedule = SCHEDULES[self.schedule]
        rate = schedule.rate
        if "warmup_steps" in self._reads and "warmup_steps" not in schedule.reads:
            rate = warmed_up(rate)
        return rate(self._metaparameters, step)

    def slot_shape(self, slot: str, variable: tf.Variable) -> Sequence[int] | None:
        """Returns the shape of a slot of a variable, or None if it has no such slot."""
        del slot
        return list(variable.shape)

    def build(self, var_list: list[tf.Variable]) -> None:
        """Creates the slots of every variable, filled with zeros."""
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        for slot in self._slot_names:
            self._slots[slot] = [self._new_slot(slot, v) for v in var_list]
        self._built = True

    @property
    def _slot_names(self) -> tuple[str, ...]:
        averages = ("averages",) if "averaging_decay" in self._reads else ()
        waiting = ("waiting",) if self._delay else ()
        return tuple(dict.fromkeys((*self.SLOTS, *averages, *waiting)))

    def _new_slot(self, slot: str, variable: tf.Variable) -> tf.Variable | None:
        shape = self._shape_of(slot, variable)
        if shape is None:
            return None
        return self.add_variable_from_reference(
            variable, slot, initial_value=tf.zeros(shape, variable.dtype)
        )

    def _shape_of(self, slot: str, variable: tf.Variable) -> Sequence[int] | None:
        if slot in self.SLOTS:
            return self.slot_shape(slot, variable)
        lengths = [self._delay] if slot == "waiting" else []
        return [*lengths, *variable.shape]

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Returns the clipped gradients of the whole batch; Keras calls it."""
        if "clip_norm" not in self._reads:
            return list(grads)
        most = self.value("clip_norm")
        dense = [tf.convert_to_tensor(gradient) for gradient in grads]
        norm = tf.linalg.global_norm(dense)
        factor = tf.where(norm > most, most / norm, 1.0)
        return [gradient * factor for gradient in dense]

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Updates `variable` and its slots."""
        index = self._index_dict[self._var_key(variable)]
        slots = {
            name: slots[index]
            for name, slots in self._slots.items()
            if slots[index] is not None
        }
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        if "waiting" in slots:
            gradient = self._delayed(slots["waiting"], gradient)
        rate = self.current_learning_rate()
        if "weight_decay" in self._reads and not self.DECAYS_WEIGHTS:
            variable.assign_sub(rate * self.value("weight_decay") * variable)
        self.update(variable, slots, rate, gradient)
        if "averaging_decay" in self._reads:
            decay, average = self.value("averaging_decay"), slots["averages"]
            average.assign(decay * average + (1.0 - decay) * variable)

    def _delayed(self, waiting: Any, gradient: tf.Tensor) -> tf.Tensor:
        """Returns the gradient that waited longest; the new one takes its place."""
        place = tf.cast(self.iterations % self._delay, tf.int32)
        before = tf.convert_to_tensor(waiting)
        waiting.assign(tf.tensor_scatter_nd_update(before, [[place]], [gradient]))
        return before[place]

    def update(
        self,
        variable: tf.Variable,
        slots: Mapping[str, Any],
        rate: tf.Tensor,
        gradient: tf.Tensor,
    ) -> None:
        """Makes one update of a variable and its slots at a rate, float32 []."""
        raise NotImplementedError

    @property
    def averages_weights(self) -> bool:
        """Whether evaluations are to use `averaged_weights`."""
        return "averages" in self._slots

    def averaged_weights(self) -> list[tf.Tensor]:
        """Returns the averages to evaluate with, in the order of the variables.

        At least one update must have been made.
        """
        updates = tf.cast(self.iterations, tf.float32)
        weight = 1.0 - tf.pow(self.value("averaging_decay"), updates)
        averages = (slot for slot in self._slots["averages"] if slot is not None)
        return [tf.convert_to_tensor(average) / weight for average in averages]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; metaparameters are variables."""
        return {
            "name": self.name,
            "schedule": self.schedule,
            "options": self._options,
            "step_budget": self._step_budget,
            "delay": self._delay,
            "workers": self.workers,
        }
