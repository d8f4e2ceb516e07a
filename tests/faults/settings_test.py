"""Settings of others change no number, and are given back as they were."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading

import gin
import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import models
from dps_tf._keras import keras, own_settings
from dps_tf.core import Cell, UserError
from dps_tf.probing.trained_trial import trained_trial
from dps_tf.sparsity import Candidates
from dps_tf.sparsity.prunable import VariableRole
from dps_tf.sparsity.selection import choose
from dps_tf.store import LocalFiles, SweepReader
from dps_tf.training import environment
from dps_tf.training import strategy as strategies
from tests import interpreter
from tests.training.problems import Problem

BACKEND = keras.backend
PRESENT = {
    "image_data_format": BACKEND.image_data_format,
    "floatx": BACKEND.floatx,
    "epsilon": BACKEND.epsilon,
    "eagerly": tf.config.functions_run_eagerly,
    "policy": lambda: keras.mixed_precision.global_policy().name,
}
SET = {
    "image_data_format": BACKEND.set_image_data_format,
    "floatx": BACKEND.set_floatx,
    "epsilon": BACKEND.set_epsilon,
    "eagerly": tf.config.run_functions_eagerly,
    "policy": keras.mixed_precision.set_global_policy,
}
# Together, as a number that depends on one of them shows that it does.
OTHERS = [
    {"image_data_format": "channels_first", "floatx": "float64", "epsilon": 0.1},
    {"floatx": "float16", "policy": "float64"},
    {"eagerly": True, "policy": "mixed_bfloat16"},
]
CNN = Problem(network="mlp_batch_norm", arguments={"widths": (4,)})


@pytest.fixture
def restored():
    found = {name: read() for name, read in PRESENT.items()}
    yield found
    for name, value in found.items():
        SET[name](value)


def numbers() -> list[np.ndarray]:
    """Returns weights after some steps, and the metrics there."""
    program = CNN.program()
    CNN.begin(program, seed=3)
    loss = program.advance(CNN.order(0, 4)).loss
    metrics = program.evaluate().metrics
    return [np.array([loss, *metrics.values()]), *program.read().arrays]


@pytest.fixture(scope="module")
def expected():
    return numbers()


@pytest.mark.parametrize("settings", OTHERS)
def test_no_number_depends_on_settings_which_are_given_back(
    settings, expected, restored
):
    for name, value in settings.items():
        SET[name](value)
    others = {key: read() for key, read in PRESENT.items()}
    for found, wanted in zip(numbers(), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    for network in ("simple_cnn", "resnet8"):
        built = models.build(network, (16, 16, 3), 4)
        formats = {getattr(layer, "data_format", None) for layer in built.layers}
        assert formats <= {None, "channels_last"}
        assert {v.dtype for v in built.weights} == {tf.float32}
    assert {key: read() for key, read in PRESENT.items()} == others


@pytest.mark.parametrize(
    ("name", "value"), [(n, x) for settings in OTHERS for n, x in settings.items()]
)
def test_a_setting_is_ours_inside_and_the_users_outside(name, value, restored):
    SET[name](value)
    with own_settings():
        assert PRESENT[name]() == restored[name]
    assert PRESENT[name]() == value


def test_threads_that_overlap_restore_once(restored):
    SET["image_data_format"]("channels_first")
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with own_settings():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=other)
    with own_settings():
        thread.start()
        assert inside.wait(10)
    assert PRESENT["image_data_format"]() == "channels_last"
    go_on.set()
    thread.join()
    assert PRESENT["image_data_format"]() == "channels_first"
    with pytest.raises(ZeroDivisionError), own_settings():
        _ = 1 / 0
    assert PRESENT["image_data_format"]() == "channels_first"


@pytest.mark.parametrize("variable", strategies._VARIABLES)
def test_variables_that_change_bits_are_recorded(variable, monkeypatch):
    monkeypatch.delenv(variable, raising=False)
    before = environment()
    monkeypatch.setenv(variable, "1")
    assert environment() == {**before, "settings": environment()["settings"]}
    assert f"{variable}=1" in environment()["settings"].split()


@pytest.mark.parametrize(
    ("call", "recorded"),
    [
        ("experimental.enable_op_determinism()", "op_determinism=1"),
        (
            "optimizer.set_experimental_options({'constant_folding': False})",
            "constant_folding=False",
        ),
    ],
)
def test_what_changes_the_bits_of_operations_is_recorded(call, recorded):
    """In a process of its own, as nothing turns it off again."""
    text = (
        "from dps_tf.training import environment; import tensorflow as tf; "
        f"print(environment()['settings']); tf.config.{call}; "
        "print(environment()['settings'])"
    )
    before, after = interpreter.run(["-c", text]).stdout.splitlines()[-2:]
    assert after == f"{before} {recorded}".strip()


def test_bindings_of_a_program_in_gin_count_nowhere_and_stay():
    @gin.configurable("width_of_others")
    def width(value=1):
        return value

    plain = dps_tf.sweep("quickstart")
    gin.bind_parameter("width_of_others.value", 5)
    gin.bind_parameter("workload.points", 7)
    try:
        gin.finalize()
        assert dps_tf.sweep("quickstart") == plain
        assert width() == 5 and gin.config_is_locked()
        with pytest.raises(UserError):
            dps_tf.sweep("quickstart", values={"workload.nothing": 1})
        assert width() == 5
    finally:
        gin.clear_config()


@pytest.mark.parametrize("kind", ["network", "dataset"])
def test_a_part_whose_values_gin_binds_is_not_called_without_them(kind):
    def part(*_, size=32):
        raise AssertionError(size)

    part = gin.configurable(f"{kind}_of_others")(part)
    given = {kind: part, "batch_sizes": (8,), "goal": 0.1}
    assert dps_tf.sweep("quickstart", **given)
    try:
        gin.bind_parameter(f"{kind}_of_others.size", 64)
        with pytest.raises(UserError, match=f"gin binds size of the {kind} part"):
            dps_tf.sweep("quickstart", **given)
    finally:
        gin.clear_config()


@pytest.mark.parametrize("is_scope", [True, False])
@pytest.mark.parametrize("name", ["relu", "glorot_uniform", "Dense", "L2"])
def test_a_name_of_keras_means_its_own(name, is_scope):
    other, found = tf.nn.gelu, keras.utils.get_registered_object
    objects = keras.utils.get_custom_objects()
    mine = {name: other, "mine": other}
    try:
        objects.update({} if is_scope else mine)
        with keras.utils.custom_object_scope(mine if is_scope else {}):
            with own_settings():
                assert found(name).__module__.startswith("tf_keras")
                assert found("mine") is other
            assert found(name) is other
    finally:
        for each in mine:
            objects.pop(each, None)


@pytest.mark.parametrize("opened", [tf.Graph().as_default, strategies.build])
def test_a_graph_or_a_scope_of_the_caller_is_refused(opened):
    inside = opened() if opened is not strategies.build else opened("mirrored").scope()
    with inside, pytest.raises(UserError, match="call it outside"):
        dps_tf.run(dps_tf.sweep("quickstart"), "anywhere")


def test_checks_of_each_operation_are_refused():
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(UserError, match="disable_check_numerics.. before"):
            dps_tf.run(dps_tf.sweep("quickstart"), "anywhere")
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        ["-m", "dps_tf.train", "--gin_file=quickstart", "--sweep_dir=anywhere"],
        ["-c", "import dps_tf; dps_tf.run(sweep_dir='anywhere')"],
        ["-c", "import dps_tf; dps_tf.StepsToResult"],
    ],
)
def test_python_without_docstrings_is_one_sentence(program, tmp_path):
    """tf_keras cannot be imported without them."""
    environment = {**os.environ, "PYTHONPATH": str(interpreter.ROOT)}
    words = [sys.executable, "-OO", *program]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    line = done.stderr.splitlines()[-1]
    assert line.partition("rror: ")[2].startswith("TensorFlow's Keras needs docstrings")
    if program[0] == "-m":
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


KERAS_JSON = {
    "floatx": "float64",
    "epsilon": 0.1,
    "backend": "jax",
    "image_data_format": "channels_first",
}
VARIABLES = {"PYTHONHASHSEED": "3", "LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Tokyo"}
SWEEP = """
workload.name = 'digits_mlp'
workload.dataset = 'digits'
workload.network = 'mlp'
workload.network_arguments = {'widths': (8,)}
workload.optimizer = 'sgd'
workload.space = {'learning_rate': ('log', 0.12, 1.8)}
workload.points = 2
workload.step_budget = 20
workload.evaluation = @evaluation()
workload.goal = @goal()
evaluation.steps = 10
goal.metric = 'validation/cross_entropy'
goal.threshold = 0.1
sweep.workloads = @workload()
sweep.batch_sizes = (16,)
"""


@pytest.mark.slow
def test_files_and_variables_of_a_user_change_no_evaluation(tmp_path):
    curves = []
    (tmp_path / "sweep.gin").write_text(SWEEP)
    for name, variables in (("plain", {}), ("settled", VARIABLES)):
        home = tmp_path / name
        (home / ".keras").mkdir(parents=True)
        if variables:
            (home / ".keras" / "keras.json").write_text(json.dumps(KERAS_JSON))
        words = ["-m", "dps_tf.train", f"--gin_file={tmp_path}/sweep.gin", "--slots=1"]
        words += [f"--sweep_dir={home}/sweep"]
        env = {**os.environ, "HOME": str(home), **variables}
        if not variables:
            assert interpreter.run(words, env=env).returncode == 0
        else:  # A process of its own: Keras reads its file when it is imported.
            subprocess.run([sys.executable, *words], env=env, check=True)
        curves.append(dps_tf.load(home / "sweep").curves)
    one, other = (table.drop(columns=["seconds"], errors="ignore") for table in curves)
    assert one.equals(other)


def unlike(draw, size=8):
    """Returns a builder whose first layer holds what `draw` gives at each build."""

    def builder(input_shape, classes):
        inputs = keras.Input(input_shape)
        flat = keras.layers.Flatten()(inputs)
        hidden = keras.layers.Dense(3, kernel_initializer=draw(size))(flat)
        return keras.Model(inputs, keras.layers.Dense(classes)(hidden))

    return builder


class Held(keras.initializers.Initializer):
    """Gives an array that its configuration does not show."""

    def __init__(self, size):
        self.value = np.random.normal(size=(size, 3))  # noqa: NPY002

    def __call__(self, shape, dtype=None, **kwargs):
        return tf.constant(self.value, dtype)


def constant(generator):
    return lambda size: keras.initializers.Constant(
        generator().normal(size=(size, 3)).astype("float32")
    )


@pytest.mark.parametrize(
    ("draw", "refused"),
    [
        (constant(np.random.default_rng), True),
        (constant(lambda: np.random), True),
        (Held, True),
        (constant(lambda: np.random.default_rng(0)), False),
        (lambda size: "glorot_uniform", False),
    ],
)
def test_a_network_that_differs_from_build_to_build_is_refused(draw, refused, request):
    name = f"unlike_{request.node.callspec.id}".replace("-", "_")
    models.register(name, unlike(draw))
    dataset = Problem().dataset
    of_data = dataset.input_shape, dataset.classes
    workload = type("W", (), {"network": name, "network_arguments": {}})
    if not refused:
        models.check_same(workload, *of_data)
        return
    with pytest.raises(UserError, match="differs from build to build"):
        models.check_same(workload, *of_data)


def stacked(input_shape, classes, sizes):
    inputs = x = keras.layers.Input(input_shape)
    for activation, size in sizes.items() if isinstance(sizes, dict) else [*sizes]:
        x = keras.layers.Dense(size, activation=activation)(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(x)))


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ({"relu": 3, "elu": 3}, True),
        ({"elu": 3, "relu": 3}, False),
        ((("relu", 3), ("elu", 3)), False),
    ],
)
def test_arguments_are_read_as_records_keep_them(sizes, refused):
    """A dictionary comes back from a record, and for scores, with its keys sorted."""
    models.register("stacked", stacked)
    arguments = {"network": "stacked", "network_arguments": {"sizes": sizes}}
    dataset = Problem().dataset
    check = functools.partial(
        models.check_same, type("W", (), arguments), dataset.input_shape
    )
    if not refused:
        check(dataset.classes)
        return
    with pytest.raises(UserError, match="order of a dictionary counts.*take lists"):
        check(dataset.classes)


@pytest.mark.parametrize("kind", [np.complex64, np.complex128, object, str])
@pytest.mark.parametrize("place", [0, 1])
def test_scores_that_are_no_real_numbers_are_refused(kind, place):
    scores = [np.arange(6.0), np.arange(4.0)]
    scores[place] = scores[place].astype(kind)
    with pytest.raises(UserError, match=f"variable {place} are .*real numbers"):
        roles = [VariableRole(f"l/{i}", "l", "kernel") for i in range(2)]
        choose("global", Candidates(scores, roles), 0.5, {})


def test_zero_of_either_sign_is_one_sparsity():
    cells = [Cell("w", "sgd", "none", 0, 8, zero) for zero in (0.0, -0.0, 0)]
    assert len(set(cells)) == len({cell.name for cell in cells}) == 1


STARTED = {"seed": 0}
SPARSE = (
    SWEEP.replace("'mlp'", "'started_anew'").replace("{'widths': (8,)}", "{}")
    + """
sweep.sparsities = (0.5,)
sweep.sparsity_methods = ('magnitude',)
"""
)


@pytest.mark.slow
def test_a_trial_whose_masks_do_not_fit_is_neither_loaded_nor_exported(tmp_path):
    def draw(size):
        values = np.random.default_rng(STARTED["seed"]).normal(size=(size, 3))
        return keras.initializers.Constant(values)

    models.register("started_anew", unlike(draw, 64))
    (tmp_path / "sweep.gin").write_text(SPARSE)
    dps_tf.run(dps_tf.sweep(str(tmp_path / "sweep.gin")), tmp_path / "sweep", slots=1)
    cell = "digits_mlp-sgd-magnitude-seed0-b16-s0.5"
    files, reader = LocalFiles(), SweepReader(LocalFiles(), str(tmp_path / "sweep"))
    trial = trained_trial(files, reader, cell, "0")
    assert sum(mask.sum() for mask in trial.masks.values()) > 0
    STARTED["seed"] = 1  # as where a network is drawn anew in each process
    with pytest.raises(UserError, match="trained with another network"):
        trained_trial(files, reader, cell, "0")
