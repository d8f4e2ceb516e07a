"""Names that are registered, and what their entries read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Argument,
    Range,
    Registry,
    Space,
    UserError,
    arguments_of,
)
from tests.made_up.specifications import workload

READS = {
    "learning_rate": Argument(range=NOT_NEGATIVE),
    "momentum": Argument(0.9, FRACTION),
    "decay_steps": Argument(range=POSITIVE),
}


def registry() -> Registry[str]:
    found: Registry[str] = Registry("optimizer")
    found.register("momentum", "an entry", READS)
    return found


@pytest.mark.parametrize(
    ("range_", "inside", "outside", "described"),
    [
        (NOT_NEGATIVE, (0, 0.5, 1e30), (-1e-9, math.inf), "a finite number >= 0"),
        (POSITIVE, (1e-30, 7), (0, 0.0, -1), "a finite number > 0"),
        (FRACTION, (0, 0.999), (1, 1.0, -0.1), "a number in [0, 1)"),
        (SHARE, (0, 1), (1.1,), "a number in [0, 1]"),
        (Range(1, whole=True), (1, 2.0), (0, 1.5), "a whole number >= 1"),
        (Range(-math.inf), (-5, 0), (-math.inf,), "a finite number"),
    ],
)
def test_a_range_holds_what_it_says(range_, inside, outside, described):
    assert str(range_) == described
    assert all(value in range_ for value in (*inside, np.float32(inside[-1])))
    assert not any(value in range_ for value in (*outside, math.nan, "1", True, None))


@given(st.floats(0, 5), st.floats(0, 5), st.floats(0.001, 0.999))
def test_a_range_encloses_ends_whose_inside_it_holds(low, width, place):
    range_ = Range(1, 4, without_low=True, without_high=True)
    if range_.encloses(low, low + width) and width > 1e-6:
        assert low + place * width in range_


def test_values_are_resolved_with_defaults():
    found = registry().resolve("momentum", {"decay_steps": 3, "learning_rate": 0.1})
    assert found == {"learning_rate": 0.1, "momentum": 0.9, "decay_steps": 3}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("momentun", {}, "optimizer 'momentun' is unknown: did you mean 'momentum'"),
        (
            "momentum",
            {"learning_rat": 1},
            "optimizer 'momentum' reads nothing named 'learning_rat': did you mean",
        ),
        ("momentum", {"momentum": 0.5}, "needs learning_rate, decay_steps"),
        (
            "momentum",
            {"learning_rate": 0.1, "decay_steps": 0},
            "decay_steps of optimizer 'momentum' must be a finite number > 0, not 0",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(name, values, message):
    with pytest.raises(UserError) as refusal:
        registry().resolve(name, values)
    assert message in str(refusal.value)


def test_a_taken_name_is_refused_and_the_same_entry_is_not():
    found = registry()
    entry = found["momentum"]
    found.register("momentum", entry, READS)
    with pytest.raises(UserError, match="'momentum' is registered already"):
        found.register("momentum", "another", {})
    assert found["momentum"] == "an entry"
    assert found.names() == ("momentum",)


def test_an_entry_that_reads_anything_is_handed_anything():
    found: Registry[str] = Registry("network")
    found.register("open", "entry", arguments_of(lambda shape, **rest: None, 1))
    assert found.resolve("open", {"width": "any"}) == {"width": "any"}


def test_arguments_of_a_function_are_those_behind_what_it_is_handed():
    def builder(input_shape, classes, width, depth=2):
        del input_shape, classes, width, depth

    found = arguments_of(builder, 2)
    assert found == {"width": Argument(), "depth": Argument(2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "needs decay_steps: got learning_rate"),
        ({"fixed": {"decay_steps": 0.0}}, "decay_steps of .* must be .* > 0, not 0.0"),
        ({"fixed": {"decay_steps": 1.0, "b": 1.0}}, "reads nothing named 'b'"),
        (
            {
                "space": {
                    "learning_rate": ("linear", -1, 1),
                    "decay_steps": ("log", 1, 2),
                }
            },
            r"learning_rate is tuned in .*-1.0, 1.0.*reads a finite number >= 0",
        ),
        (
            {
                "space": {"learning_rate": ("log", 1, 2), "decay_steps": ("log", 1, 2)},
                "fixed": {"momentum": 1.5},
            },
            r"momentum of .* must be a number in \[0, 1\), not 1.5",
        ),
        (
            {
                "space": {
                    "learning_rate": ("discrete", (0.1, -0.1)),
                    "decay_steps": ("log", 1, 2),
                }
            },
            "learning_rate is tuned in",
        ),
    ],
)
def test_a_space_that_lacks_or_leaves_what_is_read_is_refused(changes, message):
    if "space" in changes:
        changes = {**changes, "space": Space.from_dict(changes["space"])}
    with pytest.raises(UserError, match=message):
        workload(**changes).check_metaparameters(READS)


def test_explicit_points_are_checked_with_what_is_fixed():
    points = ({"learning_rate": 0.1}, {"learning_rate": 0.2, "decay_steps": -1.0})
    empty = Space.from_dict({})
    study = {"space": empty, "explicit_points": points, "points": 2}
    with pytest.raises(UserError, match="needs decay_steps"):
        workload(**study).check_metaparameters(READS)
    with pytest.raises(UserError, match="decay_steps of tiny is both tuned and fixed"):
        workload(**study, fixed={"decay_steps": 3.0}).check_metaparameters(READS)
    study |= {"explicit_points": points[1:], "points": 1}
    with pytest.raises(UserError, match="not -1.0"):
        workload(**study).check_metaparameters(READS)


def test_an_end_that_is_left_out_may_end_a_space():
    space = {"learning_rate": ("log", 1e-4, 1), "momentum": ("linear", 0.0, 1.0)}
    fixed = {"decay_steps": 10.0}
    workload(space=Space.from_dict(space), fixed=fixed).check_metaparameters(READS)
