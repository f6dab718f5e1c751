"""Reads the keys of a table's rows in a region by SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from psycopg import sql

from levada.destinations.postgres.columns import Layout
from levada.destinations.postgres.naming import identifier
from levada.destinations.regions import column_missing
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.postgres.silence import WatchedConnection
from levada.schema import Column, Kind, ReplicatedTableSchema
from levada.schema.masking import plain_column
from levada.schema.partitions import Box, Condition, End, Region, Value
from levada.values import QualifiedTable

_SLICE_BYTES: Final = 2 << 20


def keys_in(
    connection: WatchedConnection, place: QualifiedTable, layout: Layout, schema: ReplicatedTableSchema, region: Region
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of the rows in the region, with the names and Arrow types of the source."""
    held = {c.attnum: c.name for c in layout.columns}
    for attnum in sorted({*schema.key, *region.columns}):
        if attnum not in held or attnum not in schema.by_attnum:
            raise column_missing(schema, attnum)
    key = tuple(replace(plain_column(c), name=held[c.attnum]) for c in schema.key_columns)
    names = [c.name for c in schema.key_columns]
    columns = {n: replace(schema.by_attnum[n], name=held[n]) for n in region.columns}
    command = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(select_list(replace(schema, columns=key))), identifier(place), condition(region, columns)
    )
    for rows in read_copy(connection, command, CopyDecoder(replace(schema, columns=key))):
        yield pa.RecordBatch.from_arrays(rows.columns[: len(names)], names=names)


def read_copy(connection: WatchedConnection, command: sql.Composed, decoder: CopyDecoder) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a binary COPY, a few MB at a time."""
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        data, sizes = bytearray(), list[int]()
        for payload in copy:
            data += payload
            sizes.append(len(payload))
            if len(data) >= _SLICE_BYTES:
                yield decoder.decode(data, sizes)
                data, sizes = bytearray(), []
        if sizes:
            yield decoder.decode(data, sizes)


def condition(region: Region, columns: dict[int, Column]) -> sql.Composable:
    """Return the SQL condition of the rows in the region. ``columns`` have their names at the destination."""
    parts = [_all([_condition(c, columns) for c in conditions]) for conditions in region.parts]
    return _any(parts)


def _condition(wanted: Condition, columns: dict[int, Column]) -> sql.Composable:
    own = [columns[n] for n in wanted.columns]
    found = _any([_box(box, own) for box in wanted.boxes])
    return sql.SQL("({}) IS NOT TRUE").format(found) if wanted.negated else found


def _box(box: Box, columns: Sequence[Column]) -> sql.Composable:
    name = sql.Identifier(columns[0].name)
    if box.values:
        texts = [sql.SQL("{} = {}").format(name, sql.Literal(v)) for v in box.values if v is not None]
        nulls = [sql.SQL("{} IS NULL").format(name)] if None in box.values else []
        return _any([*texts, *nulls])
    return _all([_beyond(box.low, columns, ">", ">="), _beyond(box.high, columns, "<", "<")])


def _beyond(bound: Sequence[Value], columns: Sequence[Column], operator: str, last: str) -> sql.Composable:
    """Return the condition of rows beyond a bound, column by column. ``last`` is the operator of the last column."""
    first, column = bound[0], columns[0]
    name: sql.Composable = sql.Identifier(column.name)
    if isinstance(first, End):
        # Each value is above MINVALUE and below MAXVALUE, so that the other columns do not count.
        outside = (first is End.LOWEST) != (operator == ">")
        return sql.SQL("false") if outside else sql.SQL("{} IS NOT NULL").format(name)
    if column.type.kind is Kind.TEXT:
        name = sql.SQL('{} COLLATE "C"').format(name)
    value = sql.Literal(first)
    if len(bound) == 1:
        return sql.SQL("{} {} {}").format(name, sql.SQL(last), value)
    rest = _beyond(bound[1:], columns[1:], operator, last)
    return sql.SQL("({n} {o} {v} OR {n} = {v} AND {r})").format(
        n=name,
        o=sql.SQL(operator),
        v=value,
        r=rest,
    )


def _any(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(" OR ").join(conditions)) if conditions else sql.SQL("false")


def _all(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("true")
