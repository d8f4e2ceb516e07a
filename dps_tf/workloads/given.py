"""Networks and data sets that are given as Python objects, by the names gin has."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np

from dps_tf import data, models
from dps_tf.core import Goal, UserError, on_one_line
from dps_tf.data import Source
from dps_tf.data.arrays import check_kind

_EVALUATIONS = 20
"""Number of evaluations in an epoch of arrays."""
_KINDS: dict[str, tuple[Callable[[str, Any], None], tuple[str, ...]]] = {
    "network": (models.register, ("input_shape", "classes")),
    "dataset": (data.register, ("data_dir",)),
}
"""What registers each kind, and the arguments that its functions are called with."""


def values_of(
    network: Any,
    dataset: Any,
    goal: Goal | float | None,
    batch_sizes: Sequence[int] | None,
    step_budget: int | None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns values by gin name, and the names that no other program can import.

    Raises UserError for an object that is no network and no data set.
    """
    values: dict[str, Any] = {"sweep.batch_sizes": batch_sizes}
    values["workload.step_budget"] = step_budget
    stated = goal.to_json() if isinstance(goal, Goal) else {"threshold": goal}
    values |= {f"goal.{name}": value for name, value in stated.items()}
    own = []
    for kind, given in (("network", network), ("dataset", dataset)):
        if given is not None:
            name = values[f"workload.{kind}"] = given_name(kind, given)
            own += [name] if not isinstance(given, str) and "." not in name else []
    if network is not None:
        values["workload.name"] = values["workload.network"].rpartition(".")[2]
        values |= {"workload.optimizer": "sgd", "workload.space": "default"}
    if isinstance(dataset, tuple):
        rows = len(dataset[1])
        values["evaluation.examples"] = max(1, (rows - rows // 5) // _EVALUATIONS)
    return {k: v for k, v in values.items() if v is not None}, tuple(own)


def given_name(kind: str, given: Any, name: str = "") -> str:
    """Returns the gin name of what is given, and registers it; `name`: another name.

    A function that other programs can import has the name of its module before its own,
    and arrays one that follows from their content.
    """
    if isinstance(given, str):
        return given
    register, handed = _KINDS[kind]
    is_pair = isinstance(given, tuple) and len(given) == 2
    if kind == "dataset" and is_pair and not isinstance(given[0], tuple):
        source = _source(*given)
        digest = data.content_hash(source.inputs, source.labels)
        name = name or f"arrays_{digest[:12]}"
        if name not in data.DATASETS.names():
            register(name, lambda data_dir: source)
        return name
    own = getattr(given, "__name__", "")
    try:
        inspect.signature(given).bind(*handed)
    except (TypeError, ValueError):
        own = ""
    if not own.isidentifier():
        raise UserError(
            f"{kind} is a {type(given).__name__}: give a function, with a name, of "
            f"({', '.join(handed)}) that builds it anew"
            f"{', or one pair (inputs, labels)' if kind == 'dataset' else ''}."
        )
    _check_unbound(kind, given)
    module = given.__module__
    if module == "__main__" or getattr(sys.modules[module], own, None) is not given:
        register(name or own, given)
        return name or own
    return f"{module}.{own}"


def _check_unbound(kind: str, given: Any) -> None:
    """Raises UserError where gin binds values of a function: a sweep does not."""
    try:
        bound = gin.get_bindings(given, resolve_references=False)
    except ValueError:
        return  # Gin does not know it.
    if bound:
        raise UserError(
            f"gin binds {', '.join(bound)} of the {kind} {given.__name__}, which has "
            f"no effect in a sweep: give it as workload.{kind}_arguments."
        )


def _source(*pair: Any) -> Source:
    try:
        inputs, labels = (
            a if isinstance(a, np.ndarray) else np.asarray(a) for a in pair
        )
    except ValueError as error:
        raise UserError(f"the pair holds no arrays: {on_one_line(error)}.") from error
    for name, array in (("inputs", inputs), ("labels", labels)):
        check_kind(name, array, "biuf")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise UserError(
            f"the labels of a pair are {labels.dtype.name} {list(labels.shape)}: they "
            "have to be classes from 0, whole numbers [n]; others need a function that "
            "returns a dps_tf.data.Source, and an objective."
        )
    if inputs.dtype == np.float64:
        with np.errstate(over="ignore"):  # An input of 1e39 is refused when it is read.
            inputs = inputs.astype(np.float32)
    classes = np.unique(labels)
    if len(classes) < 2 or classes[-1] >= len(classes):
        held = ", ".join(map(str, classes[:5])) + (", ..." if classes[5:].size else "")
        raise UserError(
            f"the labels of a pair are {held}: they have to be all classes from 0 on, "
            "two at least; where a class has no example, give a function that returns "
            "a dps_tf.data.Source, which states their number."
        )
    return Source(inputs, labels, int(labels.max(initial=0)) + 1, len(labels) // 5)
