"""One sentence for schedules, networks and selections that cannot be trained."""

from __future__ import annotations

import enum
import itertools
import math
import random
import time

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import models, optim, sparsity
from dps_tf._keras import keras
from dps_tf.core import (
    FRACTION,
    POSITIVE,
    SHARE,
    Argument,
    Goal,
    Pruning,
    Range,
    UserError,
)
from dps_tf.sparsity.selection import choose
from tests import interpreter

WRONG_RATES = {
    "float64": lambda point, step: tf.cast(point["learning_rate"], tf.float64),
    "vector": lambda point, step: point["learning_rate"] * tf.ones([2]),
    "one entry": lambda point, step: tf.ones([1]),
    "whole": lambda point, step: step,
    "array": lambda point, step: np.float64(0.1) * np.ones(1),
    "nothing": lambda point, step: None,
    "text": lambda point, step: "0.1",
}


NAMES = (f"of a test {number}" for number in itertools.count())
"""A name may be taken once."""


def rate_of(rate):
    name = next(NAMES)
    dps_tf.register_schedule(name, optim.Schedule({}, rate))
    point = {"learning_rate": tf.constant(0.5)}
    return optim.SCHEDULES[name].rate(point, tf.constant(3, tf.int64))


@pytest.mark.parametrize("kind", WRONG_RATES)
def test_a_rate_that_is_not_one_number_is_refused(kind):
    with pytest.raises(UserError, match="'of a test .* returns .*one number"):
        rate_of(WRONG_RATES[kind])


def test_a_metaparameter_that_is_not_declared_is_named():
    with pytest.raises(UserError, match="'of a test .* takes 'decay' .* `reads`"):
        rate_of(lambda point, step: point["learning_rate"] * point["decay"])


@pytest.mark.parametrize("value", [0.25, 1, np.float32(0.25)])
def test_a_plain_number_is_a_rate(value):
    rate = rate_of(lambda point, step: value)
    assert rate.dtype == tf.float32 and rate.shape == [] and float(rate) == value


def test_a_rate_that_decides_in_python_is_refused_when_traced():
    name = next(NAMES)
    rate = lambda point, step: point["learning_rate"] if step > 2 else 0.1  # noqa: E731
    dps_tf.register_schedule(name, optim.Schedule({}, rate))
    for count in (1, 100):
        with pytest.raises(UserError, match="decides by a tensor .* use tf.where"):
            optim.check_rates(name, [{"learning_rate": 0.5}], count)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rate_of(0.1), "rate of a schedule is 0.1: give a function"),
        (
            lambda: dps_tf.register_schedule(next(NAMES), lambda point, step: 0.1),
            "'of a test .* give a Schedule",
        ),
        (
            lambda: dps_tf.register_schedule(
                next(NAMES), optim.Schedule({"q": 0.1}, lambda point, step: 0.1)
            ),
            "reads 'q': 0.1; it must be an Argument",
        ),
        (
            lambda: dps_tf.register_sparsity_method(
                next(NAMES), sparsity.OneShot(lambda request, _: [], {"q": 0.1})
            ),
            "reads 'q': 0.1; it must be an Argument",
        ),
    ],
)
def test_a_part_of_another_form_is_refused_when_made(make, message):
    with pytest.raises(UserError, match=message):
        make()


def count():
    numbers = itertools.count(1)
    return lambda point, step: point["learning_rate"] / next(numbers)


RATES = {
    "negative": (lambda p, t: -p["learning_rate"], "is -0.5 at step 0 of point 0"),
    "below 0 later": (
        lambda p, t: p["learning_rate"] * (1 - tf.cast(t, "float32") / 90),
        "is -0.05 at step 99 of point 0",
    ),
    "of one point": (
        lambda p, t: p["learning_rate"] - 0.25,
        "is -0.15 at step 0 of point 1",
    ),
    "counted": (count(), "without random numbers and counters"),
    "drawn by NumPy": (
        lambda p, t: p["learning_rate"] * np.float32(np.random.default_rng().random()),
        r"line \d+, reads random numbers of the system",
    ),
    "by the clock": (
        lambda p, t: p["learning_rate"] * (0.5 if time.time() < 0 else 1.0),
        r"own_parts_test.py, line \d+, reads time.time, .* outside of the function",
    ),
    "by a branch that is drawn": (
        lambda p, t: p["learning_rate"] * (0.5 if random.random() < 0.0 else 1.0),
        r"own_parts_test.py, line \d+, reads random.random",
    ),
    "drawn": (
        lambda p, t: p["learning_rate"] * tf.random.uniform([]),
        "without random numbers and counters",
    ),
}
POINTS = [{"learning_rate": 0.5}, {"learning_rate": 0.1}]


@pytest.mark.parametrize("kind", RATES)
def test_a_schedule_that_no_trial_may_follow_is_refused(kind):
    rate, message = RATES[kind]
    name = next(NAMES)
    dps_tf.register_schedule(name, optim.Schedule({}, rate))
    with pytest.raises(UserError, match=message):
        optim.check_rates(name, POINTS, 100)


def test_schedules_that_trials_may_follow():
    """Rates of 0, of lengths as shares, and NaN, which is a divergence."""
    for rate, reads, more in (
        (lambda p, t: 0.0, {}, {}),
        (lambda p, t: float("nan"), {}, {}),
        (
            lambda p, t: p["decay_steps"] * 0.1,
            {"decay_steps": Argument()},
            {"decay_share": 0.5},
        ),
        (lambda p, t: p["q"], {"q": Argument(0.25, POSITIVE)}, {"momentum": 0.9}),
    ):
        name = next(NAMES)
        dps_tf.register_schedule(name, optim.Schedule(reads, rate))
        points = [{**point, **more} for point in POINTS]
        for budget in (1, 2, 3, 100):
            optim.check_rates(name, points, budget)


def test_a_negative_rate_ends_a_sweep_before_its_first_trial(tmp_path):
    name = next(NAMES).replace(" ", "_")
    rate = lambda point, step: -point["learning_rate"]  # noqa: E731
    dps_tf.register_schedule(name, optim.Schedule({}, rate))
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    with pytest.raises(UserError, match="a rate must not be negative"):
        dps_tf.run(
            sweep_dir=str(tmp_path / "sweep"),
            network=network([(4,)], 2),
            dataset=(inputs, (inputs[:, 0] > 0).astype(np.int32)),
            goal=Goal("validation/classification_error", 0.1),
            batch_sizes=(16,),
            step_budget=10,
            values={"workload.learning_rate_schedule": name, "workload.points": 1},
        )


@pytest.mark.parametrize(
    "default, allowed, message",
    [
        (-1.0, POSITIVE, "is -1.0, .* > 0"),
        (0, POSITIVE, "is 0, .* > 0"),
        (1.0, FRACTION, r"is 1.0, .* in \[0, 1\)"),
        (2.5, Range(whole=True), "is 2.5, .* whole number"),
        (math.nan, Range(), "is nan"),
        (-math.inf, Range(), "is -inf"),
        (math.inf, SHARE, "is inf"),
        (True, Range(), "is True"),
        ("1", Range(), "is '1'"),
    ],
)
def test_a_default_lies_in_its_own_range(default, allowed, message):
    with pytest.raises(UserError, match=f"default of an argument {message}"):
        Argument(default, allowed)
    Argument(default)
    Argument(math.inf, POSITIVE)


def moved(weight, gradient, point):
    return weight - point["rate"] * gradient


RULES = {
    "undeclared value": (
        lambda g, s, w, p, t: (w - p["q"] * g, s),
        "takes 'q', which neither",
    ),
    "undeclared slot": (
        lambda g, s, w, p, t: (w - s["v"], s),
        "takes 'v', which neither",
    ),
    "nothing": (lambda g, s, w, p, t: None, "returns NoneType, no .weight, slots"),
    "a weight alone": (lambda g, s, w, p, t: moved(w, g, p), "no .weight, slots"),
    "no mapping": (lambda g, s, w, p, t: (moved(w, g, p), None), "no .weight, slots"),
    "nothing trained": (lambda g, s, w, p, t: (w, s), "nothing is trained"),
    "a slot less": (
        lambda g, s, w, p, t: (moved(w, g, p), {}),
        r"slots named \[\], and declares \['m'\]",
    ),
    "a slot more": (
        lambda g, s, w, p, t: (moved(w, g, p), {**s, "v": g}),
        r"slots named .*'v'.*, and declares \['m'\]",
    ),
    "a number": (
        lambda g, s, w, p, t: (tf.reduce_sum(w), s),
        "a weight of another shape .* for one weight at a time and keeps nothing",
    ),
    "float64": (
        lambda g, s, w, p, t: (moved(w, g, p), {"m": tf.cast(g, tf.float64)}),
        "a m of another shape or type",
    ),
    "a slot of another shape": (
        lambda g, s, w, p, t: (moved(w, g, p), {"m": g[None]}),
        "a m of another shape or type",
    ),
}


@pytest.mark.parametrize("kind", [None, *RULES])
def test_a_rule_returns_a_weight_and_its_slots(kind):
    good = lambda g, s, w, p, t: (moved(w, g, p), {"m": g})  # noqa: E731
    update, message = RULES.get(kind, (good, ""))
    name = next(NAMES)
    dps_tf.register_optimizer(name, optim.Rule(update, {}, ("m",)))
    options = ("averaging_decay",)
    built = optim.build(name, metaparameters=("learning_rate", *options), delay=2)
    weights = [tf.zeros([3, 2]), tf.zeros([2])]
    slots = built.init(weights)
    slots = {n: [tf.constant(value) for value in own] for n, own in slots.items()}
    point = {n: tf.constant(0.1) for n in ("learning_rate", *options)}

    def step():
        return built.update(weights, slots, weights, point, tf.constant(0, tf.int64))

    traced = tf.function(step, autograph=False)
    if kind is None:
        after, further = traced()
        assert [w.shape for w in after] == [w.shape for w in weights]
        assert {*further} == {"m", "averages", "waiting"}
        return
    with pytest.raises(UserError, match=message):
        traced.get_concrete_function()


SCORES = {
    "nothing": lambda theta: None,
    "a number": lambda theta: 1.0,
    "flat": lambda theta: [part.ravel() for part in theta],
    "transposed": lambda theta: [part.T for part in theta],
    "one less": lambda theta: theta[1:],
    "one more": lambda theta: [*theta, theta[0]],
    "one number each": lambda theta: [np.float32(1) for part in theta],
    "none each": lambda theta: [None for part in theta],
}


@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_one_array_for_each_variable_or_are_not_kept(kind, tmp_path):
    name = next(NAMES)
    built = network([(6,)], 3)((6,), 3)
    current = [SCORES[kind]]
    method = sparsity.OneShot(lambda request, _: current[0](request.theta))
    dps_tf.register_sparsity_method(name, method)
    cache = sparsity.ScoreCache(str(tmp_path))
    data = dps_tf.data.load("synthetic", examples=40)
    asked = built.get_weights(), data, name, 0.5, Pruning(), {}
    given = sparsity.MaskRequest(built, *asked), cache
    said = rf"the scores of {name} are .* 2 .* of shapes \[\(6, 3\), \(3,\)\]"
    with pytest.raises(UserError, match=said):
        sparsity.masks_for(*given)
    current[0] = lambda theta: (abs(part) for part in theta)
    assert sparsity.masks_for(*given).realised_sparsity == 0.5


def network(shapes, to):
    """Returns a builder of a network for inputs of some shapes, whatever the data."""

    def build(input_shape, classes):
        inputs = [keras.Input(shape) for shape in shapes]
        flat = [keras.layers.Flatten()(each) for each in inputs]
        joined = keras.layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
        return keras.Model(inputs, keras.layers.Dense(to)(joined))

    return build


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ([(7,)], r"takes inputs of \(7,\), and the data have \(6,\)"),
        ([(6, 1)], r"takes inputs of \(6, 1\), and the data have \(6,\)"),
        ([(6,), (6,)], "has 2 inputs: take one"),
    ],
)
def test_a_network_for_other_inputs_is_refused(shapes, sentence):
    name = next(NAMES)
    dps_tf.register_network(name, network(shapes, 3))
    with pytest.raises(UserError, match=sentence):
        models.build(name, (6,), 3)


def test_an_open_length_fits_any():
    def build(input_shape, classes):
        inputs = keras.Input([None])
        outputs = keras.layers.Dense(classes)(inputs[..., None])
        return keras.Model(inputs, outputs)

    name = next(NAMES)
    dps_tf.register_network(name, build)
    assert models.build(name, (9,), 3).count_params() == 6


@pytest.mark.parametrize(
    ("bindings", "sentence"),
    [
        ((), "keeps none of 4736 prunable parameters: choose a lower one"),
        (
            ("sweep.pruning = @pruning()", "pruning.scope = 'n_of_m'"),
            "sparsity 0.9999 cannot be reached",
        ),
    ],
)
def test_a_sparsity_out_of_reach_ends_a_sweep_before_its_first_cell(
    tmp_path, bindings, sentence
):
    lines = (
        "sweep.batch_sizes = (16,)",
        "sweep.sparsities = (0.0, 0.9999)",
        "sweep.sparsity_methods = ('snip',)",
        *bindings,
    )
    done = interpreter.run(
        [
            "-m",
            "dps_tf.train",
            "--gin_file=smoke/quickstart",
            f"--sweep_dir={tmp_path / 'sweep'}",
            *(f"--gin_bindings={line}" for line in lines),
        ]
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert sentence in line
    assert "cell 1 of 2" not in done.stdout


NO_MASKS = {
    "halves": lambda scores: [np.full(s.shape, 0.5) for s in scores],
    "twos": lambda scores: [2 * (s > 1) for s in scores],
    "NaN": lambda scores: [np.full(s.shape, np.nan) for s in scores],
    "transposed": lambda scores: [(s > 1).T for s in scores],
    "too few": lambda scores: [s > 1 for s in scores][:-1],
    "nothing": lambda scores: None,
}


@pytest.mark.parametrize("kind", NO_MASKS)
def test_a_selection_returns_zeros_and_ones(kind):
    """A mask of halves would halve the weights, and prune none."""
    name = next(NAMES)
    selection = lambda candidates, sparsity: NO_MASKS[kind](candidates.scores)  # noqa: E731
    dps_tf.register_selection(name, selection)
    scores = [np.arange(6.0).reshape(2, 3), np.arange(4.0)]
    candidates = sparsity.Candidates(scores, ["kernel"] * 2, None)
    with pytest.raises(UserError, match=f"{name!r} must return .* zeros and ones"):
        choose(name, candidates, 0.5, {})


class Kind(str, enum.Enum):
    RELU = "relu"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1: 9}, "with the key 1; keys must be texts, .*: write '1'"),
        ([{"a": ({None: 9},)}], "with the key None; .*: write 'None'"),
        ({1: 9, "a": 2}, "with the key 1; "),
        ({(1, 2): 9}, r"with the key \(1, 2\); "),
        (Kind.RELU, "a gin file can hold"),
        ({"1": 9, "a": [{}, 2]}, ""),
    ],
)
@pytest.mark.parametrize("part", ["workload.network", "workload.dataset", "pruning"])
def test_arguments_are_what_records_keep(value, said, part):
    """JSON makes texts of keys: a builder would read others when it is run again."""

    def ask():
        return dps_tf.sweep(
            "smoke/quickstart",
            values={
                "sweep.pruning": "@pruning()",
                f"{part}{'.' if part == 'pruning' else '_'}arguments": {"of": value},
            },
        )

    if not said:
        ask()
        return
    with pytest.raises(UserError, match=f"^{part}.arguments holds .*{said}") as refusal:
        ask()
    assert "\n" not in str(refusal.value)
