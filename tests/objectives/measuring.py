"""Outputs that are given, measured as an evaluation measures those of a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dps_tf.objectives import Objective, merge


def measured(
    objective: Objective,
    labels: np.ndarray,
    outputs: np.ndarray,
    parts: Sequence[np.ndarray] | None = None,
) -> dict[str, float]:
    """Returns the metrics of all examples, looked at part by part.

    `parts`: indices; together each example once, and -1 for padding. By default all.
    """
    found = []
    for rows in parts or [np.arange(len(labels))]:
        sums = objective.sums(
            tf.constant(labels[rows]),
            tf.constant(outputs[rows]),
            tf.constant(rows >= 0),
        )
        # An evaluator removes the rows of examples that fill up a batch.
        sums["rows"] = [
            {name: part[rows >= 0] for name, part in kept.items()}
            for kept in sums["rows"]
        ]
        found.append(tf.nest.map_structure(np.asarray, sums))
    return objective.values("validation", merge(found))
