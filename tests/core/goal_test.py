from __future__ import annotations

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dps_tf.core import Goal, UserError, direction_of
from dps_tf.workloads.reading import read_configuration

ERROR = "validation/classification_error"
LOSS = "validation/loss"
COMPARISONS = {
    ("minimize", True): operator.le,
    ("minimize", False): operator.lt,
    ("maximize", True): operator.ge,
    ("maximize", False): operator.gt,
}
THRESHOLDS = st.sampled_from([0.0, 0.02, 0.5, -3.9]) | st.floats(-10, 10)


def goals(metrics=(LOSS,)) -> st.SearchStrategy[Goal]:
    return st.builds(
        Goal,
        st.sampled_from(metrics),
        THRESHOLDS,
        st.sampled_from(["minimize", "maximize"]),
        st.booleans(),
    )


def near(*thresholds: float) -> list[float]:
    """Returns the values at which comparisons with thresholds change."""
    around = [math.nextafter(t, d) for t in thresholds for d in (-math.inf, math.inf)]
    return [*thresholds, *around, -1e9, 1e9, -math.inf, math.inf]


def test_120_wrong_of_6000_meet_2_percent_inclusive_and_not_strict():
    assert Goal(ERROR, 0.02).reaches(120 / 6000)
    assert not Goal(ERROR, 0.02, inclusive=False).reaches(120 / 6000)
    assert not Goal(ERROR, 0.02).reaches(121 / 6000)
    assert Goal(ERROR, 0.02, inclusive=False).reaches(119 / 6000)
    # What 1 - accuracy would have made of the same count.
    assert not Goal(ERROR, 0.02).reaches(1 - 5880 / 6000)


@given(goals(), st.floats(allow_nan=False))
@example(Goal(LOSS, -8.999999999999998, "maximize"), 0.0)
def test_a_goal_is_one_comparison(goal, value):
    compare, threshold = COMPARISONS[goal.direction, goal.inclusive], goal.threshold
    single = float(np.float32(threshold)) if abs(threshold) > 2e-38 else threshold
    for x in (value, *near(threshold)):
        is_met = compare(threshold if x == single else x, threshold)
        is_met = is_met and math.isfinite(x)
        assert goal.reaches(x) == is_met == goal.is_met([x])


@pytest.mark.parametrize("threshold", [3.7e-82, 1e-44, -1e-50, 1e39, -1e300])
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_threshold_beyond_single_precision_equals_itself_alone(threshold, direction):
    goal = Goal(LOSS, threshold, direction)
    for value in (0.0, 1.4e-45, math.inf, -math.inf, threshold):
        met = value <= threshold if direction == "minimize" else value >= threshold
        assert goal.reaches(value) == (met and math.isfinite(value))


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("inclusive", [True, False])
def test_an_array_is_compared_value_by_value(direction, inclusive):
    goal = Goal(ERROR, 0.02, direction, inclusive)
    values = np.array([0.0, *near(0.02), 1.0, math.nan])
    assert list(goal.reaches(values)) == [goal.reaches(float(v)) for v in values]


def first_met(goal, values):
    return next((n for n in range(len(values)) if goal.is_met(values[: n + 1])), None)


@given(goals())
def test_nan_never_meets_a_goal(goal):
    assert goal.reaches(math.nan) is False
    assert first_met(goal, [math.nan, math.nan]) is None


@given(goals(), goals())
def test_stricter_means_that_each_value_that_meets_it_meets_the_other(new, old):
    values = near(new.threshold, old.threshold)
    implied = all(old.reaches(value) for value in values if new.reaches(value))
    comparable = new.direction == old.direction
    assert new.is_stricter_than(old) == (comparable and implied)


def test_equal_goals_are_stricter_than_each_other_and_other_metrics_never():
    goal = Goal(ERROR, 0.02)
    assert goal.is_stricter_than(Goal(ERROR, 0.02))
    assert not Goal("validation/cross_entropy", 0.01).is_stricter_than(goal)


@given(goals((LOSS, "validation/squared_error")))
def test_goal_comes_back_from_json(goal):
    assert Goal.from_json(goal.to_json()) == goal


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        (Goal(ERROR, 0.02), f"{ERROR} <= 0.02"),
        (Goal(ERROR, 0.02, inclusive=False), f"{ERROR} < 0.02"),
        (Goal("validation/accuracy", 0.9), "validation/accuracy >= 0.9"),
        (Goal("a/b", 1, "maximize", False), "a/b > 1.0"),
        (
            Goal("val/loss", 0.2, in_a_row=2),
            "val/loss <= 0.2 at 2 evaluations in a row",
        ),
        (Goal("val/loss", 0.2, mean_of=3), "val/loss <= 0.2, mean of 3"),
    ],
)
def test_goal_reads_as_it_compares(goal, text):
    assert str(goal) == text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"direction": "min"}, "'min'"),
        ({"threshold": math.nan}, "nan"),
        ({"threshold": math.inf}, "inf"),
        ({"threshold": "0.02"}, "'0.02'"),
        ({"threshold": True}, "True"),
        ({"threshold": 10**400}, "10000"),
        ({"in_a_row": 10**400}, "10000"),
        ({"metric": "classification_error"}, "'classification_error'"),
        ({"metric": None}, "None"),
        ({"inclusive": "yes"}, "'yes'"),
    ],
)
def test_bad_goal_is_one_sentence_that_names_the_value(changes, named):
    with pytest.raises(UserError) as caught:
        Goal(**{"metric": ERROR, "threshold": 0.02, **changes})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


WINDOWS = st.one_of(
    st.tuples(st.integers(1, 4), st.just(1)), st.tuples(st.just(1), st.integers(1, 4))
)


@example(("minimize", True), (1, 3), 1000, 1, [-1, 0, 1])
@given(
    st.sampled_from(list(COMPARISONS)),
    WINDOWS,
    st.sampled_from([10, 1000, 6000, 10_000]),
    st.integers(1, 9),
    st.lists(st.sampled_from([-1, 0, 0, 1, None]), max_size=12),
)
def test_a_goal_over_several_evaluations_is_met_at_the_last_of_them(
    comparison, window, examples, tenths, beside
):
    in_a_row, mean_of = window
    goal = Goal(ERROR, tenths / 10, *comparison, in_a_row=in_a_row, mean_of=mean_of)
    single = Goal(ERROR, tenths / 10, *comparison)
    threshold, compare = Fraction(tenths, 10), COMPARISONS[comparison]
    exact = [None if n is None else threshold + Fraction(n, examples) for n in beside]
    values = [math.nan if error is None else float(error) for error in exact]
    wanted = None
    for last in range(max(window) - 1, len(values)):
        recent = exact[last - max(window) + 1 : last + 1]
        if mean_of > 1 and None not in recent:
            recent = [sum(recent) / mean_of]
        if None not in recent and all(compare(value, threshold) for value in recent):
            wanted = last
            break
    assert first_met(goal, values) == wanted
    if in_a_row > 1:
        assert goal.is_stricter_than(single) and not single.is_stricter_than(goal)
    if mean_of > 1:
        assert not goal.is_stricter_than(single) and not single.is_stricter_than(goal)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"in_a_row": 0}, "goal.in_a_row is 0"),
        ({"mean_of": 2.5}, "goal.mean_of is 2.5"),
        ({"in_a_row": 2, "mean_of": 2}, "leave one of them at 1"),
    ],
)
def test_impossible_windows_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        Goal(ERROR, 0.2, **change)


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("validation/accuracy", "maximize"),
        ("test/top_5_accuracy", "maximize"),
        ("validation/macro_average_precision", "maximize"),
        ("validation/r_squared", "maximize"),
        ("val/recall@5", "maximize"),
        ("validation/Top-1 Acc", "maximize"),
        ("validation/word_error_rate", "minimize"),
        ("validation/accuracy_percent", "maximize"),
    ],
)
def test_a_name_tells_which_way_is_better(metric, direction):
    assert direction_of(metric) == Goal(metric, 0.5).direction == direction


@pytest.mark.parametrize(
    "name",
    ["inaccuracy", "score", "neg_mean_squared_error", "1-accuracy", "1 minus F1"],
)
def test_a_direction_that_no_name_tells_is_asked_for(name):
    with pytest.raises(UserError, match="give direction 'minimize' or 'maximize'"):
        Goal(f"validation/{name}", 0.5)
    for direction in ("minimize", "maximize"):
        assert Goal(f"validation/{name}", 0.5, direction).direction == direction


def test_a_source_states_a_direction_and_a_user_agrees_or_is_told():
    for name, stated in (("score", "maximize"), ("f1", "maximize"), ("q", "minimize")):
        assert direction_of(f"val/{name}", stated=stated) == stated
        assert direction_of(f"val/{name}", stated, stated) == stated
    with pytest.raises(UserError, match="'minimize', and its source states 'maximize'"):
        direction_of("val/f1", "minimize", "maximize")
    # Optuna's studies minimize unless told otherwise, whatever is reported.
    with pytest.raises(UserError, match="by its name val/f1 is to maximize: give the"):
        direction_of("val/f1", stated="minimize")
    for direction in ("minimize", "maximize"):
        assert direction_of("val/f1", direction, "minimize") == direction


@pytest.mark.parametrize("name", ["accuracy", "top_5_error", "f1_score", "r_squared"])
def test_a_share_above_1_is_asked_about(name):
    with pytest.raises(UserError, match="goal.threshold is 95.*add _percent"):
        Goal(f"validation/{name}", 95)
    assert Goal(f"validation/{name}", 1).threshold == 1
    assert Goal(f"validation/{name}_percent", 95).threshold == 95


def test_a_goal_without_a_direction_has_that_of_its_metric():
    bindings = ["goal.metric = 'validation/accuracy'", "goal.threshold = 0.9"]
    sweep, _ = read_configuration(["quickstart"], bindings)
    assert str(sweep.studies[0].workload.goal) == "validation/accuracy >= 0.9"
    bindings.append("goal.direction = 'minimize'")
    sweep, _ = read_configuration(["quickstart"], bindings)
    assert str(sweep.studies[0].workload.goal) == "validation/accuracy <= 0.9"
