from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import CELL_KEY
from dps_tf.store import (
    CURVES,
    SCHEMAS,
    TRIALS,
    WORK,
    DamagedError,
    empty_frame,
    encode_table,
)
from dps_tf.store.parquet import decode_table, to_frame
from tests.made_up.sweeps import closing

CLOSING = closing()
TRIALS_TABLE = CLOSING["trials"].assign(initial_seed=[2**63 - 1, 0, 1])
CURVES_TABLE = CLOSING["curves"]
WORK_TABLE = CLOSING["work"]
CURVES_TABLE.loc[3, "validation/cross_entropy"] = float("nan")
EXAMPLES = {
    "studies": pd.DataFrame([CLOSING["study"]]),
    "trials": TRIALS_TABLE,
    "curves": CURVES_TABLE,
    "measurements": TRIALS_TABLE[[*CELL_KEY, "trial"]].assign(
        step=100, quantity="smoothness", value=3.25, examples=1000
    ),
    "work": WORK_TABLE,
}


def _back(frame, schema):
    return to_frame(decode_table("t", encode_table(frame, schema)))


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_table_comes_back_with_its_columns_and_types(name):
    schema, frame = SCHEMAS[name], EXAMPLES[name]
    back = _back(frame, schema)
    assert tuple(back.columns[: len(CELL_KEY)]) == CELL_KEY
    assert set(back.columns) == set(frame.columns)
    kinds = {name: kind for name, kind in schema.all_columns(frame.columns)}
    types = {"whole": "int64", "whole?": "Int64", "number": "float64", "flag": "bool"}
    for column, kind in kinds.items():
        if kind in types:
            assert str(back[column].dtype) == types[kind], column
    pd.testing.assert_frame_equal(
        back.astype(object).where(back.notna(), None),
        frame[list(back.columns)].astype(object).where(frame.notna(), None),
        check_dtype=False,
    )
    empty = empty_frame(schema)
    assert len(empty) == 0
    assert list(empty.columns) == [column for column, _ in schema.columns]
    for column, kind in schema.columns:
        if kind in types:
            assert str(empty[column].dtype) == types[kind], column


def test_equal_rows_in_any_order_give_equal_bytes():
    expected = encode_table(CURVES_TABLE, CURVES)
    frame = CURVES_TABLE
    shuffled = frame.sample(frac=1, random_state=1)[sorted(frame.columns)]
    assert encode_table(shuffled, CURVES) == expected
    converted = frame.astype({"step": "Int64", "seed": "int32"})
    converted["optimizer"] = converted["optimizer"].astype("string")
    converted.index = pd.Index(range(100, 100 + len(frame)))
    assert encode_table(converted, CURVES) == expected
    assert encode_table(_back(frame, CURVES), CURVES) == expected


def test_metrics_come_in_the_stated_order_and_names_sorted():
    columns = list(_back(CURVES_TABLE.assign(**{"a/metric": 1.0}), CURVES).columns)
    assert columns[len(CELL_KEY) :] == [
        *("trial", "step", "is_bound"),
        *("validation/classification_error", "validation/cross_entropy"),
        *("train/loss", "a/metric"),
    ]
    columns = list(
        _back(TRIALS_TABLE.assign(momentum=0.9, decay_steps=1.0), TRIALS).columns
    )
    assert columns[-3:] == ["decay_steps", "learning_rate", "momentum"]


def test_a_file_holds_checksums_and_no_pandas_metadata():
    data = encode_table(TRIALS_TABLE, TRIALS)
    file = pq.ParquetFile(io.BytesIO(data))
    assert set(file.metadata.metadata) == {b"checksum", b"ARROW:schema"}
    assert b"pandas" not in data
    assert data == encode_table(TRIALS_TABLE, TRIALS)
    assert len(pq.read_table(io.BytesIO(data))) == 3, "any reader of Parquet reads it"


@pytest.mark.parametrize(
    ("frame", "schema", "complaint"),
    [
        (TRIALS_TABLE.drop(columns="outcome"), TRIALS, "lacks.*outcome"),
        (WORK_TABLE.assign(extra=1.0), WORK, "unknown.*extra"),
        (TRIALS_TABLE.assign(end_step=0.5), TRIALS, "end_step.*whole"),
        (TRIALS_TABLE.assign(end_step=None), TRIALS, "end_step.*missing"),
        (TRIALS_TABLE.assign(outcome=1), TRIALS, "outcome.*text"),
        (TRIALS_TABLE.assign(momentum="a"), TRIALS, "momentum.*number"),
        (TRIALS_TABLE.assign(seed=2**63), TRIALS, "seed.*whole"),
        (CURVES_TABLE.assign(is_bound="False"), CURVES, "is_bound.*flag"),
        (CURVES_TABLE.assign(is_bound=0), CURVES, "is_bound.*flag"),
        (CURVES_TABLE.assign(step=1), CURVES, "repeat"),
        (WORK_TABLE.assign(trial=None), WORK, "repeat"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(frame, schema, complaint):
    with pytest.raises(ValueError, match=complaint):
        encode_table(frame, schema)


INTACT = encode_table(TRIALS_TABLE, TRIALS)


@given(st.integers(0, len(INTACT) * 8 - 1))
def test_no_flipped_bit_of_a_table_passes(position):
    damaged = bytearray(INTACT)
    damaged[position // 8] ^= 1 << position % 8
    with pytest.raises(DamagedError):
        decode_table("trials.parquet", bytes(damaged))


def test_a_table_torn_at_any_byte_is_damaged():
    for length in range(len(INTACT)):
        with pytest.raises(DamagedError, match=r"trials\.parquet"):
            decode_table("trials.parquet", INTACT[:length])


NUMBERS = st.floats() | st.sampled_from([0.1, 1e-323, -0.0, 2.0**53])


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_numbers_keep_their_bits(values):
    one = CURVES_TABLE.iloc[[0] * len(values)]
    frame = one.assign(trial=range(len(values)), **{"train/loss": values})
    back = _back(frame, CURVES)["train/loss"].to_numpy()
    expected = np.array(values, np.float64)
    np.testing.assert_array_equal(back, expected)
    np.testing.assert_array_equal(
        np.signbit(back)[~np.isnan(back)], np.signbit(expected)[~np.isnan(expected)]
    )
