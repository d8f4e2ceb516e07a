"""What was asked of each cell, as a table."""

from __future__ import annotations

import json

import pandas as pd

from dps_tf.analysis.report.content import Column, PageTable

_COLUMNS = (
    Column("workload", "Workload"),
    Column("optimizer", "Optimizer"),
    Column("method", "Sparsity method"),
    Column("sparsities", "Sparsities"),
    Column("batch_sizes", "Batch sizes"),
    Column("seeds", "Study seeds"),
    Column("goal", "Goal asked of training"),
    Column("points", "N", "Trials, or feasible trials, that each study pays for."),
    Column("count", "Counted", "Whether N counts all trials or feasible ones."),
    Column("schedule", "Schedule", "With m, the finishers that are exact in a race."),
    Column("step_budget", "Step budget", "Steps a trial may run."),
    Column("interval", "Evaluated every", "Steps between evaluations."),
    Column("examples", "Examples", "For training, and for each evaluation."),
    Column("space", "Space", "Range and scale of each tuned metaparameter."),
    Column("precision", "Precision", "In which the networks compute."),
    Column("prunable", "Prunable", "Which parameters are ranked for pruning."),
)
_SAME = [
    "workload",
    "optimizer",
    "sparsity_method",
    "precision",
    "goal",
    "points",
    "count",
    "schedule",
    "finishers",
    "step_budget",
    "training_examples",
    "evaluation_examples",
    "space",
    "prunable",
]


def specification_table(studies: pd.DataFrame) -> PageTable:
    """Returns one row per group of cells of which the same was asked."""
    rows = []
    for _, group in studies.groupby(_SAME, sort=False):
        first = group.iloc[0]
        race = first["schedule"] == "race"
        rows.append(
            {
                "workload": first["workload"],
                "optimizer": first["optimizer"],
                "method": first["sparsity_method"],
                "sparsities": _listed(group["sparsity"]),
                "batch_sizes": _listed(group["batch_size"]),
                "seeds": _listed(group["seed"]),
                "goal": first["goal"],
                "points": int(first["points"]),
                "count": first["count"],
                "schedule": first["schedule"]
                + (f", m = {first['finishers']}" if race else ""),
                "step_budget": int(first["step_budget"]),
                "interval": _listed(group["evaluation_interval"]),
                "examples": f"{first['training_examples']:,} and "
                f"{first['evaluation_examples']:,}",
                "space": space_text(str(first["space"])),
                "precision": first["precision"],
                "prunable": first["prunable"],
            }
        )
    frame = pd.DataFrame(rows, columns=[column.name for column in _COLUMNS])
    caption = "What was asked, one row per group of equal cells"
    return PageTable("specification", caption, _COLUMNS, frame)


def _listed(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values.unique()))


def space_text(space: str) -> str:
    """Returns a space as text.

    >>> space_text('{"learning_rate": ["log", 0.0001, 1.0]}')
    'learning_rate 0.0001 to 1 (log)'
    """
    parts = []
    for name, (scale, *rest) in json.loads(space).items():
        if scale == "discrete":
            parts.append(f"{name} in {', '.join(f'{x:g}' for x in rest[0])}")
        else:
            parts.append(f"{name} {rest[0]:g} to {rest[1]:g} ({scale})")
    return "; ".join(parts) or "explicit points"
