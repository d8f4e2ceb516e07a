"""Learning rate schedules: functions of tensors, so that no point retraces a step."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from dps_tf.core import (
    NOT_NEGATIVE,
    POSITIVE,
    Argument,
    Reads,
    Registry,
    UserError,
    arguments_alone,
    lengths_in_steps,
)

Rate = Callable[[Mapping[str, tf.Tensor], tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Schedule:
    """A learning rate as a function of metaparameters and the step.

    `reads`: the metaparameters beyond `learning_rate`. `rate`: from the metaparameters
    and the int64 number of updates done to the float32 learning rate of the next
    update.
    """

    reads: Reads
    rate: Rate

    def __post_init__(self) -> None:
        if not callable(self.rate):
            raise UserError(
                f"the rate of a schedule is {self.rate!r}: give a function of "
                "(metaparameters, step)."
            )


def constant(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """Returns `learning_rate` at every step."""
    return tf.convert_to_tensor(metaparameters["learning_rate"])


def linear(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """Returns the rate that falls linearly in `decay_steps` and then stays.

    end = end_learning_rate_factor * learning_rate;
    rate(t) = (learning_rate - end) * (1 - min(t, decay_steps) / decay_steps) + end.
    The first update (t = 0) uses `learning_rate`, update `decay_steps` and all after it
    use `end`. Steps are exact in float32 up to 2**24.

    Source: Lee et al. 2021, published code (TensorFlow 1 polynomial decay, power 1);
    Shallue et al. 2019 have the same formula.
    """
    start, end, done = _decay(metaparameters, step)
    return (start - end) * (1.0 - done) + end


def _decay(
    metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the first rate, the last one, and the share of `decay_steps` done."""
    start = tf.convert_to_tensor(metaparameters["learning_rate"])
    decay_steps = tf.convert_to_tensor(metaparameters["decay_steps"])
    end = start * metaparameters["end_learning_rate_factor"]
    return start, end, tf.minimum(tf.cast(step, tf.float32), decay_steps) / decay_steps


def cosine(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """Returns the rate that falls along half a cosine in `decay_steps`, then stays.

    rate(t) = end + (learning_rate - end) (1 + cos(pi min(t / decay_steps, 1))) / 2, end
    as of `linear`. Source: Loshchilov and Hutter 2017 (SGDR), equation 5, one period.
    """
    start, end, done = _decay(metaparameters, step)
    return end + (start - end) * 0.5 * (1.0 + tf.cos(math.pi * done))


def inverse_square_root(
    metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor
) -> tf.Tensor:
    """Returns learning_rate min(t / warmup_steps, sqrt(warmup_steps / t)), t from 1.

    The greatest rate is `learning_rate`, at update `warmup_steps`. Source: Vaswani et
    al. 2017, section 5.3, where constants fix the greatest rate.
    """
    start = tf.convert_to_tensor(metaparameters["learning_rate"])
    warmup = tf.convert_to_tensor(metaparameters["warmup_steps"])
    update = tf.cast(step, tf.float32) + 1.0
    return start * tf.minimum(update / warmup, tf.sqrt(warmup / update))


def stable_decay(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """Returns `learning_rate` for `stable_steps`, then the falling rate of `linear`.

    Source: Hu et al. 2024 (MiniCPM), section 4.2, where a warm-up comes before; with a
    linear decay.
    """
    stable = tf.convert_to_tensor(metaparameters["stable_steps"])
    return linear(metaparameters, tf.maximum(tf.cast(step, tf.float32) - stable, 0.0))


def warmed_up(rate: Rate) -> Rate:
    """Returns `rate` with a linear warm-up over `warmup_steps` before it.

    Update t = 0, 1, ... has min(1, (t + 1) / warmup_steps) of `rate` at
    t - warmup_steps, or at 0 before that; with `warmup_start_factor` the warm-up begins
    at this share instead of zero. Source: Goyal et al. 2017, section 2.2, where the
    rate begins at the rate of the base batch size.
    """

    def warmed(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Returns the rate with a linear warm-up over `warmup_steps` before it."""
        warmup = tf.convert_to_tensor(metaparameters["warmup_steps"])
        done = tf.cast(step, tf.float32)
        share = tf.minimum(1.0, (done + 1.0) / tf.maximum(warmup, 1.0))
        if "warmup_start_factor" in metaparameters:
            begin = tf.convert_to_tensor(metaparameters["warmup_start_factor"])
            share = begin + (1.0 - begin) * share
        return share * rate(metaparameters, tf.maximum(done - warmup, 0.0))

    return warmed


SCHEDULES: Registry[Schedule] = Registry("learning rate schedule")


def register_schedule(name: str, schedule: Schedule) -> None:
    """Makes `workload.learning_rate_schedule = name` mean a schedule.

    The name is taken as by `Registry.register`.

    Examples:
        >>> import dps_tf
        >>> def halved(point, step):
        ...     halvings = tf.cast(step, tf.float32) / point["half_life"]
        ...     return point["learning_rate"] * 0.5**halvings
        >>> half_life = {"half_life": Argument()}
        >>> dps_tf.register_schedule("halved", Schedule(half_life, halved))
    """
    if not isinstance(schedule, Schedule):
        raise UserError(
            f"learning rate schedule {name!r} is {schedule!r}: give a Schedule(reads, "
            "rate)."
        )
    checked = replace(schedule, rate=_checked(name, schedule.rate))
    SCHEDULES.register(name, checked, schedule.reads)


def _checked(name: str, rate: Rate) -> Rate:
    """Returns a rate that raises UserError unless it is one float32 number."""

    def checked(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Returns the rate, checked when a step is traced."""
        try:
            value = rate(metaparameters, step)
        except KeyError as error:
            if error.args[0] in metaparameters:
                raise
            raise UserError(
                f"learning rate schedule {name!r} takes {error.args[0]!r} from its "
                "point, and its `reads` do not name it: add it there."
            ) from error
        except tf.errors.OperatorNotAllowedInGraphError as error:
            raise UserError(
                f"learning rate schedule {name!r} decides by a tensor in Python, as by "
                "`if step > 20`: use tf.where."
            ) from error
        if isinstance(value, numbers.Real):
            value = tf.constant(value, tf.float32)
        if not tf.is_tensor(value) or value.dtype != tf.float32 or value.shape != []:
            raise UserError(
                f"learning rate schedule {name!r} returns {value!r}: it must return "
                "one number, a float32 tensor of shape []."
            )
        return value

    return checked


def check_rates(
    name: str, points: Sequence[Mapping[str, float]], step_budget: int
) -> None:
    """Raises UserError for a schedule of the user's own that no trial may follow.

    Reasons are a negative rate at some steps of a point, which would ascend, and a rate
    that is not a function of its arguments. A step is traced once, so that a random
    number or a counter of Python would stay as it was then.
    """
    if name in _SHIPPED:
        return
    schedule = SCHEDULES[name]
    reads = {"learning_rate": Argument(), **schedule.reads}
    traced = tf.function(schedule.rate, autograph=False)
    for number, point in enumerate(points):
        given = lengths_in_steps(point, reads, step_budget)
        values = {
            key: tf.constant(given.get(key, read.default), tf.float32)
            for key, read in reads.items()
        }
        for step in sorted(
            {0, min(1, step_budget - 1), step_budget // 2, step_budget - 1}
        ):
            at = tf.constant(step, tf.int64)
            rate = float(traced(values, at))
            if rate < 0:
                raise UserError(
                    f"learning rate schedule {name!r} is {rate:g} at step {step} of "
                    f"point {number}: a rate must not be negative."
                )
            if number == 0:
                with arguments_alone():
                    again = float(schedule.rate(values, at))
                if not np.isclose(rate, again, rtol=1e-4, atol=0.0, equal_nan=True):
                    raise UserError(
                        f"learning rate schedule {name!r} is {rate:g} and then "
                        f"{again:g} at step {step} of a point: it must be a function "
                        "of its arguments, without random numbers and counters."
                    )


_DECAY: Reads = {
    "decay_steps": Argument(range=POSITIVE),
    "end_learning_rate_factor": Argument(range=NOT_NEGATIVE),
}
_DECAY_TO_ZERO: Reads = {
    **_DECAY,
    "end_learning_rate_factor": Argument(0.0, NOT_NEGATIVE),
}
_WARMUP: Reads = {"warmup_steps": Argument(range=POSITIVE)}

register_schedule("constant", Schedule({}, constant))
register_schedule("linear", Schedule(_DECAY, linear))
register_schedule("cosine", Schedule(_DECAY_TO_ZERO, cosine))
register_schedule("inverse_square_root", Schedule(_WARMUP, inverse_square_root))
register_schedule(
    "warmup_stable_decay",
    Schedule(
        {**_WARMUP, "stable_steps": Argument(range=NOT_NEGATIVE), **_DECAY_TO_ZERO},
        warmed_up(stable_decay),
    ),
)
_SHIPPED = SCHEDULES.names()
