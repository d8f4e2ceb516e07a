from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import CELL_KEY, Cell, UserError, cell_key
from dps_tf.core.cell import axis_text

NAMES = st.from_regex(r"[A-Za-z0-9_.]{1,12}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)
AXES = st.dictionaries(
    st.from_regex(r"workload\.[a-z]{1,4}(\.[a-z_]{1,4})?", fullmatch=True),
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(min_size=1),
    max_size=2,
).map(lambda axes: tuple((name, axis_text(value)) for name, value in axes.items()))
CELLS = st.builds(
    Cell,
    NAMES,
    NAMES,
    NAMES,
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.floats(0, 1, exclude_max=True),
    AXES,
)
CELL = {
    "workload": "mnist",
    "optimizer": "sgd",
    "sparsity_method": "none",
    "seed": 0,
    "batch_size": 64,
    "sparsity": 0,
}


def test_names_of_folders_are_frozen():
    # Another name would not find the studies of existing sweeps.
    assert Cell(**CELL).name == "mnist-sgd-none-seed0-b64-s0.0"
    pruned = {**CELL, "sparsity_method": "snip", "sparsity": 0.9, "seed": 3}
    assert Cell(**pruned).name == "mnist-sgd-snip-seed3-b64-s0.9"


@given(CELLS, CELLS)
def test_different_cells_have_different_folders(a, b):
    assert (a.name == b.name) == (a == b)


@given(CELLS)
def test_name_is_one_safe_part_of_a_path(cell):
    assert re.fullmatch(r"[A-Za-z0-9._-]+", cell.name)
    assert cell.name not in (".", "..")


def test_columns_are_those_of_every_table():
    assert list(Cell(**CELL).to_json()) == list(CELL)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sparsity": 1.0}, "sparsity 1.0"),
        ({"sparsity": -0.1}, "sparsity -0.1"),
        ({"sparsity": float("nan")}, "sparsity nan"),
        ({"sparsity": "0.9"}, "sparsity '0.9'"),
        ({"sparsity": True}, "sparsity True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 64.0}, "batch_size is 64.0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
        ({"workload": ""}, "workload ''"),
        ({"workload": "a/b"}, "workload 'a/b'"),
        ({"workload": ".."}, "workload '..'"),
        ({"workload": "a\n"}, r"workload 'a\n'"),
        ({"optimizer": "ädam"}, "optimizer 'ädam'"),
        ({"sparsity_method": "a b"}, "sparsity method 'a b'"),
    ],
)
def test_bad_value_is_one_sentence_that_names_it(change, named):
    with pytest.raises(UserError) as caught:
        Cell(**{**CELL, **change})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_further_axes_follow_in_the_name_in_alphabetical_order():
    axes = (("workload.b.width", "16"), ("workload.a", "a b"))
    cell = Cell(**CELL, axes=axes)
    start = "mnist-sgd-none-seed0-b64-s0.0-workload.a-a_b_"
    assert cell.name.startswith(start)
    assert cell.name.endswith("-workload.b.width-16")
    assert cell == Cell(**CELL, axes=axes[::-1])


@given(CELLS)
def test_json_is_one_column_per_axis_and_comes_back(cell):
    written = cell.to_json()
    assert list(written) == cell_key(written)
    assert Cell.from_json(json.loads(json.dumps(written))) == cell
    row = {**written, "workload.of_other_cells": "", "outcome": "complete", "x/y": 1}
    assert Cell.from_json(row) == cell


def test_the_key_of_a_table_is_that_of_a_cell_and_its_axes():
    axes = ["pruning.scope", "workload.fixed.momentum", "workload.order"]
    columns = ["step", axes[2], *CELL_KEY[::-1], *axes[:2], "val.loss", "workload"]
    assert cell_key(columns) == [*CELL_KEY, *axes]


@pytest.mark.parametrize("value", ["", float("nan"), object(), {1, 2}])
def test_what_cannot_be_told_apart_in_a_table_is_no_value_of_an_axis(value):
    with pytest.raises(UserError, match="cannot be the value of an axis"):
        axis_text(value)


@pytest.mark.parametrize(
    "name", ["width", "workload", "workload.", "workload.a-b", "goal.threshold", "a.b"]
)
def test_an_axis_without_a_gin_name_is_refused(name):
    with pytest.raises(UserError, match="is no value of a workload"):
        Cell(**CELL, axes=((name, "1"),))
