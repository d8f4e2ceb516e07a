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


def vectorized(function: Callable[..., Any], *stacked: Any) -> Any:
    """Returns the results of `function` for every lane, stacked as its arguments are.

    Raises:
        NoLanes: an operation has no form for lanes, or only a loop over them.
    """
    refused: list[str] = []
    with _rules(refused):
        try:
            return tf.vectorized_map(
                lambda own: function(*own), stacked, fallback_to_while_loop=False
            )
        except Exception:
            # TensorFlow wraps what a rule raises in errors of several types.
            if not refused:
                raise
    raise NoLanes(f"operation {refused[0]}")


def of_lanes(function: Callable[..., Any], state: State, trial: Trial, *more: Any):
    """Returns the results of function(state, trial, *more) for every lane, stacked.

    Lanes share the step, so that no branch depends on one. All have their masks, which
    cost less than a branch does to trace.
    """

    def one(own: Any, point: Any, masks: Any, seed: tf.Tensor, *more: Any) -> Any:
        lane = Trial(point, masks, True, seed)
        return function(State(state.step, *own), lane, *more)

    own = trial.point, trial.masks, trial.seed
    return vectorized(one, tuple(state[1:]), *own, *more)


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
                own, losses = of_lanes(step, state, trial, *batch)
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


class _Rules(dict[str, Any]):
    """The rules of TensorFlow and this module; none of them loops over lanes."""

    def __init__(self, given: Mapping[str, Any], refused: list[str]):
        """`refused`: gets the types of operations that have no rule."""
        # Otherwise the lanes of each branch are gathered, and their bits depend on
        # others; and each lane reads a list in a turn of a loop.
        branches = ("If", "StatelessIf", "StatelessCase")
        reads = ("TensorListGetItem", "TensorListGather")
        own = {name: _unless((0,), given[name]) for name in branches}
        own |= {name: _unless((0, 1), given[name]) for name in reads}
        own |= dict.fromkeys(("While", "StatelessWhile"), _refuse)
        own["StatelessRandomUniformFullIntV2"] = _random_bits
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
def _rules(refused: list[str]) -> Iterator[None]:
    """Lets TensorFlow vectorize with `_Rules`, and says nothing of refusals."""
    logger = tf.get_logger()
    with _LOCK:
        found = pfor._pfor_converter_registry, pfor._fallback_converter, logger.level
        logger.setLevel("CRITICAL")
        pfor._pfor_converter_registry = _Rules(found[0], refused)
        pfor._fallback_converter = _refuse
        try:
            yield
        finally:
            pfor._pfor_converter_registry, pfor._fallback_converter, level = found
            logger.setLevel(level)
