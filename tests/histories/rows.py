"""Statements that change rows."""

from __future__ import annotations

from tests.histories.draw import Draw, ImpossibleError, Made, statement
from tests.histories.history import quoted
from tests.histories.model import Column, Table
from tests.histories.values import value


def _identifying(table: Table) -> tuple[str, ...]:
    return table.key or tuple(c.name for c in table.columns if c.name.startswith(("id", "k")))[:2]


def drawn(draw: Draw, table: Table, column: Column) -> str:
    """Return a value of a column."""
    return value(draw.rng, column.type, key=column.name in _identifying(table))


def _row(draw: Draw, table: Table, columns: list[Column]) -> str:
    return ", ".join(drawn(draw, table, c) for c in columns)


def _condition(draw: Draw, table: Table) -> str:
    """Return a condition of few rows, most often that of a row which is there."""
    names = _identifying(table)
    if not names:
        raise ImpossibleError
    chosen = names if draw.odds(0.5) else (draw.one(names),)
    if draw.odds(0.6) and all(table.column(n).type != "jsonb" for n in names):
        listed = ", ".join(map(quoted, names))
        order = ", ".join(f"{quoted(n)}{draw.one(('', ' DESC'))}" for n in names)
        return f"({listed}) = (SELECT {listed} FROM {table.sql} ORDER BY {order} LIMIT 1)"
    return " AND ".join(f"{quoted(n)} = {value(draw.rng, table.column(n).type, key=True)}" for n in chosen)


def writable(draw: Draw, table: Table) -> list[Column]:
    """Return the columns of an INSERT. Some are left out, which have their default."""
    found = [c for c in table.columns if c.writable]
    chosen = [c for c in found if c.name in table.key or not c.has_default or draw.odds(0.6)]
    if not chosen:
        raise ImpossibleError
    return chosen


@statement("insert", 18)
def insert(draw: Draw) -> Made:
    """Insert one to three rows."""
    table = draw.table(calm=True)
    columns = writable(draw, table)
    rows = ", ".join(f"({_row(draw, table, columns)})" for _ in range(draw.one((1, 1, 2, 3))))
    names = ", ".join(quoted(c.name) for c in columns)
    way = draw.one(("", "", " ON CONFLICT DO NOTHING"))
    return table, [f"INSERT INTO {table.sql} ({names}) VALUES {rows}{way}"]


_NUMBERS = ("integer", "smallint", "bigint")
_PLAIN = (*_NUMBERS, "boolean")
"""Types whose values COPY takes as SQL has them."""


def _copied_into(table: Table) -> bool:
    """Return True if rows of plain values have a place in the table."""
    needed = [c for c in table.columns if c.writable and not c.nullable]
    return all(c.type in _PLAIN for c in needed) and any(c.type in _PLAIN and c.writable for c in table.columns)


def _copied(draw: Draw, table: Table, column: Column) -> str:
    """Return a value for COPY. One bad row leaves all others out, so that most keys are new."""
    if column.name in _identifying(table) and column.type in _NUMBERS and draw.odds(0.8):
        return str(draw.rng.randrange(1000, 30000))
    text = drawn(draw, table, column)
    return r"\N" if text == "NULL" else text


@statement("copy", 4)
def copy(draw: Draw) -> Made:
    """Copy rows in, of columns whose values need no quotes."""
    table = draw.table(_copied_into, calm=True)
    columns = [c for c in table.columns if c.writable and (c.type in _PLAIN or not c.nullable)]
    rows = "\n".join("\t".join(_copied(draw, table, c) for c in columns) for _ in range(draw.one((1, 2, 5))))
    return table, [f"COPY {table.sql} ({', '.join(quoted(c.name) for c in columns)}) FROM STDIN\n{rows}\n"]


@statement("upsert", 4)
def upsert(draw: Draw) -> Made:
    """Insert a row, or update it."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    other = draw.column(table, lambda c: c.writable)
    columns = [c for c in table.columns if c.writable and (c.name in table.key or c is other or not c.nullable)]
    names = ", ".join(quoted(c.name) for c in columns)
    key = ", ".join(map(quoted, table.key))
    return table, [
        f"INSERT INTO {table.sql} ({names}) VALUES ({_row(draw, table, columns)}) ON CONFLICT ({key})"
        f" DO UPDATE SET {quoted(other.name)} = excluded.{quoted(other.name)}"
    ]


@statement("update", 12)
def update(draw: Draw) -> Made:
    """Change one or two columns of some rows, or of all."""
    table = draw.table(calm=True)
    changed = draw.some([c for c in table.others if c.writable])[:2]
    sets = ", ".join(f"{quoted(c.name)} = {drawn(draw, table, c)}" for c in changed)
    where = f" WHERE {_condition(draw, table)}" if draw.odds(0.8) else ""
    return table, [f"UPDATE {table.sql} SET {sets}{where}"]


@statement("move key", 6)
def move_key(draw: Draw) -> Made:
    """Give a row another key."""
    table = draw.table(calm=True)
    name = draw.one(_identifying(table))
    column = table.column(name)
    if not column.writable:
        raise ImpossibleError
    new = value(draw.rng, column.type, key=True)
    return table, [f"UPDATE {table.sql} SET {quoted(name)} = {new} WHERE {_condition(draw, table)}"]


@statement("swap keys", 4)
def swap_keys(draw: Draw) -> Made:
    """Exchange the keys of two rows in one transaction, or those of all by their negatives."""
    table = draw.table(lambda t: bool(t.key), calm=True)
    name = draw.one([n for n in table.key if table.column(n).type in ("integer", "bigint", "smallint")])
    key = quoted(name)
    if not table.column(name).writable:
        raise ImpossibleError
    one, other = draw.one("123"), draw.one("456")
    steps = (
        f"{key} = -9 WHERE {key} = {one}",
        f"{key} = {one} WHERE {key} = {other}",
        f"{key} = {other} WHERE {key} = -9",
    )
    return table, ["DO $$ BEGIN " + " ".join(f"UPDATE {table.sql} SET {s};" for s in steps) + " END $$"]


@statement("delete", 8)
def delete(draw: Draw) -> Made:
    """Delete some rows."""
    table = draw.table(calm=True)
    return table, [f"DELETE FROM {table.sql} WHERE {_condition(draw, table)}"]


@statement("delete all", 2.5)
def delete_all(draw: Draw) -> Made:
    """Delete all rows of a table."""
    table = draw.table(calm=True)
    return table, [f"DELETE FROM {table.sql}"]


@statement("truncate", 2.5)
def truncate(draw: Draw) -> Made:
    """Truncate a table."""
    table = draw.table(lambda t: not t.is_partition, calm=True)
    return table, [f"TRUNCATE {table.sql}{draw.one(('', '', ' RESTART IDENTITY', ' CASCADE'))}"]


@statement("merge moved key", 2)
def merge_moved_key(draw: Draw) -> Made:
    """Merge a row that gets another key, or is deleted, and insert one of the former key."""
    table = draw.table(lambda t: len(t.key) == 1, calm=True)
    if draw.model.major < 15:
        raise ImpossibleError
    key = table.column(table.key[0])
    one, other = (f"{value(draw.rng, key.type, key=True)}::{key.type}" for _ in range(2))
    name = quoted(key.name)
    return table, [
        f"MERGE INTO {table.sql} t USING (SELECT {one} AS k) s ON t.{name} = s.k"
        f" WHEN MATCHED AND NOT EXISTS (SELECT FROM {table.sql} o WHERE o.{name} = {other}) THEN"
        f" UPDATE SET {name} = {other} WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT ({name}) VALUES (s.k)",
        f"INSERT INTO {table.sql} ({name}) VALUES ({one}) ON CONFLICT DO NOTHING",
    ]


@statement("merge", 4)
def merge(draw: Draw) -> Made:
    """Merge a row."""
    table = draw.table(lambda t: len(t.key) == 1, calm=True)
    if draw.model.major < 15:
        raise ImpossibleError
    key, other = table.column(table.key[0]), draw.column(table, lambda c: c.writable)
    given = f"{value(draw.rng, key.type, key=True)}::{key.type}"
    return table, [
        f"MERGE INTO {table.sql} t USING (SELECT {given} AS k) s ON t.{quoted(key.name)} = s.k"
        f" WHEN MATCHED THEN UPDATE SET {quoted(other.name)} = {drawn(draw, table, other)}"
        f" WHEN NOT MATCHED THEN INSERT ({quoted(key.name)}) VALUES (s.k)"
    ]
