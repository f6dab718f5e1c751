"""Statements that change many rows, of more bytes than PostgreSQL decodes in memory.

It sends such changes before they are committed. Transactions have several of them, with savepoints and DDL between.
"""

from __future__ import annotations

from tests.histories.draw import Draw, Made, statement
from tests.histories.history import quoted
from tests.histories.model import Column, Table
from tests.histories.rows import drawn, writable

_NUMBERS = ("integer", "bigint", "numeric")
_LONG = "(SELECT string_agg(md5(({} * j)::text), '') FROM generate_series(1, 40) j)"
"""A text that is not compressed, for a number."""


@statement("insert many", 3)
def insert_many(draw: Draw) -> Made:
    """Insert numbered rows."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    first = draw.one((100, 200, 300))
    columns = writable(draw, table)
    texts = ("text", "character varying(20)")
    numbers = ("integer", "smallint", "bigint", "numeric", "double precision")
    expressions = [
        "'n' || i" if c.type in texts and c.name in table.key
        else "i" if c.type in numbers and c.name in table.key
        else drawn(draw, table, c)
        for c in columns
    ]  # fmt: skip
    names = ", ".join(quoted(c.name) for c in columns)
    return table, [
        f"INSERT INTO {table.sql} ({names}) SELECT {', '.join(expressions)}"
        f" FROM generate_series({first}, {first + 19}) i ON CONFLICT DO NOTHING"
    ]


@statement("insert much", 1.5)
def insert_much(draw: Draw) -> Made:
    """Insert rows of more bytes than PostgreSQL decodes in memory, so that it sends them before they are committed."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    text = draw.column(table, lambda c: c.type == "text" and c.writable)
    counted = _counted(draw, table).name
    columns = [c for c in table.columns if c.writable and (c.name in table.key or c is text or not c.nullable)]
    values = [_LONG.format("i") if c is text else "i" if c.name == counted else drawn(draw, table, c) for c in columns]
    names, first = ", ".join(quoted(c.name) for c in columns), draw.one((1000, 1100, 2000))
    return table, [
        f"INSERT INTO {table.sql} ({names}) SELECT {', '.join(values)} FROM generate_series({first}, {first + 119}) i"
        " ON CONFLICT DO NOTHING"
    ]


def _counted(draw: Draw, table: Table) -> Column:
    """Return a column of the key that has numbers."""
    return draw.one([c for c in map(table.column, table.key) if c.type in _NUMBERS and c.writable])


@statement("update much", 1.5)
def update_much(draw: Draw) -> Made:
    """Change the long text of many rows, or another value, so that the stream lacks the long one."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    counted = quoted(_counted(draw, table).name)
    if draw.odds(0.6):
        text = draw.column(table, lambda c: c.type == "text" and c.writable)
        change = f"{quoted(text.name)} = {_LONG.format(f'({counted} + {draw.one((1, 2, 3))})')}"
    else:
        other = draw.column(table, lambda c: c.writable)
        change = f"{quoted(other.name)} = {drawn(draw, table, other)}"
    some = draw.one(("", "", f" WHERE {counted} % {draw.one((2, 3, 7))} = 0"))
    return table, [f"UPDATE {table.sql} SET {change}{some}"]


@statement("move many keys", 1)
def move_many_keys(draw: Draw) -> Made:
    """Give many rows other keys, which are new or those of other rows."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    counted = quoted(_counted(draw, table).name)
    draw.number += 1
    # Whether a key is free must not follow from the order of the rows, which differs on the twin.
    moved = draw.one((f"-{counted}", f"{counted} + {draw.number * 100000}"))
    return table, [f"UPDATE {table.sql} SET {counted} = {moved} WHERE {counted} % {draw.one((1, 2, 5))} = 0"]


@statement("delete much", 1)
def delete_much(draw: Draw) -> Made:
    """Delete a part of the rows."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    counted = quoted(_counted(draw, table).name)
    return table, [f"DELETE FROM {table.sql} WHERE {counted} % {draw.one((2, 3, 5))} = {draw.one((0, 1))}"]
