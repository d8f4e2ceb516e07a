"""What is said of an objective in a gin file is checked before anything is trained."""

from __future__ import annotations

import pytest

from dps_tf.core import UserError
from tests.made_up.small_sweeps import BINDINGS, configured

NOT_SMOOTHED = "workload.fixed = {'l2_penalty': 1e-4}"


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (
            ["workload.objective = 'softmax'"],
            "objective 'softmax' is unknown: .*softmax_cross_entropy",
        ),
        (
            ["workload.objective_arguments = {'tops': (5,)}"],
            "objective 'softmax_cross_entropy' reads nothing named 'tops': .*top",
        ),
        (["workload.objective = 'squared_error'"], "nothing named 'label_smoothing'"),
        (
            ["workload.objective = 'squared_error'", NOT_SMOOTHED],
            "goal.metric 'validation/classification_error' is no metric of .*"
            "'squared_error': .*validation/mean_squared_error",
        ),
        (["goal.metric = 'validation/f1'"], "'validation/f1' is no metric of"),
        (
            [
                "goal.metric = 'validation/cross_entropy'",
                "sweep.evaluation_mode = 'goal'",
            ],
            "cannot decide a goal on validation/cross_entropy early",
        ),
        (["workload.fixed = {'l2_penalty': -1.0}"], "l2_penalty .* must be"),
        (["workload.fixed = {'label_smoothing': 1.0}"], "label_smoothing .* must be"),
    ],
)
def test_what_no_objective_can_do_is_refused(bindings, message):
    with pytest.raises(UserError, match=message):
        configured([*BINDINGS, *bindings])


@pytest.mark.parametrize(
    "bindings",
    [
        [NOT_SMOOTHED],
        ["goal.metric = 'validation/cross_entropy'"],
        ["goal.metric = 'train/loss'"],
        [
            "workload.objective_arguments = {'top': (2,)}",
            "goal.metric = 'validation/top_2_error'",
            "sweep.evaluation_mode = 'goal'",
        ],
        [
            "workload.objective = 'sigmoid_cross_entropy'",
            "workload.objective_arguments = {'thresholds': 200}",
            NOT_SMOOTHED,
            "goal.metric = 'validation/average_precision'",
            "goal.direction = 'maximize'",
        ],
    ],
)
def test_what_an_objective_can_do_is_taken(bindings):
    assert configured([*BINDINGS, *bindings]).studies
