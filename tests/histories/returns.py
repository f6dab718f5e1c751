"""Statements that return tables to what they were before, whatever has changed them.

Each kind of membership can be left and entered again: a name, a schema, a root, a parent, a publication, a key, a
column, a type. A look before and one after see the same table then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.histories.draw import Draw
from tests.histories.history import PUBLICATION, Step, quoted
from tests.histories.model import Column, Model, Table

_ASIDE: Final = "aside"
"""The name of a table or column that gives its own to another one for a moment."""


@dataclass
class _Now:
    """A table on its way back. ``sql`` is its name at this moment."""

    former: Table
    table: Table
    sql: str

    def alter(self, kind: str, what: str) -> Step:
        return Step(kind, f"ALTER TABLE {self.sql} {what}", self.sql)


def way_back(draw: Draw, former: Model, now: Model, *, another: bool) -> list[Step]:
    """Return statements after which the tables are as the former model has them, in an order in which they succeed.

    With ``another``, new tables and columns take the places of those that left them, which stay where they are.
    """
    if steps := list(_schemas(former, now)):
        return steps
    before, after = {t.oid: t for t in former.tables}, {t.oid: t for t in now.tables}
    changed = [_Now(before[oid], t, t.sql) for oid, t in after.items() if oid in before and t != before[oid]]
    steps = [step for t in now.tables if t.oid not in before for step in _left(draw, t)]
    if another:
        vacant = [c.former for c in changed if _place(c.former) != _place(c.table)]
        for c in changed:
            if (c.table.parent, c.table.bound) == (c.former.parent, c.former.bound):
                steps += _columns(c, another=True)
    else:
        vacant = []
        for c in changed:
            steps += _returned(c, now)
    return steps + [step for t in (*vacant, *_gone(before, after)) for step in _created(t, now)]


def published_again(steps: list[Step]) -> list[Step]:
    """Return statements that add the tables which the steps took out of the publication."""
    drop = f"ALTER PUBLICATION {PUBLICATION} DROP TABLE "
    return [
        Step(s.kind, s.sql.replace(" DROP TABLE ", " ADD TABLE "), s.table)
        for s in steps
        if s.sql.startswith(drop) and ";" not in s.sql
    ]


def _place(table: Table) -> tuple[str, str, str]:
    return table.sql, table.parent, table.bound


def _gone(before: dict[int, Table], after: dict[int, Table]) -> list[Table]:
    return [t for oid, t in before.items() if oid not in after]


def _schemas(former: Model, now: Model) -> Iterator[Step]:
    """Yield the statement that gives a schema its former name, if all of its tables are in another one now."""
    schemas = {t.oid: t.schema for t in now.tables}
    moved = {(schemas[t.oid], t.schema) for t in former.tables if schemas.get(t.oid, t.schema) != t.schema}
    if len(moved) == 1 and not {old for _, old in moved} & set(schemas.values()):
        [(new, old)] = moved
        yield Step("rename schema", f"ALTER SCHEMA {new} RENAME TO {old}")


def _left(draw: Draw, table: Table) -> list[Step]:
    """Return the statement by which a new table leaves."""
    if table.is_partition and draw.odds(0.5):
        return [Step("detach partition", f"ALTER TABLE {table.parent} DETACH PARTITION {table.sql}", table.sql)]
    return [Step("drop table", f"DROP TABLE IF EXISTS {table.sql} CASCADE", table.sql)]


def _returned(c: _Now, now: Model) -> Iterator[Step]:
    """Yield what brings one table back: out of its new parent, its properties, and into its former parent."""
    parent_left = c.table.parent and c.table.parent != c.former.parent
    if parent_left and c.table.is_partition:
        yield Step("detach partition", f"ALTER TABLE {c.table.parent} DETACH PARTITION {c.sql}", c.sql)
    elif parent_left:
        yield c.alter("inheritance", f"NO INHERIT {c.table.parent}")
    yield from _named(c, now)
    if not (c.table.is_partition and c.former.is_partition):
        yield from _columns(c, another=False)
        yield from _identified(c)
    if c.former.persistence != c.table.persistence:
        yield c.alter("persistence", f"SET {'UNLOGGED' if c.former.persistence == 'u' else 'LOGGED'}")
    if c.former.parent and c.table.parent != c.former.parent:
        if c.former.is_partition:
            sql = f"ALTER TABLE {c.former.parent} ATTACH PARTITION {c.sql} {c.former.bound}"
            yield Step("attach partition", sql, c.sql)
        else:
            yield c.alter("inheritance", f"INHERIT {c.former.parent}")


def _named(c: _Now, now: Model) -> Iterator[Step]:
    """Yield what gives the table its former name, and its present one to the table that has the former one."""
    if c.former.sql == c.table.sql:
        return
    if c.former.schema != c.table.schema:
        yield c.alter("set schema", f"SET SCHEMA {c.former.schema}")
        c.sql = f"{c.former.schema}.{quoted(c.table.name)}"
    if c.former.name == c.table.name:
        return
    holder = now.named(c.former.sql)
    if holder is not None:
        yield Step("rename table", f"ALTER TABLE {holder.sql} RENAME TO {_ASIDE}", holder.sql)
    yield c.alter("rename table", f"RENAME TO {quoted(c.former.name)}")
    c.sql = c.former.sql
    if holder is not None:
        aside = f"{holder.schema}.{_ASIDE}"
        yield Step("rename table", f"ALTER TABLE {aside} RENAME TO {quoted(c.table.name)}", aside)


def _columns(c: _Now, *, another: bool) -> Iterator[Step]:
    """Yield what gives the table its former columns, or with ``another`` new ones of the names that are missing."""
    if c.table.parent:
        return
    before, after = ({x.number: x for x in t.columns} for t in (c.former, c.table))
    renamed = [(before[n].name, x.name, n) for n, x in after.items() if n in before and before[n].name != x.name]
    if another:
        names = {x.name for x in after.values()}
        for x in before.values():
            if x.name not in names:
                yield c.alter("add column", f"ADD COLUMN {quoted(x.name)} {x.type}")
        return
    for n in after.keys() - before.keys():
        yield c.alter("drop column", f"DROP COLUMN {quoted(after[n].name)}")
    for _, new, n in renamed:
        yield c.alter("rename column", f"RENAME COLUMN {quoted(new)} TO {_ASIDE}{n}")
    for old, _, n in renamed:
        yield c.alter("rename column", f"RENAME COLUMN {_ASIDE}{n} TO {quoted(old)}")
    for n in before.keys() - after.keys():
        yield c.alter("add column", f"ADD COLUMN {quoted(before[n].name)} {before[n].type}")
    for n in before.keys() & after.keys():
        yield from _typed(c, before[n], after[n])


def _typed(c: _Now, before: Column, after: Column) -> Iterator[Step]:
    name = quoted(before.name)
    if before.type != after.type:
        using = f"USING {name}::text::{before.type}"
        yield c.alter("retype column", f"ALTER COLUMN {name} TYPE {before.type} {using}")
    if before.nullable != after.nullable:
        yield c.alter("not null", f"ALTER COLUMN {name} {'DROP' if before.nullable else 'SET'} NOT NULL")


def _identified(c: _Now) -> Iterator[Step]:
    """Yield what gives the table its former key and replica identity."""
    if c.former.key != c.table.key:
        if c.table.key_name:
            yield c.alter("drop key", f"DROP CONSTRAINT {quoted(c.table.key_name)}")
        if c.former.key:
            yield c.alter("add key", f"ADD PRIMARY KEY ({', '.join(map(quoted, c.former.key))})")
    identities = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}
    if c.former.identity != c.table.identity and c.former.identity in identities:
        yield c.alter("replica identity", f"REPLICA IDENTITY {identities[c.former.identity]}")


def _created(table: Table, now: Model) -> Iterator[Step]:
    """Yield the statement that creates a table in the place of one that has left it."""
    by = f" PARTITION BY {table.partitioned_by}" if table.partitioned_by else ""
    name = table.sql if now.named(table.sql) is None else f"{table.schema}.{quoted(table.name + '_new')}"
    if table.is_partition:
        sql = f"CREATE TABLE {name} PARTITION OF {table.parent} {table.bound}{by}"
        yield Step("create partition", sql, table.parent)
        return
    columns = [
        f"{quoted(c.name)} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in table.columns if not c.generated
    ]
    key = [f"PRIMARY KEY ({', '.join(map(quoted, table.key))})"] if table.key else []
    yield Step("create table", f"CREATE TABLE {name} ({', '.join((*columns, *key))}){by}")
