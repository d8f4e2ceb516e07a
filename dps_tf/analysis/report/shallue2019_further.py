"""What the archive of Shallue et al. 2019 allows beyond Figures 1 to 11.

What Figures 12 to 24 show is not known from public sources, so that these figures have
titles and no numbers. Metric and goal of training are those of validation; scatters
are at one batch size of each workload, near the middle of its range.
"""

from __future__ import annotations

from dataclasses import replace

from dps_tf.analysis.report.shallue2019_content import (
    NESTEROV,
    Panel,
    PublishedFigure,
    Series,
)
from dps_tf.analysis.report.shallue2019_panels import FIGURES
from dps_tf.core.goal import Goal

TRIALS = (25, 50, 100)
"""Of which the best is compared."""
_STEPS, _BUDGETS = FIGURES[0], FIGURES[10]
_MIDDLE = {"Simple CNN on MNIST": 512, "Simple CNN on Fashion-MNIST": 512}
_MIDDLE |= {"ResNet-8 on CIFAR-10": 128}


def _of_training(goal: Goal) -> Goal:
    return replace(goal, metric=goal.metric.replace("validation/", "train/"))


def _panels(of_training: bool = False) -> tuple[Panel, ...]:
    """Returns a panel for each workload of Figure 1."""
    found = []
    for panel in _STEPS.panels:
        (series,) = panel.series
        goal = _of_training(series.goal) if of_training else series.goal
        found.append(Panel(panel.title, (Series(NESTEROV, series.workload, goal),)))
    return tuple(found)


def _scatters() -> tuple[Panel, ...]:
    found = []
    for panel in _panels():
        size = _MIDDLE.get(panel.title, 1024)
        title = f"{panel.title}, B = {size}"
        limits = (1e-4, 10.0)
        found.append(replace(panel, title=title, batch_size=size, limits=limits))
    return tuple(found)


FURTHER = (
    PublishedFigure(
        "Steps to result on the training set", "steps", _panels(of_training=True)
    ),
    PublishedFigure("Learning rate of the best trial", "learning_rate", _panels()),
    PublishedFigure("Momentum of the best trial", "momentum", _panels()),
    PublishedFigure(
        "Which metaparameters reach the goal within the whole budget",
        "scatter",
        _scatters(),
    ),
    PublishedFigure("Steps to result of fewer trials", "trials", _panels()),
    PublishedFigure(
        "Best validation metric within a budget, from near",
        "budgets",
        tuple(replace(panel, limits=None) for panel in _BUDGETS.panels),
        2,
    ),
)
