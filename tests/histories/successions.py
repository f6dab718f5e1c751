"""Statements after which one table, name or key is in the place of another one, or of itself."""

from __future__ import annotations

from tests.histories.draw import Draw, Made, statement
from tests.histories.history import quoted
from tests.histories.model import Table


@statement("rename chain", 2)
def rename_chain(draw: Draw) -> Made:
    """Give each of some tables the name of the one before it, and the first one a new name, together or in steps."""
    first = draw.table()
    alike = [t for t in draw.model.tables if t.schema == first.schema and t.name not in (first.name, *draw.calm)]
    chain = [first, *draw.some(alike)[:2]]
    names = [draw.new("aside"), *(t.name for t in chain)]
    steps = [f"ALTER TABLE {t.sql} RENAME TO {quoted(n)}" for t, n in zip(chain, names, strict=False)]
    return first, ["; ".join(steps)] if draw.odds(0.6) else steps


@statement("table again", 1.5)
def table_again(draw: Draw) -> Made:
    """Drop a table and create another one of its name by one statement, of the same columns or of fewer."""
    table = draw.table(lambda t: t.kind == "r" and not t.parent and bool(t.key))
    kept = [c for c in table.columns if not c.generated and (c.name in table.key or draw.odds(0.7))]
    columns = ", ".join(f"{quoted(c.name)} {c.type}" for c in kept)
    key = ", ".join(map(quoted, table.key))
    names = ", ".join(quoted(c.name) for c in kept)
    saved = draw.new("saved")
    rows = [f"CREATE TABLE {{s}}.{saved} AS SELECT {names} FROM {table.sql}"] if draw.odds(0.5) else []
    steps = [
        *rows,
        f"DROP TABLE {table.sql} CASCADE",
        f"CREATE TABLE {table.sql} ({columns}, PRIMARY KEY ({key}))",
        *(
            [f"INSERT INTO {table.sql} ({names}) SELECT {names} FROM {{s}}.{saved}", f"DROP TABLE {{s}}.{saved}"]
            * bool(rows)
        ),
    ]
    return table, ["; ".join(steps)] if draw.odds(0.7) else steps


@statement("column again", 4)
def column_again(draw: Draw) -> Made:
    """Add a column and write it, drop or rename it, and add another one of its name, together or in steps."""
    table = draw.table(lambda t: not t.parent and bool(t.key))
    name, alter = draw.new("c"), f"ALTER TABLE {table.sql}"
    dropped = draw.odds(0.2) and [c for c in table.others if c.type == "integer" and not c.generated]
    first = f"{alter} DROP COLUMN {quoted(draw.one(dropped).name)}, ADD COLUMN {name} int" if dropped else ""
    steps = [
        first or f"{alter} ADD COLUMN {name} int",
        f"UPDATE {table.sql} SET {name} = 1",
        draw.one((f"{alter} DROP COLUMN {name}", f"{alter} RENAME COLUMN {name} TO {name}_old")),
        f"{alter} ADD COLUMN {name} int DEFAULT {draw.one((7, 8))}",
    ]
    return table, ["; ".join(steps)] if draw.odds(0.5) else steps


@statement("key for a while", 3)
def key_for_a_while(draw: Draw) -> Made:
    """Drop the key of a table, often under FULL, write a second row of a key, delete one of both, add the key again."""
    table = draw.table(lambda t: bool(t.key_name) and t.kind == "r" and not t.parent)
    key, names = ", ".join(map(quoted, table.key)), ", ".join(quoted(c.name) for c in table.columns if c.writable)
    full = [f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL"] if table.identity != "f" and draw.odds(0.7) else []
    twins = f"SELECT {draw.one(('min', 'max'))}(ctid) FROM {table.sql} GROUP BY {key} HAVING count(*) > 1"
    steps = [
        f"ALTER TABLE {table.sql} DROP CONSTRAINT {quoted(table.key_name)}",
        f"INSERT INTO {table.sql} ({names}) SELECT {names} FROM {table.sql} ORDER BY {key} LIMIT 1",
        f"DELETE FROM {table.sql} WHERE ctid IN ({twins})",
        f"ALTER TABLE {table.sql} ADD PRIMARY KEY ({key})",
    ]
    return table, [*full, *(["; ".join(steps)] if draw.odds(0.6) else steps)]


@statement("table becomes partition", 2)
def table_becomes_partition(draw: Draw) -> Made:
    """Attach a table with its rows, which may be replicated, to a new root that may take its name."""
    table = draw.table(lambda t: t.kind == "r" and not t.is_partition and bool(t.key))
    heir = [f"ALTER TABLE {table.sql} NO INHERIT {table.parent}"] if table.parent else []
    root = draw.new("root")
    column = quoted(draw.one(table.key))
    steps = [
        *heir,
        f"CREATE TABLE {{s}}.{root} (LIKE {table.sql} INCLUDING ALL EXCLUDING INDEXES, PRIMARY KEY ({_key(table)}))"
        f" PARTITION BY RANGE ({column})",
        *([f"ALTER TABLE {{s}}.{root} REPLICA IDENTITY FULL"] if table.identity == "f" else []),
        f"ALTER TABLE {{s}}.{root} ATTACH PARTITION {table.sql} DEFAULT",
        f"UPDATE {{s}}.{root} SET {column} = {column}",
    ]
    return table, ["; ".join(steps)] if draw.odds(0.5) else steps


def _key(table: Table) -> str:
    return ", ".join(map(quoted, table.key))
