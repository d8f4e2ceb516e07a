"""Does everything that is written as JSON come back as it was?"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dps_tf
from dps_tf.core import Cell, Goal, Space, TrialProvenance, TrialState, TurnReport
from dps_tf.store import (
    FORMAT,
    StudyHistory,
    encode_event,
    failure_event,
    fingerprint,
    report_event,
    scan,
    session_event,
    start_event,
)
from tests.made_up.specifications import SPACE, specification, workload

PURE = ("core", "store")
EXAMPLES: dict[str, Any] = {
    "Cell": Cell(
        "tiny", "sgd", "none", 1, 8, 0.0, (("workload.network_arguments.width", "16"),)
    ),
    "Goal": Goal("validation/accuracy", 0.9, "maximize", False),
    "Workload": workload(
        fixed={"momentum": 0.9}, network_arguments={"widths": [3, 4]}, max_draws=9
    ),
    "StudySpecification": specification(sparsity=0.9),
}


def record_types() -> dict[str, type]:
    """Returns every class of the pure rooms that can be written and read as JSON."""
    found: dict[str, type] = {}
    for room in PURE:
        folder = Path(dps_tf.__file__).parent / room
        for module in pkgutil.iter_modules([str(folder)]):
            name = f"dps_tf.{room}.{module.name}"
            for kind in vars(importlib.import_module(name)).values():
                if (
                    inspect.isclass(kind)
                    and kind.__module__ == name
                    and hasattr(kind, "to_json")
                    and hasattr(kind, "from_json")
                ):
                    found[kind.__name__] = kind
    return found


RECORD_TYPES = record_types()


def test_every_record_type_has_an_example():
    assert set(RECORD_TYPES) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(RECORD_TYPES))
def test_record_comes_back_from_its_text(name):
    example = EXAMPLES[name]
    text = json.dumps(example.to_json(), allow_nan=False)
    again = RECORD_TYPES[name].from_json(json.loads(text))
    assert again == example
    assert again.to_json() == example.to_json()


FIELDS = {
    "study": """
        cell deterministic evaluation finishers further_splits intra_op_threads lanes
        precision pruning results_version search_mode stop_at_goal workload xla
    """,
    "workload": """
        count dataset dataset_arguments evaluation_interval explicit_points
        fixed goal learning_rate_schedule max_draws name network
        network_arguments objective objective_arguments optimizer oracle
        oracle_arguments order points sequence space split split_seed
        step_budget test test_examples training_examples validation_examples
    """,
}
"""Names that study.json has in FORMAT 2."""
DEFAULTS = "8a7ff43018f7fa119e5fc4c8357bedc7ff1709ba1b39702205b76ad60380d4f4"
"""Digest of a plain specification in FORMAT 2, in which most fields are defaults."""


def test_the_fields_of_a_specification_change_only_with_the_number_of_the_format():
    """Raise FORMAT and bring a migration, see CONTRIBUTING.md, before renewing this."""
    assert FORMAT == 2
    plain = specification(results_version=0)
    for part, names in ((plain, "study"), (plain.workload, "workload")):
        own = sorted(item.name for item in dataclasses.fields(part))
        assert own == FIELDS[names].split()
    assert fingerprint(plain.to_json()) == DEFAULTS


def test_space_comes_back_from_its_text():
    assert Space.from_dict(json.loads(json.dumps(SPACE.to_json()))) == SPACE


NUMBERS = st.floats() | st.sampled_from([0.02, 1e-300, float("nan"), float("-inf")])
METRICS = st.dictionaries(st.sampled_from(["a/b", "c/d"]), NUMBERS, min_size=1)
STATE = TrialState(0, ())
REPORTS = st.builds(
    TurnReport,
    st.integers(0, 99),
    st.just(STATE),
    st.integers(1, 10**9),
    st.none() | METRICS,
    st.booleans(),
    st.none() | st.integers(1, 10**9),
    st.integers(0, 10**9),
    st.floats(0, 1e6),
)
PROVENANCES = st.builds(
    TrialProvenance,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.floats(0, 1),
    st.lists(
        st.fixed_dictionaries({"name": st.text(), "kept": st.integers(0, 9)}),
        max_size=2,
    ).map(tuple),
    st.integers(0, 10**6),
)
EVENTS = (
    REPORTS.map(report_event)
    | st.builds(start_event, st.integers(0, 99), PROVENANCES)
    | st.builds(failure_event, st.integers(0, 99), st.text())
    | st.builds(session_event, st.integers(1, 9), st.just(specification()))
)


def text_of(history: StudyHistory) -> dict[int, str]:
    """Returns what is known of each trial, NaN and all, whatever the order of keys."""
    return {
        number: json.dumps(dataclasses.asdict(trial), sort_keys=True, default=sorted)
        for number, trial in history.trials.items()
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, max_size=5))
def test_history_from_a_log_is_that_of_who_wrote_it(events):
    told, read = StudyHistory(), StudyHistory()
    seen = set()
    data = b""
    for event in events:
        key = (event.get("trial"), event.get("step"))
        if event["kind"] == "evaluation" and key in seen:
            continue  # the same evaluation cannot come out twice differently
        seen.add(key)
        told.add(event)
        data += encode_event(event)
    found = scan(data)
    assert found.damaged == []
    for event in found.events:
        read.add(event)
    assert text_of(read) == text_of(told)
    assert (read.slots, read.fingerprints) == (told.slots, told.fingerprints)


@given(st.sampled_from(["new kind", "", "Evaluation"]), st.integers(0, 9))
def test_kinds_of_later_versions_are_left_alone(kind, trial):
    history = StudyHistory()
    history.add({"kind": kind, "trial": trial})
    assert history.trials == {}
