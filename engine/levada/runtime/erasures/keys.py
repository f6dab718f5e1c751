"""The keys of an erasure: from the user's text to the values that the destination has.

PostgreSQL reads each text by the type of its key column, and writes it as it streams it. So a key may have any form
that the type accepts. The server is also asked which of the keys it still has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from levada.errors import NeedsOperator, Transient
from levada.pgoutput.masking import decode_masked
from levada.pgoutput.text import decode_text
from levada.pgoutput.wire import RowError, Values, WireBuffer, sizes_of
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.masks import MaskKeys
from levada.schema.types import STORED_TEXTS
from levada.values import QualifiedTable, TableId

KeyText: TypeAlias = "str | Mapping[str, str]"
"""A key: the value of the only key column, or the values of all key columns by their names."""

_BPCHAR: Final = 1042
_NUMERIC: Final = 1700
_CUT_OFF: Final = (18, 19)
"""The types "char" and name, whose input cuts a longer text off, which is then the key of another row."""

# A domain has the length of its base type, and a cast to it would cut the value off too.
_TYPES: Final = """
WITH RECURSIVE bases AS (
 SELECT a.attrelid, a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS modifier, a.attcollation AS collation
 FROM pg_catalog.pg_attribute a WHERE a.attrelid = %s AND a.attnum = ANY (%s) AND NOT a.attisdropped
 UNION ALL
 SELECT b.attrelid, b.attnum, b.attname, t.typbasetype, t.typtypmod, b.collation
 FROM bases b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
)
SELECT b.attnum, b.attname, pg_catalog.format_type(b.type, -1),
 b.type::bigint, b.modifier, pg_catalog.format_type(b.type, b.modifier), t.typtype = 'e' OR (
  EXISTS (SELECT FROM pg_catalog.pg_amproc p JOIN pg_catalog.pg_opfamily f ON f.oid = p.amprocfamily
   JOIN pg_catalog.pg_am m ON m.oid = f.opfmethod WHERE m.amname = 'btree' AND p.amprocnum = 4
   AND p.amproclefttype = CASE b.type WHEN 1043 THEN 25 ELSE b.type END)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_collation l WHERE l.oid = b.collation AND NOT l.collisdeterministic)
 ), n.nspname, c.relname
FROM bases b JOIN pg_catalog.pg_type t ON t.oid = b.type JOIN pg_catalog.pg_class c ON c.oid = b.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE t.typtype <> 'd'
"""


@dataclass(frozen=True, slots=True, eq=False)
class SourceKeys:
    """Keys that the source has read. ``stored`` has them as the destination does, by the names of the key columns.

    ``at_source`` is the number of those that a row at the source still has. ``inexact`` are the key columns whose equal
    values may have several texts, such as 1.0 and 1.00. The destination has one of them.
    """

    stored: pa.Table
    at_source: int
    inexact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _KeyColumn:
    """A key column in the source's catalog, whose type is ``type_name`` without a length.

    ``scaled`` is the type of a numeric with its scale, and otherwise empty. ``cuts_off`` is True if the type cuts a
    longer text off, and ``exact`` if equal values have the same text.
    """

    name: str
    type_name: LiteralString
    padded_to: int
    scaled: LiteralString
    cuts_off: bool
    exact: bool


def read_keys(
    connection: psycopg.Connection[Any], schema: ReplicatedTableSchema, keys: Sequence[KeyText], masks: MaskKeys
) -> SourceKeys:
    """Return the keys as the destination stores them. ``schema`` is the version that it has.

    Raise NeedsOperator ``erase_key_invalid`` for a key of other columns, or with a value that the type does not accept.
    Raise Transient ``table_changed`` if the source has no such table or column any more.
    """
    texts = [_texts(schema, keys, column.name) for column in schema.key_columns]
    columns, table = _catalog(connection, schema)
    with connection.transaction():
        try:
            rows = connection.execute(_query(columns, table), texts).fetchall()
        except psycopg.DataError:
            # Its message has the value.
            raise _invalid(schema.name, "a value is none of the type of its key column") from None
    written = [[row[number] for row in rows] for number in range(len(columns))]
    for column, given, found in zip(columns, texts, written, strict=True):
        if column.cuts_off and found != given:
            raise _invalid(schema.name, "a value is longer than the type of its key column")
    stored = {
        c.name: _decoded(schema.name, c, values, masks) for c, values in zip(schema.key_columns, written, strict=True)
    }
    inexact = (
        c.name
        for c, known in zip(schema.key_columns, columns, strict=True)
        if not known.exact and (c.mask is not None or c.type.kind in STORED_TEXTS)
    )
    return SourceKeys(pa.table(stored), sum(bool(row[-1]) for row in rows), tuple(inexact))


def _texts(schema: ReplicatedTableSchema, keys: Sequence[KeyText], column: str) -> list[str]:
    names = {c.name for c in schema.key_columns}
    if any(isinstance(key, str) for key in keys) and len(names) > 1:
        raise _invalid(schema.name, "a key is one value, and the table has several key columns")
    if any(not isinstance(key, str) and key.keys() != names for key in keys):
        raise _invalid(schema.name, "a key has other columns than the key of the table")
    return [key if isinstance(key, str) else key[column] for key in keys]


def _catalog(
    connection: psycopg.Connection[Any], schema: ReplicatedTableSchema
) -> tuple[list[_KeyColumn], QualifiedTable]:
    with connection.transaction():
        rows = connection.execute(_TYPES, [int(schema.id), list(schema.key)]).fetchall()
    found = {}
    for number, name, kind, oid, modifier, whole, exact, *place in rows:
        padded_to = modifier - 4 if oid == _BPCHAR and modifier > 4 else 0
        scaled = whole if oid == _NUMERIC and modifier >= 0 else ""
        column = _KeyColumn(name, kind, padded_to, scaled, oid in _CUT_OFF, exact or bool(scaled))
        found[number] = column, QualifiedTable(*place)
    if not found or found.keys() != set(schema.key):
        raise _changed(schema.name, schema.id)
    return [found[c.attnum][0] for c in schema.key_columns], next(iter(found.values()))[1]


def _query(columns: Sequence[_KeyColumn], table: QualifiedTable) -> sql.Composed:
    """Return a query of the keys in their order, as the stream has them, with True for those that a row has."""
    given = [sql.Identifier(f"k{number}") for number in range(len(columns))]
    values = [_value(name, column) for name, column in zip(given, columns, strict=True)]
    # The output function of the type, as a cast to text may differ.
    texts = [sql.SQL("pg_catalog.format('%%s', {})").format(value) for value in values]
    same = [
        sql.SQL("t.{} = {}").format(sql.Identifier(c.name), value) for c, value in zip(columns, values, strict=True)
    ]
    return sql.SQL(
        "SELECT {}, EXISTS (SELECT FROM {} AS t WHERE {}) FROM unnest({}) WITH ORDINALITY AS k({}, i) ORDER BY i"
    ).format(
        sql.SQL(", ").join(texts),
        sql.Identifier(table.schema, table.name),
        sql.SQL(" AND ").join(same),
        sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(given)),
        sql.SQL(", ").join(given),
    )


def _value(name: sql.Identifier, column: _KeyColumn) -> sql.Composable:
    """Return a text as a value of a key column.

    The type has no length, because a cast to a length would cut the value off, which is then the key of another row.
    """
    text: sql.Composable = name
    if column.padded_to:
        padded = sql.SQL("pg_catalog.rpad({0}, greatest({1}, pg_catalog.length({0})))")
        text = padded.format(name, sql.Literal(column.padded_to))
    value = sql.SQL("({})::{}").format(text, sql.SQL(column.type_name))
    if not column.scaled:
        return value
    # The stream has all digits of the scale: 1.50 for 1.5. A value with more digits stays as it is, for no row has it.
    scaled = sql.SQL("{}::{}").format(value, sql.SQL(column.scaled))
    return sql.SQL("CASE WHEN {0} = {1} THEN {0} ELSE {1} END").format(scaled, value)


def _decoded(table: QualifiedTable, column: Column, texts: Sequence[str], masks: MaskKeys) -> pa.Array:
    parts = [text.encode() for text in texts]
    buffer, starts, _ = WireBuffer.join(parts, sizes := sizes_of(parts))
    values = Values(buffer, starts, sizes, np.ones(len(parts), np.bool_))
    try:
        if column.mask is not None:
            return decode_masked(values, column, masks).array
        found = decode_text(values, column.type)
    except RowError:
        found = None
    if found is None or found.refused is not None:
        raise _invalid(table, f"the destination has no value for a key's {column.name}")
    return found.array


def _invalid(table: QualifiedTable, why: str) -> NeedsOperator:
    return NeedsOperator(
        "erase_key_invalid",
        f"not a key of {table}: {why}",
        hint="""give the value of the key column, or of several ones: '{"a": 1, "b": "x"}'""",
    )


def _changed(table: QualifiedTable, id_: TableId) -> Transient:
    return Transient(
        "table_changed",
        f"the source has no table {table} (OID {int(id_)}) with its key columns any more",
        hint="wait until levada status MANIFEST shows the table as it is now, then run the command again",
    )
