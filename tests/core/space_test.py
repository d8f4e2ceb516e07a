from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import Space, UserError
from dps_tf.core.space import RESERVED, Parameter
from dps_tf.store import CURVES, STUDIES, TRIALS

UNITS = st.floats(0, 1)

# The space of Lee et al. 2021, published code.
LEE = Space.from_dict(
    {
        "learning_rate": ("log", 1e-4, 1.0),
        "momentum": ("reverse_log", 0.9, 0.9999),
        "decay_steps": ("integer", 30_000, 60_000),
        "end_learning_rate_factor": ("log", 1e-4, 0.1),
    }
)


@st.composite
def parameters(draw) -> Parameter:
    scale = draw(st.sampled_from(["log", "reverse_log", "linear", "integer"]))
    if scale == "log":
        low, factor = draw(st.floats(1e-8, 1e3)), draw(st.floats(1.01, 1e6))
        return Parameter("x", scale, low, low * factor)
    if scale == "reverse_log":
        far, factor = draw(st.floats(1e-3, 10)), draw(st.floats(1.01, 1e4))
        return Parameter("x", scale, 1 - far, 1 - far / factor)
    low, width = draw(st.integers(-1000, 1000)), draw(st.integers(1, 10_000))
    if scale == "linear":
        third = draw(st.sampled_from([1.0, 3.0, 7.0]))
        return Parameter("x", scale, low / third, (low + width) / third)
    return Parameter("x", scale, float(low), float(low + width))


@given(UNITS, UNITS, UNITS, UNITS)
def test_published_formulas(a, b, c, d):
    point = LEE.from_unit([a, b, c, d])
    expected = {
        "learning_rate": 10 ** (-4 + 4 * a),
        "momentum": 1 - 10 ** (-4 + 3 * b),
        "decay_steps": int(30_000 + 30_000 * c),
        "end_learning_rate_factor": 10 ** (-4 + 3 * d),
    }
    assert point == pytest.approx(expected, rel=1e-12)
    assert tuple(point) == LEE.names


@given(parameters(), UNITS)
def test_value_lies_in_its_range_and_comes_back_to_its_place(parameter, u):
    value = parameter.from_unit(u)
    assert parameter.low <= value <= parameter.high
    back = parameter.to_unit(value)
    assert 0 <= back <= 1
    if parameter.scale == "integer":
        assert value == int(value)
        assert back <= u + 1e-12
        assert u - back < 1 / (parameter.high - parameter.low) + 1e-12
    else:
        assert back == pytest.approx(u, abs=1e-6)


@given(parameters(), UNITS, UNITS)
def test_scales_are_monotonic_and_only_reverse_log_falls(parameter, u, v):
    low, high = sorted((u, v))
    a, b = parameter.from_unit(low), parameter.from_unit(high)
    assert a >= b if parameter.scale == "reverse_log" else a <= b


@given(parameters())
def test_ends_are_the_ends(parameter):
    ends = [parameter.from_unit(0.0), parameter.from_unit(1.0)]
    if parameter.scale == "reverse_log":
        ends.reverse()
    assert ends == pytest.approx([parameter.low, parameter.high], rel=1e-9)
    on_scale = [parameter.to_unit(parameter.low), parameter.to_unit(parameter.high)]
    if parameter.scale == "reverse_log":
        on_scale.reverse()
    assert on_scale == pytest.approx([0, 1], abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5, unique=True), UNITS)
def test_discrete_gives_each_choice_an_equal_share(choices, u):
    parameter = Parameter("x", "discrete", choices=tuple(choices))
    n = len(choices)
    for i, choice in enumerate(choices):
        assert parameter.from_unit((i + 0.5) / n) == choice
        assert parameter.to_unit(choice) == pytest.approx((i + 0.5) / n)
    assert parameter.from_unit(u) in choices
    assert parameter.from_unit(1.0) == choices[-1]


@given(parameters(), UNITS)
def test_boundary_is_judged_on_the_scale_at_both_ends(parameter, u):
    space, tolerance = Space((parameter,)), 0.05
    point = space.from_unit([u])
    place = parameter.to_unit(point["x"])
    expected = ("x",) if min(place, 1 - place) <= tolerance else ()
    if abs(min(place, 1 - place) - tolerance) > 1e-9:
        assert space.at_boundary(point) == expected


def test_boundary_of_the_published_learning_rate():
    space = Space.from_dict(
        {"learning_rate": ("log", 1e-4, 1.0), "x": ("discrete", (0.0, 0.1))}
    )
    # 5 % of four decades: a factor of 10^0.2 from each end.
    for learning_rate, expected in [
        (1e-4, ("learning_rate",)),
        (1.58e-4, ("learning_rate",)),
        (1.59e-4, ()),
        (0.05, ()),  # 5 % of the range if it were linear
        (0.63, ()),
        (0.64, ("learning_rate",)),
        (1.0, ("learning_rate",)),
    ]:
        point = {"learning_rate": learning_rate, "x": 0.0, "momentum": 0.9}
        assert space.at_boundary(point) == expected, learning_rate


def test_space_comes_back_from_json_in_order():
    space = Space(
        (
            *reversed(LEE.parameters),
            Parameter("smoothing", "discrete", choices=(0.0, 0.01, 0.1)),
        )
    )
    again = Space.from_dict(space.to_json())
    assert again == space
    assert again.names == space.names


def test_columns_of_tables_cannot_be_metaparameters():
    columns = {
        name
        for schema in (TRIALS, STUDIES, CURVES)
        for name, _ in schema.columns
        # Those stand in the table of studies alone, which has no metaparameters.
        if schema is not STUDIES or name == "goal"
    }
    assert columns <= RESERVED


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (("log", 0.0, 1.0), "[0.0, 1.0]"),
        (("log", -1.0, 1.0), "[-1.0, 1.0]"),
        (("log", 1.0, 1.0), "[1.0, 1.0]"),
        (("linear", 2.0, 1.0), "[2.0, 1.0]"),
        (("linear", 0.0, math.inf), "inf"),
        (("linear", math.nan, 1.0), "nan"),
        (("reverse_log", 0.9, 1.0), "[0.9, 1.0]"),
        (("integer", 0.5, 3.0), "[0.5, 3.0]"),
        (("discrete", ()), "at least one"),
        (("discrete", 3), "('discrete', 3)"),
        (("discrete", ("a",)), "'a'"),
        (("logarithmic", 0.1, 1.0), "'logarithmic'"),
        (("log", 0.1), "('log', 0.1)"),
        (("log", "a", "b"), "'a'"),
        (0.1, "0.1"),
        ((), "()"),
        ((1, 2, 3), "1"),
    ],
)
def test_bad_range_is_one_sentence_that_names_the_value(entry, named):
    with pytest.raises(UserError) as caught:
        Space.from_dict({"learning_rate": entry})
    assert "learning_rate" in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["trial", "step", "goal", "learning rate", "", "1x"])
def test_name_that_hides_a_column_or_is_no_name_is_refused(name):
    with pytest.raises(UserError, match="not usable"):
        Space.from_dict({name: ("log", 1e-4, 1.0)})


@pytest.mark.parametrize("space", [[("log", 1, 2)], "log", 3])
def test_space_that_is_no_mapping_is_refused(space):
    with pytest.raises(UserError, match="must be a dictionary"):
        Space.from_dict(space)


def test_value_outside_of_its_range_is_refused():
    with pytest.raises(UserError, match=r"learning_rate is 2\.0"):
        LEE.parameters[0].to_unit(2.0)
    choice = Parameter("x", "discrete", choices=(0.0, 0.1))
    with pytest.raises(UserError, match=r"x is 0\.05"):
        choice.to_unit(0.05)
