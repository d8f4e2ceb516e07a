"""What is the learning rate at a step? Functions of tensors, so nothing is retraced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from dps_tf.core.registry import NOT_NEGATIVE, POSITIVE, Argument, Reads, Registry

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


def constant(metaparameters: Mapping[str, tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """Returns `learning_rate` at every step."""
    del step
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
    start = tf.convert_to_tensor(metaparameters["learning_rate"])
    decay_steps = tf.convert_to_tensor(metaparameters["decay_steps"])
    end = start * metaparameters["end_learning_rate_factor"]
    done = tf.minimum(tf.cast(step, tf.float32), decay_steps) / decay_steps
    return (start - end) * (1.0 - done) + end


SCHEDULES: Registry[Schedule] = Registry("learning rate schedule")


def register_schedule(name: str, schedule: Schedule) -> None:
    """Makes `workload.learning_rate_schedule = name` mean this schedule.

    Side effect: changes the registry of this process. Registering the same schedule
    again changes nothing; another one under a taken name is refused.
    """
    SCHEDULES.register(name, schedule, schedule.reads)


register_schedule("constant", Schedule({}, constant))
register_schedule(
    "linear",
    Schedule(
        {
            "decay_steps": Argument(range=POSITIVE),
            "end_learning_rate_factor": Argument(range=NOT_NEGATIVE),
        },
        linear,
    ),
)
