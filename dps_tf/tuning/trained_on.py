"""The data and the code of the cells of a sweep, which have to stay the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dps_tf.core import DIVISION, StudySpecification, UserError
from dps_tf.store import NETWORK, StudyReader

_CONTENT = "content_hash"
_DATA = ("dataset", "dataset_arguments", *DIVISION)
_NAMED = "data set or network"
_OF_CURVE = ("dataset", "dataset_arguments", "network", "network_arguments")
_NAMES: Mapping[str, tuple[str, ...]] = {
    _CONTENT: _DATA,
    NETWORK: ("network", "network_arguments", *_DATA),
    "optimizer": ("optimizer",),
    "schedule": ("learning_rate_schedule",),
    "objective": ("objective", "objective_arguments", *_DATA),
    "transform": _DATA,
    "sparsity_method": (),
    _NAMED: (),
}
"""The fields of a workload that name each part."""
_WORDS = {_CONTENT: "data", NETWORK: "network", "sparsity_method": "sparsity method"}


class TrainedOn:
    """The data and code that the cells of a sweep were trained on, by their names."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Any]] = {}

    def add_closed(self, study: StudyReader) -> None:
        """Adds what the record of a closed study says."""
        if study.is_closed and study.specification is not None:
            self.add(study.specification, study.training_inputs)

    def add(self, study: StudySpecification, inputs: Mapping[str, Any]) -> None:
        """Adds a study and its inputs; UserError if another cell's differ."""
        stored = study.to_json()["workload"]
        inputs = {**inputs, _NAMED: [stored[name] for name in _OF_CURVE]}
        method, curve = study.cell.sparsity_method, repr(study.cell.curve)
        own = {"sparsity_method": method, _NAMED: curve}
        for part, fields in _NAMES.items():
            if part not in inputs:
                continue
            names = [part, study.precision, own.get(part)]
            names += [stored[field] for field in fields]
            key = json.dumps(names, sort_keys=True)
            cell, known = self._known.setdefault(key, (study.cell.name, inputs[part]))
            if known != inputs[part]:
                word = _WORDS.get(part, part)
                raise UserError(
                    f"{study.cell.name} would have another {word} than {cell} was "
                    "trained with, under the same name: undo the change, or choose "
                    "another name or --sweep_dir."
                )
