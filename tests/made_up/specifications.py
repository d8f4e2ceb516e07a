"""Specifications of studies for tests, plain in all that a test does not name."""

from __future__ import annotations

from dps_tf import core

ERROR = "validation/classification_error"
ENVIRONMENT = {"tensorflow": "2.20.0", "instruction_sets": "avx2"}
SPACE = core.Space.from_dict({"learning_rate": ("log", 1e-4, 1.0)})
MOMENTUM_SPACE = core.Space.from_dict(
    {"learning_rate": ("log", 1e-4, 1.0), "momentum": ("reverse_log", 0.9, 0.9999)}
)


def workload(interval=10, **changes) -> core.Workload:
    values = {
        "name": "tiny",
        "dataset": "synthetic",
        "network": "mlp",
        "optimizer": "sgd",
        "goal": core.Goal(ERROR, 0.1),
        "space": SPACE,
        "points": 6,
        "step_budget": 100,
        "evaluation_interval": core.EvaluationInterval(steps=interval),
    }
    return core.Workload(**{**values, **changes})


def specification(batch_size=8, sparsity=0.0, **changes) -> core.StudySpecification:
    """Returns a study; changes of its own fields, all others go to the workload."""
    seed, axes = changes.pop("seed", 0), changes.pop("axes", ())
    fields = core.StudySpecification.__dataclass_fields__
    own = {name: changes.pop(name) for name in list(changes) if name in fields}
    method = changes.pop("method", "snip" if sparsity else "none")
    asked = workload(**changes)
    cell = core.Cell(
        asked.name, asked.optimizer, method, seed, batch_size, sparsity, axes
    )
    return core.StudySpecification(cell, asked, **own)
