"""Reads rows by their keys: conditions in SQL with the keys as literals. Pure.

A literal has no type in the statement. So PostgreSQL parses it by the input function of the column's own type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, quote_identifier

_SINGLE: Final = 5000
"""The keys of one column in a condition, which is one scan of an index."""
_COMPOSITE: Final = 500
"""The keys of several columns in a condition, each of which is a scan of an index of its own."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The rows of a partition with some keys. ``condition`` selects them. ``keys`` is the number of the keys.

    With ``by_place``, the condition has the rows' ctids, by which the server finds them without reading others.
    """

    leaf: QualifiedTable
    condition: str
    keys: int
    by_place: bool = False


def has_literals(schema: ReplicatedTableSchema) -> bool:
    """Return True if the key is not empty, and each value of it has an exact literal."""
    return bool(schema.key) and all(_is_exact(c.type.arrow) for c in schema.key_columns)


def keyed_rows(
    schema: ReplicatedTableSchema, leaves: Sequence[QualifiedTable], keys: pa.Table
) -> tuple[KeyedRows, ...]:
    """Return what reads the rows with these keys. ``keys`` has the key columns, without NULL.

    A key is looked up in each partition.
    """
    step = _SINGLE if len(schema.key) == 1 else _COMPOSITE
    return tuple(
        KeyedRows(leaf, _condition(schema, chunk), chunk.num_rows)
        for first in range(0, keys.num_rows, step)
        for chunk in [keys.slice(first, step).combine_chunks()]
        for leaf in leaves
    )


def _is_exact(kind: pa.DataType) -> bool:
    return any(
        accepts(kind)
        for accepts in (
            pa.types.is_integer,
            pa.types.is_string,
            pa.types.is_decimal,
            pa.types.is_boolean,
            pa.types.is_date32,
            pa.types.is_timestamp,
        )
    )


def _condition(schema: ReplicatedTableSchema, keys: pa.Table) -> str:
    names = [quote_identifier(c.name) for c in schema.key_columns]
    columns = [_literals(keys.column(c.name).combine_chunks()) for c in schema.key_columns]
    if len(columns) == 1:
        return f"{names[0]} IN ({_joined(columns[0])})"
    rows = pc.binary_join_element_wise(*columns, ", ")
    rows = pc.binary_join_element_wise("(", rows, ")", "")
    return f"({', '.join(names)}) IN ({_joined(rows)})"


def _literals(values: pa.Array) -> pa.Array:
    text = values if pa.types.is_string(values.type) else pc.cast(values, pa.string())
    # Escape strings do not depend on the setting standard_conforming_strings.
    for plain in ("\\", "'"):
        text = pc.replace_substring(text, plain, "\\" + plain)
    return pc.binary_join_element_wise("E'", text, "'", "")


def _joined(texts: pa.Array) -> str:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return str(pc.binary_join(whole, ", ")[0].as_py())
