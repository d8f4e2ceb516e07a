"""Specifications of studies for tests: one that is plain, and any that may be."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dps_tf.core import (
    Cell,
    EvaluationInterval,
    Goal,
    Pruning,
    Space,
    StudySpecification,
    Workload,
)

ERROR = "validation/classification_error"
SPACE = Space.from_dict({"learning_rate": ("log", 1e-4, 1.0)})


def workload(**changes: Any) -> Workload:
    values = {
        "name": "tiny",
        "dataset": "synthetic",
        "network": "mlp",
        "optimizer": "sgd",
        "goal": Goal(ERROR, 0.1),
        "space": SPACE,
        "points": 6,
        "step_budget": 100,
        "evaluation_interval": EvaluationInterval(steps=10),
    }
    return Workload(**{**values, **changes})


def specification(
    batch_size: int = 8, sparsity: float = 0.0, method: str = "none", **changes: Any
) -> StudySpecification:
    """Returns a study; changes of its own fields, all others go to the workload."""
    own = {
        name: changes.pop(name)
        for name in list(changes)
        if name in StudySpecification.__dataclass_fields__
    }
    seed = changes.pop("seed", 0)
    found = own.pop("workload", None) or workload(**changes)
    cell = Cell(found.name, found.optimizer, method, seed, batch_size, sparsity)
    return StudySpecification(own.pop("cell", cell), found, **own)


_numbers = st.floats(-1e6, 1e6)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _numbers | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
_arguments = st.dictionaries(st.text(min_size=1, max_size=4), _json, max_size=2)
_goals = st.builds(
    Goal,
    st.sampled_from([ERROR, "validation/accuracy"]),
    _numbers,
    st.sampled_from(["minimize", "maximize"]),
    st.booleans(),
)
_spaces = st.lists(
    st.sampled_from(
        [
            ("learning_rate", ("log", 1e-4, 1.0)),
            ("momentum", ("reverse_log", 0.9, 0.9999)),
            ("decay_steps", ("integer", 10, 20)),
            ("label_smoothing", ("discrete", (0.0, 0.1))),
        ]
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda entry: entry[0],
).map(lambda entries: Space.from_dict(dict(entries)))
_intervals = st.builds(EvaluationInterval, steps=st.integers(1, 50)) | st.builds(
    EvaluationInterval,
    examples=st.integers(1, 5000),
    minimum=st.integers(1, 5),
    maximum=st.none() | st.integers(5, 50),
)
_workloads = st.builds(
    workload,
    goal=_goals,
    space=_spaces,
    points=st.integers(1, 200),
    step_budget=st.integers(50, 10**6),
    evaluation_interval=_intervals,
    fixed=st.dictionaries(st.sampled_from(["a", "b"]), _numbers, max_size=2),
    sequence=st.sampled_from(["sobol", "lee2021"]),
    count=st.sampled_from(["all", "feasible"]),
    max_draws=st.none() | st.integers(1, 5000),
    learning_rate_schedule=st.text(max_size=8),
    split=st.sampled_from(["seeded", "lee2021"]),
    split_seed=st.integers(0, 9),
    validation_examples=st.none() | st.integers(1, 9),
    order=st.sampled_from(["per_trial", "shared"]),
    oracle_arguments=_arguments,
    dataset_arguments=_arguments,
    network_arguments=_arguments,
)


@st.composite
def specifications(draw: st.DrawFn) -> StudySpecification:
    sparsity = draw(st.sampled_from([0.0, 0.5, 0.9]))
    return specification(
        batch_size=draw(st.integers(64, 128)),
        sparsity=sparsity,
        method="snip" if sparsity else "none",
        seed=draw(st.integers(0, 9)),
        workload=draw(_workloads),
        search_mode=draw(st.sampled_from(["race", "exhaustive"])),
        finishers=draw(st.integers(1, 9)),
        stop_at_goal=draw(st.booleans()),
        evaluation=draw(st.sampled_from(["exact", "goal"])),
        pruning=draw(
            st.builds(
                Pruning,
                st.sampled_from(["kernels", "kernels_and_biases"]),
                st.sampled_from(["global", "layer"]),
                st.integers(0, 9),
                _arguments,
            )
        ),
    )
