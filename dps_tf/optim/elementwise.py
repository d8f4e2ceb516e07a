"""Rules that update every element of a variable by itself.

Invariant of momentum: an update applies the learning rate of its own step to the whole
accumulator (v = m v + g; w = w - rate v), as TensorFlow 1 did. Keras keeps the rate
inside the velocity, which is the same at a constant rate and another optimizer under
decay. The first four have the bits of TensorFlow's fused operations.
"""
# ruff: noqa: D403 - variables of formulas are lower case

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from dps_tf.core import FRACTION, NOT_NEGATIVE, POSITIVE, Argument, Reads
from dps_tf.optim.base import Point, Rule, Slots, T, Updated

_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # of TensorFlow: a new variable

ADAM_READS: Reads = {
    "beta_1": Argument(0.9, FRACTION),
    "beta_2": Argument(0.999, FRACTION),
    "epsilon": Argument(1e-8, POSITIVE),
}


def _product(values: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns a product that TensorFlow's graph optimizer does not reorder.

    A product of products is reordered so that scalars are multiplied first, which
    rounds otherwise than TensorFlow's fused operations.
    """
    return tf.math.multiply_no_nan(values, factor)


def _descent(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """w = w - rate g."""
    del step
    return weight - _product(gradient, point["rate"]), slots


def _momentum(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """v = m v + g; w = w - rate v, with the rate of the current step."""
    del step
    velocity = slots["momentums"] * point["momentum"] + gradient
    return weight - _product(velocity, point["rate"]), {"momentums": velocity}


def _nesterov(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """v = m v + g; w = w - rate (g + m v), with the rate of the current step."""
    del step
    velocity = slots["momentums"] * point["momentum"] + gradient
    ahead = _product(velocity * point["momentum"], point["rate"])
    return weight - (_product(gradient, point["rate"]) + ahead), {"momentums": velocity}


def _adam(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w = w - a m / (sqrt(v) + e).

    a = rate sqrt(1 - b2^t) / (1 - b1^t), t = 1 at the first update; e is `epsilon`.
    Defaults of Kingma and Ba 2015, in the form of the end of their section 2; Keras has
    epsilon 1e-7.
    """
    updates = tf.cast(step + 1, tf.float32)
    beta1, beta2 = point["beta_1"], point["beta_2"]
    first, second = slots["momentums"], slots["velocities"]
    scale = (
        point["rate"]
        * tf.sqrt(1.0 - tf.pow(beta2, updates))
        / (1.0 - tf.pow(beta1, updates))
    )
    first += _product(gradient - first, 1.0 - beta1)
    second += _product(tf.square(gradient) - second, 1.0 - beta2)
    change = _product(first, scale) / (tf.sqrt(second) + point["epsilon"])
    return weight - change, {"momentums": first, "velocities": second}


def _fused(
    operation: Any,
    slots: Mapping[str, str],
    arguments: Callable[[T, Point, T], Mapping[str, T]],
) -> Callable[[T, Slots, T, Point, T], Updated]:
    """Returns a rule by one of TensorFlow's fused updates of variables.

    The variables live only within the update: they take arrays over and give them back,
    which copies nothing where nothing else reads these. `slots`: names of slots by the
    operation's names; `arguments`: from (gradient, point, step).
    """

    def update(gradient: T, before: Slots, weight: T, point: Point, step: T) -> Updated:
        """Returns the weight and slots of the operation."""
        arrays = {"var": weight, **{own: before[name] for own, name in slots.items()}}
        raw, handles = tf.raw_ops, {}
        for name, array in arrays.items():
            handles[name] = raw.VarHandleOp(
                dtype=array.dtype, shape=array.shape, shared_name=_ANONYMOUS
            )
        pairs = list(zip(handles.values(), arrays.values(), strict=True))
        taken = [raw.AssignVariableOp(resource=h, value=array) for h, array in pairs]
        with tf.control_dependencies(taken):
            done = operation(**handles, **arguments(gradient, point, step))
        with tf.control_dependencies([done]):
            given = [raw.ReadVariableOp(resource=h, dtype=a.dtype) for h, a in pairs]
        with tf.control_dependencies(given):
            for handle, _ in pairs:
                raw.DestroyResourceOp(resource=handle)
        return given[0], {**before, **dict(zip(slots.values(), given[1:], strict=True))}

    return update


def _of_momentum(gradient: T, point: Point, step: T) -> Mapping[str, T]:
    del step
    return {"lr": point["rate"], "grad": gradient, "momentum": point["momentum"]}


def _of_adam(gradient: T, point: Point, step: T) -> Mapping[str, T]:
    updates = tf.cast(step + 1, tf.float32)
    powers = {n: tf.pow(point[n], updates) for n in ("beta_1", "beta_2")}
    return {
        "beta1_power": powers["beta_1"],
        "beta2_power": powers["beta_2"],
        "lr": point["rate"],
        "beta1": point["beta_1"],
        "beta2": point["beta_2"],
        "epsilon": point["epsilon"],
        "grad": gradient,
    }


def adam_direction(
    gradient: tf.Tensor, slots: Slots, point: Point, updates: tf.Tensor
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns m' / (sqrt(v') + e) of Adam, and its two slots.

    m' and v' have their bias corrected; `updates` is 1 at the first update.
    """
    beta1, beta2 = point["beta_1"], point["beta_2"]
    first = beta1 * slots["momentums"] + (1.0 - beta1) * gradient
    second = beta2 * slots["velocities"] + (1.0 - beta2) * tf.square(gradient)
    mean = first / (1.0 - tf.pow(beta1, updates))
    square = second / (1.0 - tf.pow(beta2, updates))
    direction = mean / (tf.sqrt(square) + point["epsilon"])
    return direction, {"momentums": first, "velocities": second}


def _adamw(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """w = (1 - rate weight_decay) w - rate m' / (sqrt(v') + e); m', v' as of Adam.

    Source: Loshchilov and Hutter 2019, algorithm 2; the default of weight_decay is
    PyTorch's.
    """
    updates = tf.cast(step + 1, tf.float32)
    direction, moments = adam_direction(gradient, slots, point, updates)
    return weight - point["rate"] * direction, moments


def _lion(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """w = w - rate sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.

    Source: Chen et al. 2023 (Symbolic discovery of optimization algorithms), program 1,
    with its defaults.
    """
    del step
    beta1, beta2, momentum = point["beta_1"], point["beta_2"], slots["momentums"]
    weight -= point["rate"] * tf.sign(beta1 * momentum + (1.0 - beta1) * gradient)
    return weight, {"momentums": beta2 * momentum + (1.0 - beta2) * gradient}


def _schedule_free(
    gradient: T, slots: Slots, weight: T, point: Point, step: T
) -> Updated:
    """z = z - rate (g + weight_decay y); x = (1 - c) x + c z; y = (1 - b) z + b x.

    The variables are y, where gradients are taken; evaluations use x (`averages`).
    c = rate^2 / (sum of rate^2 so far), b is `beta_1`. Meant for a constant rate after
    a warm-up. Source: Defazio et al. 2024 (The road less scheduled), section 3.
    """
    rate, is_first = point["rate"], tf.equal(step, 0)
    z = tf.where(is_first, weight, slots["iterates"])
    x = tf.where(is_first, weight, slots["averages"])
    if "weight_decay" in point:
        gradient += point["weight_decay"] * weight
    z -= rate * gradient
    total = slots["weights"] + tf.square(rate)
    part = tf.math.divide_no_nan(tf.square(rate), total)
    x = (1.0 - part) * x + part * z
    beta = point["beta_1"]
    changed = {"iterates": z, "averages": x, "weights": total}
    return (1.0 - beta) * z + beta * x, {**slots, **changed}


def _schedule_free_adamw(
    gradient: T, slots: Slots, weight: T, point: Point, step: T
) -> Updated:
    """Schedule-free, with the direction g / (sqrt(v) + e) and decoupled weight decay.

    v = b2 v + (1 - b2) g^2, and the rate is multiplied by sqrt(1 - b2^t).
    Source: Defazio et al. 2024, algorithm 1.
    """
    beta2 = point["beta_2"]
    second = beta2 * slots["velocities"] + (1.0 - beta2) * tf.square(gradient)
    warm = tf.sqrt(1.0 - tf.pow(beta2, tf.cast(step + 1, tf.float32)))
    point = {**point, "rate": point["rate"] * warm}
    direction = gradient / (tf.sqrt(second) + point["epsilon"])
    slots = {**slots, "velocities": second}
    return _schedule_free(direction, slots, weight, point, step)


def _shape_of_schedule_free(slot: str, variable: Any) -> list[int]:
    """Returns [] for the sum of squared rates, else the shape of the variable."""
    return [] if slot == "weights" else list(variable.shape)


_MOMENTUM: Reads = {"momentum": Argument(0.9, FRACTION)}  # Lee et al. 2021
_MOMENTS = ("momentums", "velocities")

_APPLY_MOMENTUM = tf.raw_ops.ResourceApplyMomentum
_APPLY_NESTEROV = functools.partial(_APPLY_MOMENTUM, use_nesterov=True)
_VELOCITY = {"accum": "momentums"}

SGD = Rule(
    _descent,
    elementwise=True,
    fused=_fused(
        tf.raw_ops.ResourceApplyGradientDescent,
        {},
        lambda gradient, point, step: {"alpha": point["rate"], "delta": gradient},
    ),
)
MOMENTUM = Rule(
    _momentum,
    _MOMENTUM,
    ("momentums",),
    elementwise=True,
    fused=_fused(_APPLY_MOMENTUM, _VELOCITY, _of_momentum),
)
NESTEROV = Rule(
    _nesterov,
    _MOMENTUM,
    ("momentums",),
    elementwise=True,
    fused=_fused(_APPLY_NESTEROV, _VELOCITY, _of_momentum),
)
ADAM = Rule(
    _adam,
    ADAM_READS,
    _MOMENTS,
    elementwise=True,
    fused=_fused(
        tf.raw_ops.ResourceApplyAdam, {"m": "momentums", "v": "velocities"}, _of_adam
    ),
)
ADAMW = Rule(
    _adamw,
    {**ADAM_READS, "weight_decay": Argument(0.01, NOT_NEGATIVE)},
    _MOMENTS,
    elementwise=True,
)
LION = Rule(
    _lion,
    {"beta_1": Argument(0.9, FRACTION), "beta_2": Argument(0.99, FRACTION)},
    ("momentums",),
    elementwise=True,
)
SCHEDULE_FREE = Rule(
    _schedule_free,
    {"beta_1": Argument(0.9, FRACTION)},
    ("iterates", "averages", "weights"),
    slot_shape=_shape_of_schedule_free,
    carries_weights=("iterates", "averages"),
    elementwise=True,
    decays_weights=True,
)
SCHEDULE_FREE_ADAMW = Rule(
    _schedule_free_adamw,
    {**ADAM_READS, "weight_decay": Argument(0.0, NOT_NEGATIVE)},
    (*SCHEDULE_FREE.slots, "velocities"),
    slot_shape=_shape_of_schedule_free,
    carries_weights=SCHEDULE_FREE.carries_weights,
    elementwise=True,
    decays_weights=True,
)
