"""How Shallue et al. spell optimizers, metrics and splits, and how this package does.

Their archive says `nesterov_momentum` where the curves digitized from their figures say
`nesterov`; both are `nesterov` here.
"""

from __future__ import annotations

OPTIMIZERS = {"nesterov_momentum": "nesterov"}
"""Spelling of the archive -> of this package, where they differ."""
SPLITS = {"train": "train", "val": "validation", "test": "test"}
METRICS = {
    "cross_entropy_error": "cross_entropy",
    "classification_error": "classification_error",
    "average_precision": "average_precision",
}
MAXIMIZED = ("average_precision", "accuracy")


def to_optimizer(spelling: str) -> str:
    """Returns this package's name of an optimizer.

    >>> to_optimizer("nesterov_momentum"), to_optimizer("sgd")
    ('nesterov', 'sgd')
    """
    return OPTIMIZERS.get(spelling, spelling)


def from_optimizer(name: str) -> str:
    """Returns the archive's name of an optimizer.

    >>> from_optimizer("nesterov")
    'nesterov_momentum'
    """
    return {ours: theirs for theirs, ours in OPTIMIZERS.items()}.get(name, name)


def to_metric(column: str) -> str | None:
    """Returns this package's name of a metric column, or None for another column.

    >>> to_metric("val/cross_entropy_error")
    'validation/cross_entropy'
    """
    split, _, metric = column.partition("/")
    if split not in SPLITS or metric not in METRICS:
        return None
    return f"{SPLITS[split]}/{METRICS[metric]}"


def from_metric(name: str) -> str | None:
    """Returns the archive's column of a metric, or None where it has none.

    >>> from_metric("validation/classification_error")
    'val/classification_error'
    """
    split, _, metric = name.partition("/")
    splits = {ours: theirs for theirs, ours in SPLITS.items()}
    metrics = {ours: theirs for theirs, ours in METRICS.items()}
    if split not in splits or metric not in metrics:
        return None
    return f"{splits[split]}/{metrics[metric]}"


def direction_of(metric: str) -> str:
    """Returns `maximize` for metrics that are better when larger."""
    return "maximize" if metric.rpartition("/")[2] in MAXIMIZED else "minimize"
