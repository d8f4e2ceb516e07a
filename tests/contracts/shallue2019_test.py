"""Are the workloads of Shallue et al. 2019 those of the paper, and do they train?

Beside them the two modern networks, and the studies of a size for two processor cores.

The list of studies, the goals and the numbers of trials come from the tables of
published facts, counts of parameters and sizes of data from the paper's description;
none of them is read from the gin files.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from dps_tf import models
from dps_tf.analysis.interchange.shallue2019 import goals
from dps_tf.analysis.published import read_published
from dps_tf.core import (
    Cell,
    EvaluationInterval,
    StudySpecification,
    SweepSpecification,
    Workload,
)
from dps_tf.data import Dataset, Examples, FirstTokens
from dps_tf.models import initial_point
from dps_tf.sparsity import trainable_positions
from dps_tf.training import Program
from dps_tf.tuning.resources import Resources
from dps_tf.workloads import reading
from dps_tf.workloads.reading import read_configuration
from tests.training.problems import one_device

CATALOGUE = [
    name for name in reading.shipped() if name.startswith(("shallue2019/", "modern/"))
]
CURVES = "shallue2019/published.csv"
STUDIES = pd.read_csv(reading.folder() / "shallue2019" / "published_studies.csv")
# Files of published workloads are named by their optimizer.
NAMES = [n for n in CATALOGUE if n.endswith(("_sgd", "_momentum", "_nesterov"))]
OWN = [n for n in CATALOGUE if n not in NAMES]
# The studies of longer runs have no goal of their own.
ENDLESS = "solution_quality"
SHAPES = {
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "imagenet2012": (224, 224, 3),
    "open_images_v4": (224, 224, 3),
    "lm1b": (256,),
    "c4": (256,),
}
CLASSES = {
    "imagenet2012": 1000,
    "open_images_v4": 7186,
    "lm1b": 32_000,
    "c4": 24_006,
    "tiny_shakespeare": 65,
}
# By the end of the name of a file, optimizer left out; the longest that fits counts.
PARAMETERS = {
    "fc_64_64_64": 59_210,
    "fc_128_128_128": 134_794,
    "fc_256_256_256": 335_114,
    "fc_512_512_512": 932_362,
    "fc_1024": 814_090,
    "fc_1024_1024": 1_863_690,
    "fc_1024_1024_1024": 2_913_290,
    "fc_2048_2048_2048": 10_020_874,
    "simple_cnn_base": 3_274_634,
    "simple_cnn_narrow": 821_706,
    "simple_cnn_wide": 13_074_186,
    "resnet_8": 75_050,
    "resnet_50": 25_549_352,
    "imagenet_half_classes_resnet_50": 24_524_852,
    "open_images_v4_resnet_50": 38_224_466,
    "vgg_11": 132_863_336,
    "lstm": 62_791_680,
    "lm1b_transformer_base": 51_671_040,
    "common_crawl_transformer_base": 43_485_184,
    "transformer_wide": 141_090_816,
    "transformer_shallow": 39_069_696,
    "transformer_narrow_and_shallow": 17_961_984,
}
# By the beginning of the name of a file; the longest that fits counts.
GOALS = {
    "mnist_fc": 0.03,
    "mnist_simple_cnn": 0.01,
    "mnist_subsets": 0.02,
    "fashion_mnist": 0.1,
    "cifar_10": 0.3,
    "imagenet_resnet_50": 0.25,
    "imagenet_vgg_11": 0.35,
    "imagenet_half": 0.3,
    "open_images_v4": 0.31,
    "lm1b_transformer": 3.9,
    "lm1b_transformer_wide": 4.2,
    "lm1b_transformer_narrow": 4.2,
    "lm1b_lstm": 3.9,
    "common_crawl": 3.9,
}
# Of the others a hundred trials are complete.
FIFTY = {
    ("lm1b_transformer_shallow", "sgd"),
    ("lm1b_lstm", "nesterov"),
    ("common_crawl_transformer_base", "nesterov"),
}
# Of the two modern networks: nanoGPT has 65 * 128 (tied) + 64 * 128 + 128 and four
# blocks of 12 * 128^2 + 256; of ViT-S/16 the positions are fixed.
MODERN = {
    "tiny_shakespeare-gpt": 65 * 128 + 64 * 128 + 128 + 4 * (12 * 128**2 + 256),
    "imagenet-vit_s_16": 21_974_632,
}
QUICK = (
    "mnist_fc_64_64_64_sgd",
    "mnist_simple_cnn_narrow_sgd",
    "mnist_simple_cnn_base_nesterov",
    "cifar_10_resnet_8_nesterov",
    "text_networks",
    "modern/gpt_tiny_shakespeare",
)
# To build: seconds each.
DEAR = (
    "open_images_v4_resnet_50_nesterov",
    "common_crawl_transformer_base_nesterov",
    "lm1b_transformer_wide_nesterov",
)
SMALLER = {
    "resnet50": {"blocks": (1, 2)},
    "vgg11": {"units": 64},
    "vit": {"depth": 1},
    "transformer": {"width": 64, "hidden": 256, "heads": 4, "depth": 1},
    "gpt": {"depth": 1},
    "lstm": {"width": 64, "units": 128, "projection": 64},
}
SIDE = 32
"""Of images that two steps are made on; those of 224 have the same layers."""
# Of each kind of network a cheap one: file, workload and rate.
OVERFITS = (
    ("mnist_fc_64_64_64_sgd", "mnist-fc_64_64_64", 0.1),
    ("mnist_simple_cnn_narrow_sgd", "mnist-simple_cnn_narrow", 0.05),
    ("cifar_10_resnet_8_sgd", "cifar_10-resnet_8", 0.1),
    ("text_networks", "text-transformer", 0.1),
    ("text_networks", "text-lstm", 0.1),
)


@functools.cache
def sweep_of(name: str) -> SweepSpecification:
    return read_configuration([name], [])[0]


def workload_of(name: str) -> Workload:
    return sweep_of(name).studies[0].workload


def bare(name: str) -> str:
    return name.removeprefix("shallue2019/")


def data_of(workload: Workload) -> tuple[tuple[int, ...], int]:
    """Returns the shape of an input in evaluation and the number of classes."""
    arguments = workload.dataset_arguments
    classes = CLASSES.get(workload.dataset, 10)
    shape = SHAPES.get(workload.dataset, (arguments.get("length"),))
    return shape, arguments.get("vocabulary", arguments.get("classes", classes))


def test_there_is_a_file_for_each_workload_and_none_besides():
    assert len(NAMES) == 35
    listed = {
        key: sorted(rows["batch_size"].tolist())
        for key, rows in STUDIES.groupby(["workload", "optimizer"])
    }
    found = {}
    for name in NAMES:
        workload = workload_of(name)
        sizes = [study.cell.batch_size for study in sweep_of(name).studies]
        found[workload.name, workload.optimizer] = sorted(sizes)
    assert found == listed


@pytest.mark.parametrize("name", [n for n in NAMES if ENDLESS not in n])
def test_goal_is_strict_and_published_and_trials_are_feasible_ones(name):
    workload = workload_of(name)
    assert not workload.goal.inclusive
    assert workload.count == "feasible"
    stem, _, optimizer = bare(name).rpartition("_")
    goal = GOALS[max((start for start in GOALS if stem.startswith(start)), key=len)]
    assert workload.goal.threshold == goal
    assert workload.points == (50 if (stem, optimizer) in FIFTY else 100)
    metric, direction = "classification_error", "minimize"
    if stem.startswith("open_images"):
        metric, direction = "average_precision", "maximize"
    if stem.startswith(("lm1b", "common")):
        metric = "cross_entropy"
    assert workload.goal.metric == f"validation/{metric}"
    assert workload.goal.direction == direction
    curves = read_published(CURVES)
    rows = curves[curves["curve"] == f"{workload.name}-{workload.optimizer}"]
    if len(rows):
        assert str(workload.goal) == rows["goal"].iloc[0]
        assert workload.points == rows["trials"].iloc[0]


def test_sentences_are_read_longer_in_evaluation_than_in_training():
    for name in NAMES:
        if bare(name).startswith(("lm1b", "common")):
            arguments = workload_of(name).dataset_arguments
            assert (arguments["training_length"], arguments["length"]) == (64, 256)


def test_published_goals_are_those_of_the_files_and_of_the_curves():
    for name in NAMES:
        workload = workload_of(name)
        assert goals()[workload.name] == workload.goal, name
    assert set(goals()) == set(STUDIES["workload"])
    for row in read_published(CURVES).to_dict("records"):
        assert str(goals()[row["workload"]]) == row["goal"]


def test_budgets_leave_room_for_every_published_result():
    curves = read_published(CURVES)
    checked = 0
    for name in NAMES:
        for study in sweep_of(name).studies:
            curve = f"{study.workload.name}-{study.workload.optimizer}"
            rows = curves[
                (curves["curve"] == curve)
                & (curves["batch_size"] == study.cell.batch_size)
            ]
            for steps in rows["steps_to_result"]:
                checked += 1
                assert 1.4 * steps <= study.workload.step_budget <= 8 * steps, name
                # The published interval of ResNet-50 is a 270th of its result.
                assert study.evaluations.interval <= 0.06 * steps + 1
    assert checked > 140


def parameters_of(name: str) -> int:
    stem = bare(name).rpartition("_")[0]
    return PARAMETERS[max((e for e in PARAMETERS if stem.endswith(e)), key=len)]


@functools.cache
def counted(network: str, shape: tuple[int, ...], classes: int, arguments: str) -> int:
    """Returns the trainable parameters; nothing is allocated in a graph."""
    with tf.Graph().as_default():
        model = models.build(network, shape, classes, **eval(arguments))
        return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * ("half_" in n or bare(n) in DEAR))
        for n in NAMES
    ],
)
def test_network_has_the_parameters_of_the_specification(name):
    workload = workload_of(name)
    arguments = repr(dict(workload.network_arguments))
    found = counted(workload.network, *data_of(workload), arguments)
    assert found == parameters_of(name)


@pytest.mark.parametrize("name", [n for n in OWN if n.startswith("modern/")])
def test_modern_network_has_the_parameters_of_its_layers(name):
    workload = workload_of(name)
    arguments = repr(dict(workload.network_arguments))
    found = counted(workload.network, *data_of(workload), arguments)
    assert found == MODERN[workload.name]


def test_measured_studies_are_parts_of_the_published_ones():
    """Of a published workload only points, space and evaluation are another."""
    published_ones = {
        (w.name, w.optimizer): w for w in (workload_of(name) for name in NAMES)
    }
    kept = ("goal", "network", "network_arguments", "dataset", "dataset_arguments")
    kept += ("training_examples", "learning_rate_schedule", "validation_examples")
    compared = set()
    # This one goes on below the published space, and says so.
    for name in sorted({*OWN} - {"shallue2019/mnist_momentum_seeds_low"}):
        for study in sweep_of(name).studies:
            workload = study.workload
            original = published_ones.get((workload.name, workload.optimizer))
            if original is None:
                continue
            compared.add(name)
            for field in kept:
                assert getattr(workload, field) == getattr(original, field), field
            for entry, (_, low, high) in workload.space.to_json().items():
                _, lowest, highest = original.space.to_json()[entry]
                assert lowest <= low < high <= highest
    studied = ("cifar_10_optimizers", "mnist_fc_sizes", "mnist_optimizers")
    assert {*studied, "mnist_subsets"} <= {bare(name) for name in compared}


def made_up(workload: Workload, examples: int, most_classes: int) -> Dataset:
    """Returns examples without meaning, with as many axes as a workload's data."""
    shape, classes = data_of(workload)
    if len(shape) == 3:
        shape = (min(shape[0], SIDE), min(shape[1], SIDE), shape[2])
    classes = min(classes, most_classes)
    shorter = workload.dataset_arguments.get("training_length")
    transform = None if shorter is None else FirstTokens(shorter)
    generator = np.random.default_rng(0)
    if len(shape) == 1:
        tokens = generator.integers(0, classes, (2 * examples, shape[0] + 1), np.int32)
        inputs, labels = tokens[:, :-1], tokens[:, 1:].copy()
        labels[:, shape[0] // 2 :] = -1
    else:
        inputs = generator.normal(size=(2 * examples, *shape)).astype(np.float32)
        labels = generator.integers(0, classes, 2 * examples, np.int32)
        if workload.objective == "sigmoid_cross_entropy":
            labels = np.eye(classes, dtype=np.uint8)[labels]
    halves = [
        Examples(inputs[part], labels[part])
        for part in (slice(examples), slice(examples, None))
    ]
    stored = None if transform is None else halves[0]
    return Dataset("made_up", *halves, classes, "", "none", transform, stored)


def begun(
    workload: Workload, batch_size: int, rate: float, most_classes: int = 1000
) -> Program:
    """Returns the program of a workload, at the first step of its first point.

    It has as many examples as a batch.
    """
    cell = Cell(workload.name, workload.optimizer, "none", 0, batch_size, 0.0)
    # Files have an interval for larger batches.
    often = dataclasses.replace(workload, evaluation_interval=EvaluationInterval(1))
    study = StudySpecification(cell, often)
    dataset = made_up(workload, batch_size, most_classes)
    program = Resources([one_device()]).programs(study, dataset)[0]
    point = {**workload.draw(0, 1)[0], "learning_rate": rate}
    if "momentum" in point:
        point["momentum"] = 0.9
    initial = initial_point(program.network, 0)
    program.load(program.fresh_state(initial), point)
    return program


def shortened(workload: Workload) -> Workload:
    """Returns the workload with a network of few or narrow layers of each kind.

    Further ones are made by the same lines; the parameters of all are counted above.
    """
    arguments = {**workload.network_arguments, **SMALLER.get(workload.network, {})}
    return dataclasses.replace(workload, network_arguments=arguments)


def kind(workload: Workload) -> tuple[object, ...]:
    """Returns what making and training a network depend on, sizes left out."""
    arguments = workload.network_arguments.items()
    return (
        *(workload.network, sorted(k for k, v in arguments if v is not None)),
        workload.objective,
    )


def workloads_of(name: str) -> dict[str, Workload]:
    """Returns the workloads of a file by their names."""
    return {study.workload.name: study.workload for study in sweep_of(name).studies}


def learned() -> list[pytest.param]:
    """Returns the workloads whose small networks learn examples by heart, and rates."""
    return [
        pytest.param(
            shortened(workloads_of(f"shallue2019/{name}")[wanted]), rate, id=wanted
        )
        for name, wanted, rate in OVERFITS
    ]


def distinct() -> list[pytest.param]:
    """Returns a workload of each further kind.

    Large ones are run smaller everywhere; each as it is, and the widest, by hand.
    """
    found = {str(kind(param.values[0])): None for param in learned()}
    for name in sorted(CATALOGUE, key=lambda name: bare(name) not in QUICK):
        slow = [pytest.mark.slow] * (bare(name) not in QUICK)
        for workload in workloads_of(name).values():
            title, whole = f"{bare(name)}-{workload.name}", [pytest.mark.by_hand]
            small = pytest.param(shortened(workload), marks=slow, id=title)
            # Of the two losses of this one the rarer.
            if workload.network != "resnet50" or workload.objective.startswith("sig"):
                found.setdefault(str(kind(workload)), small)
            if workload.network in SMALLER:
                key = (workload.network, workload.network_arguments, workload.objective)
                large = pytest.param(workload, marks=whole, id=f"{title}-whole")
                found.setdefault(str(key), large)
    return [param for param in found.values() if param]


def assert_two_steps_move_every_trainable_tensor(program: Program, batch_size: int):
    places = trainable_positions(program.network)
    before = program.read().arrays
    advance = program.advance(np.tile(np.arange(batch_size), (2, 1)))
    assert (advance.steps, advance.diverged) == (2, False)
    after = program.read().arrays
    for place in places:
        name = program.network.weights[place].name
        assert np.any(before[place] != after[place]), name
        assert np.all(np.isfinite(after[place])), name


@pytest.mark.parametrize("workload", distinct())
def test_two_steps_move_every_trainable_tensor(workload):
    # Of one place of each image, batch normalization needs several to tell apart.
    batch_size = 8 if workload.network == "resnet50" else 4
    # A mean over 7,186 classes has small gradients.
    rate = 1.0 if workload.objective == "sigmoid_cross_entropy" else 0.01
    program = begun(workload, batch_size, rate)
    assert_two_steps_move_every_trainable_tensor(program, batch_size)


@pytest.mark.parametrize(("workload", "rate"), learned())
def test_every_tensor_moves_and_eight_examples_are_learned_by_heart(workload, rate):
    program = begun(workload, 8, rate, most_classes=100)
    assert_two_steps_move_every_trainable_tensor(program, 8)
    advance = program.advance(np.tile(np.arange(8), (198, 1)))
    assert advance.loss < 0.1
