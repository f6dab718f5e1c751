"""Statements that create tables, and change what identifies rows, names, schemas and persistence."""

from __future__ import annotations

from tests.histories.columns import alike
from tests.histories.draw import Draw, ImpossibleError, Made, statement
from tests.histories.history import MARK, quoted
from tests.histories.values import KEYS, VALUES

SCHEMAS = (MARK, f"b_{MARK}", f"{MARK}_v2")
"""The schema of a history, another that is selected, and one that is not."""


def _definition(draw: Draw) -> str:
    keys = [f"k{i} {draw.one(list(KEYS))}" for i in range(draw.one((1, 1, 2, 2, 2, 3)))]
    columns = [f"c{i} {draw.one(list(VALUES))}" for i in range(1, draw.one((2, 3, 4, 6)))]
    if draw.trait("names alike", 0.3):
        columns += [f"{quoted(name)} int" for name in draw.rng.sample(alike(draw), draw.one((1, 2, 2, 2)))]
    names = [k.split()[0] for k in keys]
    if draw.trait("generated key", 0.2):
        keys[0] = "base int"
        keys.append(f"{names[0]} int GENERATED ALWAYS AS (base * 2) STORED")
    primary = f", PRIMARY KEY ({', '.join(names)})" if not draw.trait("no key", 0.25) else ""
    big = ", big text" if draw.odds(0.5) else ""
    return f"({', '.join((*keys, *columns))}{big}{primary})"


@statement("create table", 1)
def create_table(draw: Draw) -> Made:
    """Create a table with a key of one to three columns, rarely without a key or with a generated one."""
    return None, [f"CREATE TABLE {{s}}.{quoted(draw.one(('t1', 't2', 't3', 'moved')))} {_definition(draw)}"]


@statement("drop table", 1.5)
def drop_table(draw: Draw) -> Made:
    """Drop a table."""
    table = draw.table()
    return table, [f"DROP TABLE {table.sql} CASCADE"]


@statement("drop key", 1)
def drop_key(draw: Draw) -> Made:
    """Drop the primary key."""
    table = draw.table(lambda t: bool(t.key_name) and not t.is_partition)
    return table, [f"ALTER TABLE {table.sql} DROP CONSTRAINT {quoted(table.key_name)}"]


@statement("add key", 2)
def add_key(draw: Draw) -> Made:
    """Add a primary key, rarely a deferrable one."""
    table = draw.table(lambda t: not t.key_name and not t.is_partition)
    columns = _likely_key(draw, [c.name for c in table.columns])
    deferrable = " DEFERRABLE" if draw.odds(0.1) else ""
    return table, [f"ALTER TABLE {table.sql} ADD PRIMARY KEY ({', '.join(map(quoted, columns))}){deferrable}"]


@statement("replace key", 4)
def replace_key(draw: Draw) -> Made:
    """Replace the primary key by one statement, often by the same columns in another order, and touch all rows."""
    table = draw.table(lambda t: bool(t.key_name) and not t.is_partition)
    columns = list(table.key)
    if len(columns) > 1 and draw.odds(0.6):
        columns = columns[1:] + columns[:1]
    else:
        columns = _likely_key(draw, [c.name for c in table.columns])
    touched = draw.one([c for c in table.columns if c.writable])
    touch = [f"UPDATE {table.sql} SET {quoted(touched.name)} = {quoted(touched.name)}"] if draw.odds(0.6) else []
    return table, [
        f"ALTER TABLE {table.sql} DROP CONSTRAINT {quoted(table.key_name)},"
        f" ADD PRIMARY KEY ({', '.join(map(quoted, columns))})",
        *touch,
    ]


def _likely_key(draw: Draw, names: list[str]) -> list[str]:
    keys = [n for n in names if n.startswith("k")]
    return draw.some(keys or names)[:3]


@statement("replica identity", 3)
def replica_identity(draw: Draw) -> Made:
    """Set the replica identity of a table or of a partition."""
    table = draw.table()
    indexes = [f"USING INDEX {quoted(i.name)}" for i in table.indexes]
    how = draw.one(("FULL", "FULL", "DEFAULT", "DEFAULT", "NOTHING", *indexes, *indexes))
    return table, [f"ALTER TABLE {table.sql} REPLICA IDENTITY {how}"]


@statement("unique index", 1)
def unique_index(draw: Draw) -> Made:
    """Create a unique index that may become the replica identity."""
    table = draw.table(lambda t: not t.partitioned_by)
    columns = [c for c in table.columns if not c.generated and c.type != "jsonb"]
    chosen = draw.some(columns)[:2]
    sets = ", ".join(f"ALTER COLUMN {quoted(c.name)} SET NOT NULL" for c in chosen)
    names = ", ".join(quoted(c.name) for c in chosen)
    return table, [
        f"ALTER TABLE {table.sql} {sets}", f"CREATE UNIQUE INDEX {draw.new('i')} ON {table.sql} ({names})"
    ]  # fmt: skip


@statement("drop index", 0.8)
def drop_index(draw: Draw) -> Made:
    """Drop a unique index, which may be the replica identity, if need be one that is new."""
    table = draw.table(lambda t: t.kind == "r" and MARK in t.schema)
    if table.indexes:
        return table, [f"DROP INDEX {table.schema}.{quoted(draw.one(table.indexes).name)}"]
    columns = [c for c in table.columns if not c.nullable and not c.generated and c.type != "jsonb"]
    name = draw.new("i")
    return table, [
        f"CREATE UNIQUE INDEX {name} ON {table.sql} ({quoted(draw.one(columns).name)})",
        f"ALTER TABLE {table.sql} REPLICA IDENTITY USING INDEX {name}",
        f"DROP INDEX {table.schema}.{name}",
    ]


@statement("rename table", 3)
def rename_table(draw: Draw) -> Made:
    """Rename a table."""
    table = draw.table()
    return table, [f"ALTER TABLE {table.sql} RENAME TO {quoted(draw.one(('t1', 't2', 'moved', 'Other')))}"]


@statement("swap tables", 2)
def swap_tables(draw: Draw) -> Made:
    """Exchange the names of two tables."""
    one = draw.table()
    other = draw.table(lambda t: t.schema == one.schema and t.name != one.name)
    a, b, space = quoted(one.name), quoted(other.name), one.schema
    return one, [
        f"ALTER TABLE {space}.{a} RENAME TO swapped",
        f"ALTER TABLE {space}.{b} RENAME TO {a}",
        f"ALTER TABLE {space}.swapped RENAME TO {b}",
    ]


@statement("set schema", 3)
def set_schema(draw: Draw) -> Made:
    """Move a table to another schema, sometimes to one that is not selected."""
    table = draw.table()
    if draw.odds(0.4):
        return table, [f"CREATE SCHEMA IF NOT EXISTS {SCHEMAS[2]}", f"ALTER TABLE {table.sql} SET SCHEMA {SCHEMAS[2]}"]
    return table, [f"ALTER TABLE {table.sql} SET SCHEMA {draw.one(SCHEMAS[:2])}"]


@statement("rename schema", 3)
def rename_schema(draw: Draw) -> Made:
    """Rename a schema with its tables."""
    if not draw.model.tables:
        raise ImpossibleError
    old, new = draw.some((MARK, f"{MARK}_v2"), 2)[:2]
    return None, [f"ALTER SCHEMA {old} RENAME TO {new}"]


@statement("persistence", 1)
def change_persistence(draw: Draw) -> Made:
    """Let a table be unlogged, or logged again."""
    table = draw.table(lambda t: t.kind == "r")
    return table, [f"ALTER TABLE {table.sql} SET {draw.one(('UNLOGGED', 'LOGGED', 'LOGGED'))}"]


@statement("rewrite", 0.8)
def rewrite(draw: Draw) -> Made:
    """Write the table's files again, without a change of its rows."""
    table = draw.table(lambda t: t.kind == "r")
    if table.key_name and draw.odds(0.4):
        return table, [f"CLUSTER {table.sql} USING {quoted(table.key_name)}"]
    return table, [f"VACUUM FULL {table.sql}"]


@statement("row security", 0.2)
def row_security(draw: Draw) -> Made:
    """Enable row security, which hides nothing from a superuser."""
    table = draw.table()
    return table, [f"ALTER TABLE {table.sql} ENABLE ROW LEVEL SECURITY"]


@statement("inheritance", 2)
def inheritance(draw: Draw) -> Made:
    """Create a table that inherits, or let one inherit no more."""
    heirs = [t for t in draw.model.tables if t.parent and not t.is_partition]
    if heirs and draw.odds(0.4):
        heir = draw.one(heirs)
        return heir, [f"ALTER TABLE {heir.sql} NO INHERIT {heir.parent}"]
    table = draw.table(lambda t: t.kind == "r" and not t.parent)
    name = draw.new("heir")
    key = f"ALTER TABLE {{s}}.{name} ADD PRIMARY KEY ({', '.join(map(quoted, table.key))})"
    return table, [f"CREATE TABLE {{s}}.{name} () INHERITS ({table.sql})", *([key] if table.key else [])]
