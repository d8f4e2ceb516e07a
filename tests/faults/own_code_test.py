"""Own parts are functions of their arguments, and stay the same over a sweep."""

from __future__ import annotations

import functools
import itertools
import os
import random
import time

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import data, models, objectives, optim, sparsity
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models import code_hash
from dps_tf.store import NETWORK
from dps_tf.tuning.own_code import codes_of
from dps_tf.tuning.trained_on import TrainedOn

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
METRICS = objectives.build().metrics
NUMBERS = itertools.count()


def always(value):
    return lambda *_: value


ONE = always(1.0)


def counter():
    count = itertools.count(1)
    return lambda: float(next(count))


def variable():
    held = tf.Variable(1.0)
    return lambda: held.assign_add(1.0)


IMPURE = {
    "counter": counter,
    "numpy": lambda: lambda: float(np.random.uniform()),  # noqa: NPY002
    "variable": variable,
    "clock": lambda: lambda: 2.0 if time.time() < 0 else 1.0,
    "drawn branch": lambda: lambda: 2.0 if random.random() < 0.0 else 1.0,
    "environment": lambda: lambda: float(os.environ.get("OWN_FACTOR", "1")),
}


def cross_entropy(labels, outputs):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


class Scaled(keras.layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor()


def network(network=ONE, layer=ONE):
    def built(input_shape, classes):
        inputs = keras.Input(input_shape)
        scaled = keras.layers.Lambda(lambda x: x * network())(inputs)
        return keras.Model(inputs, keras.layers.Dense(classes)(Scaled(layer)(scaled)))

    return built


def objective(factor):
    def loss(labels, outputs, point):
        return factor() * cross_entropy(labels, outputs)

    return objectives.Objective(loss, METRICS)


def source(factor, rows=slice(None)):
    def scaled(inputs, labels, draws):
        return inputs if draws is None else inputs * factor(), labels

    return data.Source(X[rows], Y[rows], 2, 12, transform=scaled)


def rule(factor):
    def update(gradient, slots, weight, point, step):
        return weight - factor() * point["rate"] * gradient, slots

    return optim.Rule(update)


def pruned_by(factor):
    def score(request, progress):
        return [np.sin(100 * factor() * theta) for theta in request.theta]

    return sparsity.OneShot(score)


def schedule(factor):
    return optim.Schedule({}, lambda p, step: p["learning_rate"] * factor())


PARTS = {
    "network": lambda n, f: models.register(n, network(network=f)),
    "layer": lambda n, f: models.register(n, network(layer=f)),
    "objective": lambda n, f: objectives.register(n, lambda: objective(f)),
    "dataset": lambda n, f: data.register(n, lambda data_dir: source(f)),
    "optimizer": lambda n, f: optim.register(n, rule(f)),
    "learning_rate_schedule": lambda n, f: optim.register_schedule(n, schedule(f)),
    "sparsity_method": lambda n, f: sparsity.register_sparsity_method(n, pruned_by(f)),
}
KINDS = [
    *(("network", "numpy"), ("layer", "clock"), ("dataset", "numpy")),
    *(("objective", kind) for kind in ("environment", "variable")),
    *(("optimizer", kind) for kind in ("drawn branch", "counter")),
    ("learning_rate_schedule", "clock"),
    *(("sparsity_method", kind) for kind in ("clock", "counter")),
]
"""Each part with what it reads, which `core/purity_test.py` knows more of, and each
place where what makes a step twice alike is told otherwise."""
TOLD = {
    "numpy": "own code draws from NumPy's global generator",
    "clock": r"own_code_test.py, line \d+, reads time.time",
    "drawn branch": r"own_code_test.py, line \d+, reads random.random",
    "environment": r"line \d+, reads the environment variable 'OWN_FACTOR'",
}


def values_of(**factors):
    """Values of a sweep in which these parts are of this program, the others shipped.

    A network is one part with its layer.
    """
    names = {part: f"own_{part}_{next(NUMBERS)}" for part in factors}
    for part, name in names.items():
        PARTS[part](name, factors[part])
    data.register("own_rows", plain)
    own = {"network" if part == "layer" else part: name for part, name in names.items()}
    method = own.pop("sparsity_method", None)
    pruned = {"sweep.sparsities": (0.5,), "sweep.sparsity_methods": (method,)}
    return {
        "workload.name": "own",
        "workload.dataset": "own_rows",
        "workload.network": "mlp",
        "workload.network_arguments": {} if "network" in own else {"widths": (3,)},
        "workload.optimizer": "sgd",
        "workload.space": {"learning_rate": ("log", 0.1, 1.0)},
        "workload.points": 1,
        "workload.step_budget": 2,
        "evaluation.steps": 1,
        "goal.metric": "validation/classification_error",
        "goal.threshold": 0.0,
        "sweep.batch_sizes": (8,),
        **{f"workload.{field}": name for field, name in own.items()},
        **(pruned if method else {}),
    }


def plain(data_dir):
    return data.Source(X, Y, 2, 12)


def curves(directory, values, slots=1):
    where = {"slots": slots, "strategy": "one_device"}
    return dps_tf.run(dps_tf.sweep(values=values), directory, **where).curves


@pytest.mark.parametrize(("part", "kind"), KINDS)
def test_a_part_that_is_no_function_is_refused_before_any_trial(part, kind, tmp_path):
    directory = tmp_path / "sweep"
    values = values_of(**{part: IMPURE[kind]()})
    twice = "a first step, built twice, gives two results"
    if part == "sparsity_method":
        twice = f"{values['sweep.sparsity_methods'][0]}' prunes one initial .* twice"
    with pytest.raises(UserError, match=TOLD.get(kind, twice)):
        # Slots of one device share what the first of them has traced.
        curves(directory, values, slots=2 if kind == "counter" else 1)
    assert not list(directory.rglob("study.json"))


def test_parts_that_are_functions_have_the_numbers_of_shipped_ones(tmp_path):
    parts = "optimizer", "objective", "learning_rate_schedule"
    own = curves(tmp_path / "own", values_of(**dict.fromkeys(parts, ONE)))
    shipped = curves(tmp_path / "shipped", values_of())
    columns = ["step", "validation/cross_entropy", "train/loss"]
    np.testing.assert_array_equal(own[columns], shipped[columns])


def inputs_of(study):
    """Returns what is kept of the data and the code that a study is trained on."""
    dataset = data.load_for(study.workload, None)
    network = models.build_for(study.workload, dataset.input_shape, dataset.classes)
    return {
        "content_hash": dataset.content_hash,
        NETWORK: models.structure_hash(network),
        **codes_of(study, dataset),
    }


@pytest.mark.slow
def test_a_sweep_is_not_extended_with_a_changed_part(tmp_path):
    # One dictionary for each: what a function holds is part of its code.
    held = {part: {"factor": 1.0} for part in [*PARTS, "rows"]}

    def of(part):
        mine = held[part]
        return lambda: mine["factor"]

    values = values_of(**{part: of(part) for part in PARTS})
    of_layer = held["layer"]
    models.register("own_both", network(of("network"), lambda: of_layer["factor"]))
    values["workload.network"] = "own_both"

    def register_rows():
        def strided(data_dir):
            return source(of("dataset"), slice(None, None, int(of("rows")())))

        strided.__qualname__ = "strided"  # Defined again, so that it is called again.
        data.register("own_strided", strided)

    values["workload.dataset"] = "own_strided"
    register_rows()
    curves(tmp_path, values)
    more = {**values, "sweep.batch_sizes": (8, 16)}
    studies = dps_tf.sweep(values=more).specification.studies
    words = {"dataset": "transform", "learning_rate_schedule": "schedule"}
    known = TrainedOn()
    known.add(studies[0], inputs_of(studies[0]))
    words |= {"layer": "network", "sparsity_method": "sparsity method", "rows": "data"}
    for part, mine in held.items():
        mine["factor"] = -1.0 if part == "rows" else 0.5
        register_rows()
        told = f"b16.* another {words.get(part, part)} than .*b8"
        with pytest.raises(UserError, match=told):
            known.add(studies[1], inputs_of(studies[1]))
        if part == "optimizer":  # One for all: it takes seconds to begin a sweep.
            with pytest.raises(UserError, match=told):
                curves(tmp_path, more)
        mine["factor"] = 1.0
    register_rows()
    assert set(curves(tmp_path, more)["batch_size"]) == {8, 16}


TEXT = "def f(x):\n    '''A comment.'''\n    return [y * {factor} for y in x]\n"


def defined(factor):
    """A function without a source, such as one of `python -c`."""
    names = {"__name__": "somewhere"}
    exec(TEXT.format(factor=factor), names)
    return names["f"]


def test_code_without_a_source_has_the_same_hash_in_every_process():
    assert code_hash(defined(2)) == code_hash(defined(2)) != code_hash(defined(3))


TWO = defined(2), defined(2)
"""Functions of one name and one code."""


def recursive(factor):
    def one(x):
        return x * factor if x < 1 else other(x - 1)

    def other(x):
        return one(x - 1)

    return one


def test_functions_that_call_each_other_end():
    assert code_hash(recursive(1)) == code_hash(recursive(1)) != code_hash(recursive(2))


class Doubling:
    factor = 2.0

    def __call__(self, inputs):
        return inputs * 2.0


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (rule(always(1.0)), rule(always(2.0))),
        (objective(always(1.0)), objective(always(2.0))),
        (functools.partial(defined(1), 1), functools.partial(defined(1), 2)),
        ([cross_entropy, 1], [cross_entropy, 2]),
        ([always(1.0), always(1.0)], [always(1.0), always(2.0)]),
        ([TWO[0], *TWO], [TWO[1], *TWO]),
        (
            objectives.Objective(cross_entropy, METRICS, weights=always(1.0)),
            objectives.Objective(cross_entropy, METRICS, weights=always(2.0)),
        ),
    ],
)
def test_a_change_inside_of_a_part_is_seen(first, other):
    assert code_hash(first) and code_hash(other)
    assert code_hash(first) != code_hash(other)


HELD = """
import argparse, types, tensorflow as tf
from dps_tf._keras import keras
helper, args = types.ModuleType("helper"), argparse.Namespace(factor={0}, inner=None)
args.inner = args
exec("def times(x): return {0} * x\\nfactor = {0}", helper.__dict__)
def scaled(x): return args.factor * x
class Held:
    factor = {0}
    def __init__(self): self.own = {0}
    @property
    def told(self): return {0}
    @staticmethod
    def times(x): return {0} * x
    def method(self, x): return self.own * x
    def read(self, x): return self.told * x
    __call__ = method
class Initial(keras.initializers.Initializer):
    def __init__(self): self.factor = {0}
    def __call__(self, shape, dtype=None): return self.factor * tf.ones(shape)
class Nested(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = [keras.layers.Dense(2, "relu" if {0} == 1 else "tanh")]
    def call(self, x): return self.inner[0](x)
def of(*layers):
    inputs = keras.Input((3, 2))
    outputs = inputs
    for layer in layers: outputs = layer(outputs)
    return keras.Model(inputs, outputs)
LSTM, TD = keras.layers.LSTM, keras.layers.TimeDistributed
"""
READ = [
    *("lambda x: args.factor * x", "lambda x: args.inner.factor * x", "Held()"),
    *("lambda x: tf.map_fn(lambda y: args.factor * y, x)", "lambda x: Held.times(x)"),
    *("lambda x: helper.factor * x", "lambda x: helper.times(x)", "Held().method"),
    *("lambda x: Held.factor * x", "Held().read", "tf.function(lambda x: {0} * x)"),
    *("of(keras.layers.Lambda(lambda x: args.factor * x))", "of(Nested())"),
    *("of(keras.layers.Dense(2, kernel_initializer=Initial()))",),
    *(
        "of(keras.layers.Dense(2, scaled))",
        "of(TD(Nested()))",
    ),
    "of(keras.layers.Bidirectional(LSTM({0})))",
]


@pytest.mark.parametrize("part", READ)
def test_what_own_code_reads_of_modules_and_objects_is_part_of_it(part):
    def hashed(factor):
        names = {"__name__": "__main__"}
        exec(HELD.format(factor), names)
        made = eval(part.format(factor), names)
        is_network = isinstance(made, keras.Model)
        return (models.structure_hash if is_network else code_hash)(made)

    # Keras has numbered its layers on when the second one is built.
    assert hashed(1) == hashed(1) != hashed(3)


def test_an_object_has_the_code_of_its_class_and_shipped_parts_have_none():
    assert code_hash(Doubling()) == code_hash(Doubling())
    shipped = [optim.OPTIMIZERS["adam"], optim.SCHEDULES["linear"], objectives.build()]
    assert [code_hash(part) for part in [*shipped, None, data.Flip()]] == [""] * 5


def test_all_cells_of_a_curve_have_one_network_and_one_data_set(tmp_path):
    widths = [3]
    for name in ("own_before", "own_after"):
        models.register(name, lambda *shape: models.build("mlp", *shape, widths=widths))
        data.register(name, lambda data_dir: data.Source(X[:40], Y[:40], 2, 12))
    values = {**values_of(network=ONE), "workload.network": "own_before"}
    curves(tmp_path, values)
    values["sweep.batch_sizes"] = (4,)
    for changed in ("workload.network", "workload.dataset", "code"):
        widths[0] = 4 if changed == "code" else 3
        told = "b4-s0.0 would have another .* own-sgd-none"
        other = {} if changed == "code" else {changed: "own_after"}
        with pytest.raises(UserError, match=told):
            curves(tmp_path, {**values, **other})
