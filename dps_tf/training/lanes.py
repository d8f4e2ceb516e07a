"""Lanes: trials that one compiled program advances side by side.

A program has a fixed number of lanes, and a trial always has the same one. Then its
bits do not depend on what the other lanes hold: the same kernels compute the same
numbers at the same places. One lane is a program without vectorization.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from dps_tf.core import UserError
from dps_tf.training.step import Loop, State, Trial

_LOCK = threading.RLock()


class NoLanes(UserError):
    """Something that cannot be computed for several trials at once.

    Attributes:
        what: its name.
    """

    def __init__(self, what: str):
        super().__init__(f"{what} cannot be computed in lanes: train with one lane.")
        self.what = what


def vectorized(
    function: Callable[..., Any], *stacked: Any, in_groups: bool = False
) -> Any:
    """Returns the results of `function` for every lane, stacked as its arguments are.

    `in_groups`: whether a convolution of lanes may be one, with the channels of each
    lane for a group. XLA compiles its gradients; the kernels of CPUs have none.

    Raises:
        NoLanes: an operation has no form for lanes, or only a loop over them.
    """
    refused: list[str] = []
    with _rules(refused, in_groups):
        try:
            return tf.vectorized_map(
                lambda own: function(*own), stacked, fallback_to_while_loop=False
            )
        except Exception:
            # TensorFlow wraps what a rule raises in errors of several types.
            if not refused:
                raise
    raise NoLanes(f"operation {refused[0]}")


def of_lanes(
    function: Callable[..., Any],
    state: State,
    trial: Trial,
    *more: Any,
    in_groups: bool = False,
) -> Any:
    """Returns the results of function(state, trial, *more) for every lane, stacked.

    Lanes share the step, so that no branch depends on one. All have their masks, which
    cost less than a branch does to trace.
    """

    def one(own: Any, point: Any, masks: Any, seed: tf.Tensor, *more: Any) -> Any:
        lane = Trial(point, masks, True, seed)
        return function(State(state.step, *own), lane, *more)

    own = trial.point, trial.masks, trial.seed
    return vectorized(one, tuple(state[1:]), *own, *more, in_groups=in_groups)


def chosen(which: tf.Tensor, new: Any, old: Any) -> Any:
    """Returns nested tensors of lanes: `new` where `which`, bool [lanes], or `old`."""

    def of_one(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        shape = [-1, *[1] * (len(one.shape) - 1)]
        return tf.where(tf.reshape(which, shape), one, other)

    return tf.nest.map_structure(of_one, new, old)


class LaneLoop(Loop):
    """Many steps of all lanes; a loss that is not finite ends the steps of its lane."""

    def _many(
        self,
        states: list[State],
        trials: list[Trial],
        steps: tf.Tensor,
        values: Sequence[Any],
        run: Callable[..., list[Any]],
    ) -> tuple[list[State], tf.Tensor, tf.Tensor]:
        """Runs the loop; steps and losses are [lanes]."""
        (first,), (trial,) = states, trials
        runs = trial.runs

        def kept(which: tf.Tensor, old: Any, new: Any) -> Any:
            """Returns `new`, with `old` where `which`; a choice is no small work."""
            return tf.cond(
                tf.reduce_any(which), lambda: chosen(which, old, new), lambda: new
            )

        def goes_on(i: tf.Tensor, done: tf.Tensor, loss: tf.Tensor, state: Any) -> Any:
            del done, state
            return (i < steps) & tf.reduce_any(runs & tf.math.is_finite(loss))

        def step(state: State, trial: Trial, *batch: tf.Tensor) -> Any:
            after, loss = self._step(state, lambda: batch, trial)
            return after[1:], loss

        def body(i: tf.Tensor, done: tf.Tensor, loss: tf.Tensor, state: State) -> Any:
            is_over = ~tf.math.is_finite(loss)
            with tf.name_scope(self._scope):
                batch = self._batches.batch(i, *values)
                in_groups = self._replicas.uses_xla
                own, losses = of_lanes(step, state, trial, *batch, in_groups=in_groups)
            own, loss = kept(is_over, (tuple(state[1:]), loss), (own, losses))
            done += tf.cast(runs & ~is_over, tf.int32)
            return i + 1, done, loss, State(state.step + 1, *own)

        zeros = tf.zeros_like(runs, tf.int32), tf.zeros_like(runs, tf.float32)
        _, done, loss, state = tf.while_loop(
            goes_on, body, (tf.constant(0), *zeros, first), parallel_iterations=1
        )
        own = kept(trial.waits, tuple(first[1:]), tuple(state[1:]))
        return [State(state.step, *own)], done, tf.where(runs, loss, 0.0)


def _refuse(*_: Any, **__: Any) -> Any:
    raise pfor.ConversionNotImplementedError


def _unless(places: Sequence[int], rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a rule that refuses inputs at `places` where each lane has its own."""

    def checked(of: Any) -> Any:
        own = all(of.input(place).is_stacked for place in places)
        return _refuse(of) if own else rule(of)

    return checked


def _random_bits(of: Any) -> Any:
    shape, algorithm, kind = of.unstacked_input(0), of.unstacked_input(3), "dtype"
    of.stack_inputs([1, 2])
    draw = functools.partial(
        tf.raw_ops.StatelessRandomUniformFullIntV2,
        shape=shape,
        alg=algorithm,
        dtype=tf.as_dtype(of.get_attr(kind)),
    )
    keys, counters = tf.unstack(of.stacked_input(1)), tf.unstack(of.stacked_input(2))
    drawn = [draw(key=k, counter=c) for k, c in zip(keys, counters, strict=True)]
    return pfor.wrap(tf.stack(drawn))


def _bitcast(of: Any) -> Any:
    kind = tf.as_dtype(of.get_attr("type"))
    return pfor.wrap(tf.bitcast(of.stacked_input(0), kind))


def _in_groups(name: str, rule: Any) -> Any:
    """Returns a rule for a convolution: `rule` where it suffices, else in groups."""
    own, other, size = _CONVOLUTIONS[name]

    def grouped(of: Any) -> Any:
        if not of.input(own).is_stacked:
            return rule(of)
        if size is not None:
            of.stack_inputs([other])
        names = [argument.name for argument in of.op.op_def.input_arg]
        given = {}
        for place in (own, other):
            array = of.input(place)
            given[names[place]] = (
                _side_by_side(array.t) if array.is_stacked else array.t
            )
        lanes = of.input(own).t.shape[0]
        if size is not None:
            given[names[size]] = of.unstacked_input(size) * [1, 1, 1, lanes]
        attributes = ("strides", "padding", "explicit_paddings", "dilations")
        given |= {key: of.get_attr(key) for key in attributes}
        return pfor.wrap(_apart(getattr(tf.raw_ops, name)(**given), lanes))

    return grouped


def _normalized(rule: Any) -> Any:
    """Returns a rule for batch normalization, where `rule` shares its averages."""

    def normalized(of: Any) -> Any:
        is_shared = not any(of.input(place).is_stacked for place in range(1, 5))
        if of.get_attr("is_training") or is_shared:
            return rule(of)
        of.stack_inputs()
        inputs, *of_channels = (of.stacked_input(place) for place in range(5))
        names = ("scale", "offset", "mean", "variance")
        given = {
            n: tf.reshape(x, [-1]) for n, x in zip(names, of_channels, strict=True)
        }
        epsilon = of.get_attr("epsilon")
        found = tf.raw_ops.FusedBatchNormV3(
            x=_side_by_side(inputs), **given, epsilon=epsilon, is_training=False
        )
        unused = pfor.wrap(tf.zeros_like(of_channels[0]))
        return [pfor.wrap(_apart(found.y, inputs.shape[0])), *[unused] * 5]

    return normalized


def _side_by_side(values: tf.Tensor) -> tf.Tensor:
    """Returns arrays of lanes, [lanes, a, b, c, n], as one, [a, b, c, lanes * n]."""
    lanes, *_, channels = values.shape
    moved = tf.transpose(values, [1, 2, 3, 0, 4])
    shape = tf.concat([tf.shape(moved)[:3], [lanes * channels]], 0)
    return tf.reshape(moved, shape)


def _apart(values: tf.Tensor, lanes: int) -> tf.Tensor:
    """Returns the arrays of lanes that `_side_by_side` has joined."""
    shape = tf.concat([tf.shape(values)[:3], [lanes, -1]], 0)
    return tf.transpose(tf.reshape(values, shape), [3, 0, 1, 2, 4])


_CONVOLUTIONS = {
    "Conv2D": (1, 0, None),
    "Conv2DBackpropInput": (1, 2, 0),
    "Conv2DBackpropFilter": (0, 2, 1),
}
"""Places of inputs: one for which there is no other rule where each lane has its own;
another one with channels; and the shape of the result."""
_NORMALIZATION = "FusedBatchNormV3"


class _Rules(dict[str, Any]):
    """The rules of TensorFlow and this module; none of them loops over lanes."""

    def __init__(self, given: Mapping[str, Any], refused: list[str], in_groups: bool):
        """`refused`: gets the types of operations that have no rule."""
        # Otherwise the lanes of each branch are gathered, and their bits depend on
        # others; and each lane reads a list in a turn of a loop.
        branches = ("If", "StatelessIf", "StatelessCase")
        reads = ("TensorListGetItem", "TensorListGather")
        own = {name: _unless((0,), given[name]) for name in branches}
        own |= {name: _unless((0, 1), given[name]) for name in reads}
        own |= dict.fromkeys(("While", "StatelessWhile"), _refuse)
        own["StatelessRandomUniformFullIntV2"] = _random_bits
        for name in _CONVOLUTIONS if in_groups else ():
            own[name] = _in_groups(name, given[name])
        if in_groups:
            own[_NORMALIZATION] = _normalized(given[_NORMALIZATION])
        super().__init__({**given, **own, "Bitcast": _bitcast})
        self._refused = refused

    def get(self, name: str, default: Any = None) -> Any:
        del default
        rule = super().get(name, _refuse)

        def checked(of: Any) -> Any:
            try:
                return rule(of)
            except (pfor.ConversionNotImplementedError, ValueError, AssertionError):
                self._refused.append(name)
                raise

        return checked


@contextlib.contextmanager
def _rules(refused: list[str], in_groups: bool) -> Iterator[None]:
    """Lets TensorFlow vectorize with `_Rules`, and says nothing of refusals."""
    logger = tf.get_logger()
    with _LOCK:
        found = pfor._pfor_converter_registry, pfor._fallback_converter, logger.level
        logger.setLevel("CRITICAL")
        pfor._pfor_converter_registry = _Rules(found[0], refused, in_groups)
        pfor._fallback_converter = _refuse
        try:
            yield
        finally:
            pfor._pfor_converter_registry, pfor._fallback_converter, level = found
            logger.setLevel(level)
