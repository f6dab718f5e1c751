"""The tables of a history as its next statement finds them, read from the twin's catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from tests.histories.history import MARK, quoted

_TABLES: Final = """
SELECT c.oid::int, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
    c.relispartition,
    (SELECT ARRAY[pn.nspname, pc.relname]::text[] FROM pg_inherits i JOIN pg_class pc ON pc.oid = i.inhparent
        JOIN pg_namespace pn ON pn.oid = pc.relnamespace WHERE i.inhrelid = c.oid LIMIT 1),
    pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
    (SELECT con.conname FROM pg_constraint con WHERE con.conrelid = c.oid AND con.contype = 'p')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname LIKE %s ORDER BY c.oid
"""
_COLUMNS: Final = """
SELECT a.attrelid::int, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, a.atthasdef,
    a.attgenerated <> '', a.attidentity::text, a.attnum::int
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname LIKE %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum
"""
_INDEXES: Final = """
SELECT i.indrelid::int, x.relname, i.indisprimary,
    ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY k(n, o)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n ORDER BY k.o)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class x ON x.oid = i.indexrelid WHERE n.nspname LIKE %s AND i.indisunique ORDER BY 2
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is printed as PostgreSQL prints it, and has the mark for the schema."""

    name: str
    type: str
    nullable: bool
    has_default: bool
    generated: bool
    identity: str
    number: int
    """The attnum, which a column keeps when its name changes."""

    @property
    def writable(self) -> bool:
        return not self.generated and self.identity != "a"


@dataclass(frozen=True, slots=True)
class Index:
    """A unique index."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table or partition. ``parent`` is that of a partition or of inheritance."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    identity: str
    is_partition: bool
    parent: str
    partitioned_by: str
    bound: str
    key_name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]

    @property
    def sql(self) -> str:
        """The name for SQL."""
        return _sql(self.schema, self.name)

    @property
    def others(self) -> list[Column]:
        """The columns outside of the key."""
        return [c for c in self.columns if c.name not in self.key]

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)


@dataclass(frozen=True, slots=True)
class Model:
    """All tables of a history. ``major`` is the server's version."""

    major: int
    tables: tuple[Table, ...] = ()

    def named(self, sql: str) -> Table | None:
        return next((t for t in self.tables if t.sql == sql), None)


def _sql(schema: str, name: str) -> str:
    return f"{schema}.{quoted(name)}"


def read_model(connection: psycopg.Connection[Any], schema: str) -> Model:
    """Read the tables of a history's schemas, as the connection's transaction sees them."""
    like = [f"%{schema}%".replace("_", r"\_")]
    columns: dict[int, list[Column]] = {}
    for oid, name, kind, *rest in connection.execute(_COLUMNS, like):
        columns.setdefault(oid, []).append(Column(name, kind.replace(schema, MARK), *rest))
    keys: dict[int, tuple[str, ...]] = {}
    indexes: dict[int, list[Index]] = {}
    for oid, name, primary, members in connection.execute(_INDEXES, like):
        if primary:
            keys[oid] = tuple(members)
        else:
            indexes.setdefault(oid, []).append(Index(name, tuple(members)))
    tables = [
        Table(
            oid, space.replace(schema, MARK), name, kind, persistence, identity, partition,
            _sql(*parent).replace(schema, MARK) if parent else "", by or "", bound or "", key_name or "",
            keys.get(oid, ()), tuple(columns.get(oid, ())), tuple(indexes.get(oid, ())),
        )
        for oid, space, name, kind, persistence, identity, partition, parent, by, bound, key_name
        in connection.execute(_TABLES, like)
    ]  # fmt: skip
    return Model(connection.info.server_version // 10000, tuple(tables))
