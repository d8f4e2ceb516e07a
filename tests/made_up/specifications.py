"""Specifications of studies for tests, plain in all that a test does not name."""

from __future__ import annotations

from typing import Any

from dps_tf.core import (
    Cell,
    EvaluationInterval,
    Goal,
    Space,
    StudySpecification,
    Workload,
)

ERROR = "validation/classification_error"
ENVIRONMENT = {"tensorflow": "2.20.0", "instruction_sets": "avx2"}
SPACE = Space.from_dict({"learning_rate": ("log", 1e-4, 1.0)})


def workload(interval: int = 10, **changes: Any) -> Workload:
    values = {
        "name": "tiny",
        "dataset": "synthetic",
        "network": "mlp",
        "optimizer": "sgd",
        "goal": Goal(ERROR, 0.1),
        "space": SPACE,
        "points": 6,
        "step_budget": 100,
        "evaluation_interval": EvaluationInterval(steps=interval),
    }
    return Workload(**{**values, **changes})


def specification(
    batch_size: int = 8, sparsity: float = 0.0, method: str = "", **changes: Any
) -> StudySpecification:
    """Returns a study; changes of its own fields, all others go to the workload.

    A sparse one is pruned by SNIP unless it has another method.
    """
    own = {
        name: changes.pop(name)
        for name in list(changes)
        if name in StudySpecification.__dataclass_fields__
    }
    seed, axes = changes.pop("seed", 0), changes.pop("axes", ())
    found = own.pop("workload", None) or workload(**changes)
    method = method or ("snip" if sparsity else "none")
    cell = Cell(found.name, found.optimizer, method, seed, batch_size, sparsity, axes)
    return StudySpecification(own.pop("cell", cell), found, **own)
