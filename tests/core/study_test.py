from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.core import (
    RESULTS_VERSION,
    EvaluationInterval,
    Goal,
    Pruning,
    Space,
    StudySpecification,
    UserError,
    Workload,
)
from tests.made_up.specifications import ERROR, SPACE, specification, workload
from tests.store.records_test import JSON

ARGUMENTS = st.dictionaries(st.text(min_size=1), JSON, max_size=2)
SPECIFICATIONS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(64, 128),
        "sparsity": st.sampled_from([0.0, 0.5, 0.9]),
        "seed": st.integers(0, 9),
        "search_mode": st.sampled_from(["race", "exhaustive"]),
        "finishers": st.integers(1, 9),
        "stop_at_goal": st.booleans(),
        "evaluation": st.sampled_from(["exact", "goal"]),
        "pruning": st.builds(
            Pruning,
            st.sampled_from(["kernels", "kernels_and_biases"]),
            st.sampled_from(["global", "layer"]),
            st.integers(0, 9),
            ARGUMENTS,
        ),
        "goal": st.builds(
            Goal,
            st.sampled_from(["validation/loss", "validation/squared_error"]),
            st.floats(-1e6, 1e6),
            st.sampled_from(["minimize", "maximize"]),
            st.booleans(),
        ),
        "space": st.permutations(
            [
                ("learning_rate", ("log", 1e-4, 1.0)),
                ("momentum", ("reverse_log", 0.9, 0.9999)),
                ("decay_steps", ("integer", 10, 20)),
                ("label_smoothing", ("discrete", (0.0, 0.1))),
            ]
        ).map(lambda entries: Space.from_dict(dict(entries))),
        "points": st.integers(1, 200),
        "step_budget": st.integers(50, 10**6),
        "evaluation_interval": st.builds(
            EvaluationInterval,
            examples=st.integers(1, 5000),
            minimum=st.integers(1, 5),
            maximum=st.none() | st.integers(5, 50),
        )
        | st.builds(EvaluationInterval, steps=st.integers(1, 50)),
        "fixed": st.dictionaries(st.sampled_from(["a", "b"]), st.floats(-1e6, 1e6)),
        "sequence": st.sampled_from(["sobol", "lee2021"]),
        "count": st.sampled_from(["all", "feasible"]),
        "max_draws": st.none() | st.integers(1, 5000),
        "learning_rate_schedule": st.text(max_size=8),
        "split": st.sampled_from(["seeded", "lee2021"]),
        "split_seed": st.integers(0, 9),
        "validation_examples": st.none() | st.integers(1, 9),
        "order": st.sampled_from(["per_trial", "shared"]),
        "oracle_arguments": ARGUMENTS,
        "dataset_arguments": ARGUMENTS,
        "network_arguments": ARGUMENTS,
    }
).map(lambda changes: specification(**changes))


@settings(max_examples=60)
@given(SPECIFICATIONS)
def test_specification_comes_back_from_the_text_of_its_json(study):
    text = json.dumps(study.to_json())
    again = StudySpecification.from_json(json.loads(text))
    assert again.to_json() == study.to_json()
    assert again.fingerprint == study.fingerprint
    assert again.rule == study.rule
    assert again.refusals(study) == study.refusals(again) == []
    assert again.workload.draw(3, 5) == study.workload.draw(3, 5)


def test_fingerprint_is_frozen():
    # A change here makes every existing study another one, and is refused there: raise
    # RESULTS_VERSION if numbers change, and FORMAT of the store with a migration if the
    # form of a record does.
    assert RESULTS_VERSION == 2
    plain = specification()
    pruned = specification(
        batch_size=64,
        sparsity=0.9,
        count="feasible",
        search_mode="exhaustive",
        evaluation_interval=EvaluationInterval(examples=640, minimum=2),
        pruning=Pruning("kernels_and_biases"),
    )
    assert [plain.fingerprint, pruned.fingerprint] == [
        "c027419789f734580435899a89bd05bc83eaea71d1cd581ba0155458e01a5812",
        "d54d46fb092271c4ea00ad1a2bb05e0abc62d7a08c351a3b6b745f26cfecb58a",
    ]


def test_a_record_says_every_field_of_a_study_and_of_its_workload():
    study = specification()
    said = study.to_json()
    assert len(said) == len(dataclasses.fields(StudySpecification))
    assert len(said["workload"]) == len(dataclasses.fields(Workload))
    assert said["workload"]["goal"] == dataclasses.asdict(study.goal)


def test_further_splits_belong_to_the_goal_and_the_end_of_the_budget_or_always():
    plain = specification(step_budget=105)
    assert plain.splits_at(100, {ERROR: 0.0}, False) == ()
    goal = Goal(ERROR, 0.1)
    study = specification(
        goal=goal,
        step_budget=105,
        test="carved",
        further_splits={"test": "ends", "train": "always"},
    )
    assert study.splits_at(10, {ERROR: 0.2}, False) == ("train",)
    assert study.splits_at(10, {ERROR: 0.1}, False) == ("test", "train")
    assert study.splits_at(10, {ERROR: 0.1}, True) == ("train",)
    assert study.splits_at(100, {ERROR: 0.2}, False) == ("test", "train")
    assert StudySpecification.from_json(study.to_json()) == study
    # A goal on a further split is met once that is known.
    on_test = Goal("test/accuracy", 0.9, "maximize")
    study = specification(
        goal=on_test,
        step_budget=105,
        test="carved",
        further_splits={"test": "always", "train": "ends"},
    )
    assert study.splits_at(10, {ERROR: 0.0}, False) == ("test",)
    found = {ERROR: 0.0, "test/accuracy": 0.9}
    assert study.splits_at(10, found, False) == ("test", "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"further_splits": {"val": "ends"}}, "further split 'val' is unknown"),
        ({"further_splits": {"train": "often"}}, "evaluating train 'often'"),
        ({"further_splits": {"test": "ends"}}, "no test set .*workload.test"),
        (
            {
                "goal": Goal("test/accuracy", 0.9, "maximize"),
                "test": "given",
                "further_splits": {"test": "ends"},
            },
            "test is not evaluated always: bind sweep.further_splits to {'test'",
        ),
        ({"goal": Goal("train/accuracy", 0.9, "maximize")}, "train is not evaluated"),
        (
            {"goal": Goal("train/loss", 0.9), "evaluation": "goal"},
            "decides goals on the validation split and not on train/loss",
        ),
        ({"test": "split"}, "test 'split' is unknown"),
        ({"test_examples": 3}, "test_examples is 3 and test is 'none'"),
    ],
)
def test_splits_that_make_no_sense(changes, message):
    with pytest.raises(UserError, match=message):
        specification(**changes)


IDENTITY_CHANGES = {
    "batch_size": {"batch_size": 9},
    "seed": {"seed": 1},
    "name": {"name": "other"},
    "dataset": {"dataset": "other"},
    "network": {"network": "other"},
    "optimizer": {"optimizer": "adam"},
    "metric": {"goal": Goal("validation/cross_entropy", 0.1)},
    "direction": {"goal": Goal(ERROR, 0.1, "maximize")},
    "range": {"space": Space.from_dict({"learning_rate": ("log", 1e-4, 2.0)})},
    "scale": {"space": Space.from_dict({"learning_rate": ("linear", 1e-4, 1.0)})},
    "interval": {"evaluation_interval": EvaluationInterval(steps=5)},
    "fixed": {"fixed": {"momentum": 0.9}},
    "sequence": {"sequence": "lee2021"},
    "count": {"count": "feasible"},
    "learning_rate_schedule": {"learning_rate_schedule": "linear"},
    "split": {"split": "lee2021"},
    "split_seed": {"split_seed": 1},
    "validation_examples": {"validation_examples": 5},
    "order": {"order": "shared"},
    "oracle": {"oracle": "keras_tuner.oracles.RandomSearchOracle"},
    "oracle_arguments": {"oracle_arguments": {"beta": 1}},
    "dataset_arguments": {"dataset_arguments": {"examples": 9}},
    "training_examples": {"training_examples": 9},
    "network_arguments": {"network_arguments": {"widths": (3,)}},
    "objective": {"objective": "squared_error"},
    "objective_arguments": {"objective_arguments": {"top": (5,)}},
    "test": {"test": "given"},
    "test_examples": {"test": "carved", "test_examples": 7},
    "further_splits": {"further_splits": {"train": "ends"}},
    "schedule": {"search_mode": "exhaustive"},
    "stop_at_goal": {"stop_at_goal": False},
    "evaluation": {"evaluation": "goal"},
    "pruning": {"pruning": Pruning(scope="layer")},
    "intra_op_threads": {"intra_op_threads": 2},
    "lanes": {"lanes": 3},
    "xla": {"xla": True},
    "deterministic": {"deterministic": True},
    "results_version": {"results_version": RESULTS_VERSION + 1},
    "precision": {"precision": "mixed_bfloat16"},
}


@pytest.mark.parametrize("name", IDENTITY_CHANGES)
def test_another_study_is_refused_with_the_difference_and_has_another_fingerprint(name):
    old, new = specification(), specification(**IDENTITY_CHANGES[name])
    assert new.fingerprint != old.fingerprint
    lines = new.refusals(old)
    assert lines
    assert all("stored" in line and "now" in line for line in lines)


def test_every_field_is_either_refused_may_grow_or_is_tested_above():
    fields = {
        field.name
        for kind in (StudySpecification, Workload)
        for field in dataclasses.fields(kind)
    }
    tested = {name for change in IDENTITY_CHANGES.values() for name in change}
    # A cell is another folder; explicit points stand instead of a space.
    elsewhere = {"cell", "workload", "goal", "explicit_points"}
    may_grow = {"points", "finishers", "step_budget", "max_draws"}
    assert fields - tested - elsewhere - may_grow == set()
    assert not fields & {"data_dir", "workers", "slots", "progress"}


def test_order_of_the_space_is_part_of_the_study():
    # Dimensions are given out in the order of names.
    entries = {"a": ("log", 1e-4, 1.0), "b": ("log", 1e-4, 1.0)}
    old = specification(space=Space.from_dict(entries))
    new = specification(space=Space.from_dict(dict(reversed(entries.items()))))
    assert new.refusals(old)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("points", {"points": 6}, {"points": 7}),
        ("finishers", {"finishers": 1}, {"finishers": 2}),
        ("step_budget", {"step_budget": 100}, {"step_budget": 101}),
        (
            "max_draws",
            {"count": "feasible", "max_draws": 9},
            {"count": "feasible", "max_draws": 10},
        ),
    ],
)
def test_what_may_grow_grows_and_may_not_shrink(name, old, new):
    less, more = specification(**old), specification(**new)
    assert more.fingerprint == less.fingerprint
    assert more.refusals(less) == []
    (line,) = less.refusals(more)
    assert line.startswith(f"{name}: stored ") and "may only grow" in line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Goal(ERROR, 0.1), Goal(ERROR, 0.05)),
        (Goal(ERROR, 0.1), Goal(ERROR, 0.1, inclusive=False)),
        (Goal(ERROR, 0.8, "maximize"), Goal(ERROR, 0.9, "maximize")),
    ],
)
def test_goal_may_become_stricter_and_not_looser(old, new):
    loose, strict = specification(goal=old), specification(goal=new)
    assert strict.fingerprint == loose.fingerprint
    assert strict.refusals(loose) == []
    (line,) = loose.refusals(strict)
    assert str(old) in line and str(new) in line


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"evaluation": "goal"}, "bounds"), ({"oracle": "a.Oracle"}, "by scores")],
)
def test_goal_that_bounds_or_points_follow_from_is_fixed(changes, reason):
    # Bounds say nothing about another goal, and under it points would be others.
    old = specification(**changes)
    new = specification(**changes, goal=Goal(ERROR, 0.05))
    (line,) = new.refusals(old)
    assert str(old.goal) in line and str(new.goal) in line and reason in line
    more = {**changes, "points": 9, "finishers": 6}
    assert specification(**more, step_budget=109).refusals(old) == []
    refused = specification(**more, step_budget=110).refusals(old)
    assert len(refused) == ("oracle" in changes)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["all", "feasible"]))
def test_rule_follows_from_the_specification(points, finishers, count):
    rule = specification(
        points=points, finishers=finishers, count=count, step_budget=105
    ).rule
    assert rule.points == points
    assert rule.finishers == min(points, finishers)
    assert rule.last_evaluation == 100
    assert rule.draws_limit == (10 * points if count == "feasible" else points)
    assert rule.feasible_only == (count == "feasible")
    assert not rule.exhaustive


def test_adaptive_oracles_run_every_trial_to_its_own_goal():
    rule = specification(
        oracle="keras_tuner.oracles.RandomSearchOracle", stop_at_goal=False
    ).rule
    assert rule.exhaustive and rule.stop_at_goal


BAD = {
    "schedule": ({"search_mode": "raec"}, "'raec'"),
    "evaluation": ({"evaluation": "fast"}, "'fast'"),
    "finishers": ({"finishers": 0}, "finishers is 0"),
    "finishers type": ({"finishers": 1.0}, "finishers is 1.0"),
    "points": ({"points": 0}, "points is 0"),
    "points type": ({"points": "8"}, "points is '8'"),
    "step_budget": ({"step_budget": -5}, "step_budget is -5"),
    "no evaluation": ({"step_budget": 9}, "step_budget 9"),
    "sequence": ({"sequence": "sobool"}, "'sobool'"),
    "count": ({"count": "some"}, "'some'"),
    "order": ({"order": "random"}, "'random'"),
    "max_draws": ({"max_draws": 0}, "max_draws is 0"),
    "twice": ({"fixed": {"learning_rate": 0.1}}, "learning_rate"),
    "both": ({"explicit_points": ({"learning_rate": 1.0},)}, "explicit points"),
    "explicit count": (
        {"explicit_points": ({"learning_rate": 1.0},), "space": Space(())},
        "not 6",
    ),
    "method": ({"sparsity": 0.5, "method": "none"}, "sparsity 0.5"),
    "name": ({"name": "a b"}, "'a b'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_value_is_one_sentence_that_names_it(case):
    changes, named = BAD[case]
    with pytest.raises(UserError) as caught:
        specification(**changes)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changes", [{"prunable": "weights"}, {"examples": -1}])
def test_bad_pruning_is_one_sentence(changes):
    with pytest.raises(UserError) as caught:
        Pruning(**changes)
    assert repr(next(iter(changes.values()))) in str(caught.value)


def test_points_are_drawn_with_what_is_fixed():
    drawn = workload(fixed={"momentum": 0.9}).draw(0, 3)
    assert [set(point) for point in drawn] == [{"momentum", "learning_rate"}] * 3
    assert {point["momentum"] for point in drawn} == {0.9}
    assert len({point["learning_rate"] for point in drawn}) == 3


def test_explicit_points_are_taken_as_they_are():
    given_points = ({"learning_rate": 0.5}, {"learning_rate": 0.25})
    found = workload(
        explicit_points=given_points, points=2, space=Space(()), fixed={"momentum": 0.9}
    )
    assert found.draw(7, 2) == [{"momentum": 0.9, **point} for point in given_points]


def test_space_is_searched_from_the_study_seed():
    study = specification(seed=3)
    assert study.workload.draw(3, 4) != study.workload.draw(0, 4)
    assert study.workload.space == SPACE


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        ("float64", r"'float64' is unknown: .*known: float32, mixed_bfloat16"),
        ("mixed_float16", r"vanish without a loss scale.*use 'mixed_bfloat16'"),
    ],
)
def test_a_precision_that_nothing_trains_in_is_refused(precision, reason):
    with pytest.raises(UserError, match=reason):
        specification(precision=precision)


@pytest.mark.parametrize("fixed", [{}, {"decay_share": 0.5}])
def test_a_budget_of_which_a_length_is_a_share_may_not_grow(fixed):
    stored, larger = (
        specification(fixed=fixed, step_budget=budget) for budget in (100, 200)
    )
    told = larger.refusals(stored)
    assert told == (["workload.step_budget: stored 100, now 200"] if fixed else [])
    assert (larger.fingerprint == stored.fingerprint) == (not fixed)


def test_a_mean_needs_exact_evaluations():
    goal = Goal("validation/classification_error", 0.1, mean_of=3)
    specification(goal=goal)
    with pytest.raises(UserError, match="mean of 3 evaluations"):
        specification(goal=goal, evaluation="goal")
