from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core.cell import Cell
from dps_tf.core.errors import UserError

NAMES = st.from_regex(r"[A-Za-z0-9_.]{1,12}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)
CELLS = st.builds(
    Cell,
    NAMES,
    NAMES,
    NAMES,
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.floats(0, 1, exclude_max=True),
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


@given(CELLS)
def test_cell_comes_back_from_json(cell):
    assert Cell(**cell.to_json()) == cell


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
        ({"batch_size": 0}, "batch size 0"),
        ({"batch_size": 64.0}, "batch size 64.0"),
        ({"batch_size": True}, "batch size True"),
        ({"seed": -1}, "seed -1"),
        ({"seed": None}, "seed None"),
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
