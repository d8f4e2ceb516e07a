"""Can a goal be on any metric that a curve has?"""

from __future__ import annotations

import re

import numpy as np
import pytest

from dps_tf import data, models
from dps_tf._keras import keras
from dps_tf.analysis.loading import load
from dps_tf.core import Goal, UserError
from dps_tf.objectives import OBJECTIVES
from dps_tf.store import LocalFiles
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.options import Options
from tests.made_up.small_sweeps import configured, launched
from tests.packaging.source_tree import SOURCE_TREE

PAGE = SOURCE_TREE / "docs" / "pages" / "how-to" / "objective.md"
CLASSES, LENGTH = 5, 6
SETS = {
    "softmax_cross_entropy": "goal_classes",
    "token_cross_entropy": "goal_tokens",
    "sigmoid_cross_entropy": "goal_indicators",
    "squared_error": "goal_numbers",
}
MAXIMIZED = {"accuracy", "average_precision", "macro_average_precision", "r_squared"}


def documented() -> dict[str, list[str]]:
    """Returns the metrics of each objective that the table of the page names."""
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\|([^|]*)\|$", PAGE.read_text(), re.M)
    return {
        name: [
            word
            for word in re.findall(r"`(\w+)`", text)
            if word.split("_")[-1] != "thresholds"
        ]
        for name, text in rows
        if name in OBJECTIVES.names()
    }


def most(metric: str) -> float:
    """Returns a threshold that every network meets: of a share it is 1."""
    try:
        return Goal(metric, 1e6, "minimize").threshold
    except UserError:
        return 1.0


def successors(input_shape, classes):
    """Returns a network that predicts each token from the one before it alone."""
    inputs = keras.Input(input_shape, dtype="int32")
    near = keras.layers.Embedding(classes, 4)(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(near))


@pytest.fixture(scope="module", autouse=True)
def _parts():
    """Registers a set of 40 examples of each kind of label, and a network of tokens."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(40, CLASSES)).astype(np.float32)
    tokens = generator.integers(0, CLASSES, (40, LENGTH + 1)).astype(np.int32)
    kinds = {
        "goal_classes": (inputs, inputs.argmax(-1), None),
        "goal_indicators": (inputs, (inputs > 0.5).astype(np.int32), None),
        "goal_numbers": (inputs, 2 * inputs, None),
        "goal_tokens": (tokens[:, :-1], tokens[:, 1:], [1, 2, 1, 3, 1]),
    }
    before = dict(data.DATASETS._entries)
    for name, (examples, labels, lengths) in kinds.items():
        source = data.Source(examples, labels, CLASSES, 8, token_bytes=lengths)
        data.register(name, lambda data_dir, source=source: source)
    models.register("goal_successors", successors)
    yield
    models.NETWORKS._entries.pop("goal_successors")
    for name in kinds.keys() - before.keys():
        data.DATASETS._entries.pop(name)


def goal_on(metric: str) -> Goal:
    """Returns a goal on a metric that is met at once."""
    name = metric.rpartition("/")[2]
    column = metric if "/" in metric else f"validation/{metric}"
    column = column.replace("top_5", "top_2")
    if name in MAXIMIZED:
        return Goal(column, -1e6, "maximize")
    return Goal(column, most(column), "minimize")


def bindings(objective: str, metric: str, **more: object) -> list[str]:
    """Returns a sweep of one trial of two steps for a goal on a metric."""
    is_text, goal = SETS[objective] == "goal_tokens", goal_on(metric)
    is_softmax = objective == "softmax_cross_entropy"
    values = {
        "workload.name": "any",
        "workload.dataset": SETS[objective],
        "workload.network": "goal_successors" if is_text else "mlp",
        "workload.network_arguments": {} if is_text else {"widths": ()},
        "workload.optimizer": "sgd",
        "workload.points": [{"learning_rate": 0.01}],
        "workload.step_budget": 2,
        "workload.objective": objective,
        "workload.objective_arguments": {"top": (2,)} if is_softmax else {},
        "goal.metric": goal.metric,
        "goal.direction": goal.direction,
        "goal.threshold": goal.threshold,
        "evaluation.steps": 1,
        "sweep.batch_sizes": (8,),
        "sweep.finishers": 1,
        **more,
    }
    parts = ["sweep.workloads = @workload()", "workload.goal = @goal()"]
    parts.append("workload.evaluation = @evaluation()")
    return [*parts, *(f"{key} = {value!r}" for key, value in values.items())]


def test_the_page_names_the_metrics_of_all_shipped_objectives():
    assert set(documented()) == set(SETS)
    assert sum(map(len, documented().values())) >= 14


@pytest.mark.slow
@pytest.mark.parametrize("objective", SETS)
def test_a_sweep_may_have_its_goal_on_every_metric_of_the_page(objective, tmp_path):
    backends = Backends(Options(""), LocalFiles())
    metrics = documented()[objective]
    for metric in metrics:
        [study] = configured(bindings(objective, metric)).studies
        backends(study).check_data(study)
    for metric in (metrics[-1], "train/loss"):
        place = tmp_path / metric.replace("/", "_")
        launched(place, configured(bindings(objective, metric)))
        [trial] = load(place).trials.to_dict("records")
        assert (trial["outcome"], trial["steps_to_result"]) == ("complete", 1), metric
    # The race looks up the goal among these columns, whatever its metric is.
    for metric in metrics:
        [result] = load(place, goal=goal_on(metric)).results.to_dict("records")
        assert result["steps_to_result"] == 1, metric


def test_a_goal_on_a_metric_that_the_data_do_not_allow_is_one_sentence(tmp_path):
    """A sequence of tokens whose bytes nobody told has no bits per byte."""
    sweep = configured(
        bindings(
            "token_cross_entropy",
            "bits_per_byte",
            **{"workload.dataset": "synthetic_tokens"},
        )
    )
    with pytest.raises(UserError, match=r"bits_per_byte.*on 'synthetic_tokens'"):
        launched(tmp_path, sweep)
