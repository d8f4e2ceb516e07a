"""Tables are kept as Parquet files; the same content gives the same bytes.

Each Parquet file carries its own sha256: the digest is computed with zeros in its
place, then put into the file's metadata. So every damaged byte is noticed, also in the
footer, which Parquet's own page checksums do not cover.
"""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.schemas import TableSchema

_DIGEST = re.compile(rb"dps_tf_sha256:([0-9a-f]{64})")
_NO_DIGEST = b"dps_tf_sha256:" + b"0" * 64
_ROW_GROUP = 1 << 20  # rows; one group in practice
_ARROW = {
    "text": pa.string(),
    "whole": pa.int64(),
    "number": pa.float64(),
    "flag": pa.bool_(),
}
_PANDAS: dict[str, Any] = {
    "text": "object",
    "whole": "Int64",
    "number": "float64",
    "flag": "object",
}


def write_table(
    files: FileSystem, path: str, frame: pd.DataFrame, schema: TableSchema
) -> None:
    """Writes a table atomically; equal rows in any order give equal bytes.

    The bytes depend on the version of pyarrow, but on no time, machine or index.

    Raises:
        ValueError: a column is missing, unknown, of another kind, or has a gap where
            none may be; or two rows have the same identity.
    """
    files.write_atomic(path, encode_table(frame, schema))


def read_table(files: FileSystem, path: str) -> pd.DataFrame:
    """Returns a table; FileNotFoundError without one, DamagedError for other bytes."""
    return to_frame(decode_table(path, files.read_bytes(path)))


def encode_table(frame: pd.DataFrame, schema: TableSchema) -> bytes:
    """Returns the bytes of a Parquet file; see `write_table`."""
    table = to_arrow(frame, schema).replace_schema_metadata({"checksum": _NO_DIGEST})
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        row_group_size=_ROW_GROUP,
        version="2.6",
        compression="zstd",
        compression_level=3,
        write_page_checksum=True,
    )
    data = buffer.getvalue()
    # The metadata come last, after all values.
    start = data.rindex(_NO_DIGEST) + len(_NO_DIGEST) - 64
    digest = hashlib.sha256(data).hexdigest().encode("ascii")
    return data[:start] + digest + data[start + 64 :]


def decode_table(path: str, data: bytes) -> pa.Table:
    """Returns the table in the bytes that `encode_table` gave, or DamagedError."""
    if not data:
        raise DamagedError(path, "it is empty")
    start = data.rfind(_NO_DIGEST[:-64])
    match = _DIGEST.match(data, start) if start >= 0 else None
    if match is None:
        raise DamagedError(path, "it is no whole table of this package")
    blank = data[: match.start(1)] + b"0" * 64 + data[match.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode("ascii") != match[1]:
        raise DamagedError(path, "its content does not match its checksum")
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    return file.read().replace_schema_metadata(None)


def to_arrow(frame: pd.DataFrame, schema: TableSchema) -> pa.Table:
    """Returns the frame's columns in the schema's types and the rows in its order."""
    columns = schema.all_columns([str(name) for name in frame.columns])
    arrays = [_array(schema, name, kind, frame[name]) for name, kind in columns]
    fields = [
        pa.field(
            name,
            _ARROW[kind.removesuffix("?")],
            nullable=kind.endswith("?") or kind == "number",
        )
        for name, kind in columns
    ]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    _check_unique(table, schema)
    keys = [(name, "ascending") for name in schema.ordering(table.column_names)]
    order = pc.sort_indices(table, sort_keys=keys)
    return table.take(order)


def _array(
    schema: TableSchema, name: str, kind: str, values: pd.Series[Any]
) -> pa.Array:
    try:
        # Unlike Arrow's, this cast refuses fractions, and takes floats with gaps.
        plain = values.astype(_PANDAS[kind.removesuffix("?")])
        array = pa.array(plain, type=_ARROW[kind.removesuffix("?")], from_pandas=True)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise ValueError(
            f"The column {name} of the table {schema.name} is not of the kind {kind}: "
            f"{error}."
        ) from error
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count and not kind.endswith("?") and kind != "number":
        raise ValueError(
            f"The column {name} of the table {schema.name} has {array.null_count} "
            "missing values, where none may be."
        )
    return array


def _check_unique(table: pa.Table, schema: TableSchema) -> None:
    keys = schema.ordering(table.column_names)
    counts = table.select(keys).group_by(keys).aggregate([])
    if counts.num_rows != table.num_rows:
        raise ValueError(
            f"The table {schema.name} has {table.num_rows - counts.num_rows} rows "
            f"that repeat the {keys} of another."
        )


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Returns a table as a frame; whole numbers that may be missing are Int64."""
    nullable = {pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = pd.DataFrame(
        {
            field.name: table[field.name].to_pandas(
                types_mapper=nullable.get if field.nullable else None
            )
            for field in table.schema
        },
        index=pd.RangeIndex(table.num_rows),
    )
    return frame


def empty_frame(schema: TableSchema) -> pd.DataFrame:
    """Returns a table without rows that has all columns in their types."""
    names = [name for name, _ in schema.columns]
    return to_frame(to_arrow(pd.DataFrame(columns=names), schema))
