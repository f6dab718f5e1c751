"""Random rows for tables of any schema, as far as its constraints let them in."""

from __future__ import annotations

import random
import string
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql
from tests.migrations.states import SourceStates

_COLUMNS: Final = """
SELECT c.oid::int, c.relname, a.attname, t.typname, t.typtype::text, a.atttypmod, a.attnotnull,
    a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a',
    (SELECT array_agg(e.enumlabel::text) FROM pg_enum e WHERE e.enumtypid = t.oid),
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey)),
    (SELECT ARRAY[f.confrelid::regclass::text, fa.attname] FROM pg_constraint f
        JOIN pg_attribute fa ON fa.attrelid = f.confrelid AND fa.attnum = f.confkey[1]
        WHERE f.conrelid = c.oid AND f.contype = 'f' AND f.conkey = ARRAY[a.attnum] LIMIT 1)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND NOT c.relname = ANY (%s) ORDER BY c.oid, a.attnum
"""
_DELETE: Final = sql.SQL("DELETE FROM {} WHERE {}")
_GONE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)
_NOT_WRITTEN: Final = ["django_migrations", "alembic_version"]
_LETTERS: Final = string.ascii_letters + string.digits + " é'\\\n,{\"}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as a writer sees it. ``refers`` is the table and the column of a foreign key of this column alone."""

    name: str
    type: str
    kind: str
    typmod: int
    required: bool
    has_default: bool
    fixed: bool
    labels: Sequence[str] | None
    key: bool
    refers: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class _Row:
    """A row by the columns of its key."""

    key: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def condition(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(n)) for n in self.key)


@dataclass
class Writer:
    """Writes random rows in transactions of one table each, and records how many rows each table has after them."""

    connection: psycopg.Connection[Any]
    states: SourceStates
    rng: random.Random
    written: int = 0
    _own: dict[int, list[_Row]] = field(default_factory=lambda: defaultdict(list))
    """The rows that were inserted, by the table's OID. The migrations rely on the others."""

    def write(self, tables: int) -> None:
        """Insert, update and delete rows of this number of random tables."""
        known = self._tables()
        for oid, name in self.rng.sample(sorted(known), min(tables, len(known))):
            columns = known[oid, name]
            for act in (self._insert, self._update, self._delete):
                try:
                    with self.connection.transaction():
                        self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                        act(oid, name, columns)
                        self.states.record(self.connection, [oid])
                except psycopg.Error:
                    # A constraint that random rows do not satisfy.
                    continue

    def withdraw(self) -> None:
        """Delete all rows that were inserted, also those that refer to each other."""
        with self.connection.transaction():
            self.connection.execute("SET LOCAL session_replication_role = replica")
            names = dict(self._tables().keys())
            for table, rows in self._own.items():
                for row in rows if table in names else ():
                    with suppress(*_GONE), self.connection.transaction():
                        self.connection.execute(_DELETE.format(sql.Identifier(names[table]), row.condition), row.values)
            self.states.record_all(self.connection, gaps=False)
        self._own.clear()

    def _tables(self) -> dict[tuple[int, str], list[Column]]:
        found: dict[tuple[int, str], list[Column]] = {}
        for oid, table, *column in self.connection.execute(_COLUMNS, [_NOT_WRITTEN]).fetchall():
            found.setdefault((oid, table), []).append(Column(*column))
        return found

    def _insert(self, oid: int, table: str, columns: Sequence[Column]) -> None:
        key = tuple(c.name for c in columns if c.key)
        for _ in range(self.rng.randint(3, 12)):
            row = dict(self._values(columns))
            query = sql.SQL("INSERT INTO {} ({}) VALUES ({}) RETURNING {}").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, row)),
                sql.SQL(", ").join(sql.Placeholder() * len(row)),
                sql.SQL(", ").join(map(sql.Identifier, key)) if key else sql.SQL("1"),
            )
            if not row:
                query = sql.SQL("INSERT INTO {} DEFAULT VALUES RETURNING 1").format(sql.Identifier(table))
            try:
                with self.connection.transaction():
                    [returned] = self.connection.execute(query, list(row.values())).fetchall()
            except psycopg.Error:
                continue
            self.written += 1
            if row and key:
                self._own[oid].append(_Row(key, returned))

    def _update(self, oid: int, table: str, columns: Sequence[Column]) -> None:
        free = [c for c in columns if not (c.key or c.fixed or c.refers)]
        for row in self._some(oid, 4):
            for column in self.rng.sample(free, min(2, len(free))):
                query = sql.SQL("UPDATE {} SET {} = %s WHERE {}").format(
                    sql.Identifier(table), sql.Identifier(column.name), row.condition
                )
                with suppress(psycopg.Error), self.connection.transaction():
                    self.written += self.connection.execute(query, [self._value(column), *row.values]).rowcount

    def _delete(self, oid: int, table: str, columns: Sequence[Column]) -> None:
        for row in self._some(oid, 2):
            with suppress(psycopg.Error), self.connection.transaction():
                query = _DELETE.format(sql.Identifier(table), row.condition)
                self.written += self.connection.execute(query, row.values).rowcount
                self._own[oid].remove(row)

    def _some(self, oid: int, rows: int) -> list[_Row]:
        own = self._own[oid]
        return self.rng.sample(own, min(rows, len(own)))

    def _values(self, columns: Sequence[Column]) -> Iterator[tuple[str, Any]]:
        for column in columns:
            if column.fixed or (column.has_default and (column.key or self.rng.random() < 0.5)):
                continue
            if not column.required and self.rng.random() < 0.2:
                continue
            yield column.name, self._value(column)

    def _value(self, column: Column) -> Any:
        if column.refers:
            table, name = column.refers
            query = sql.SQL("SELECT {} FROM {} ORDER BY random() LIMIT 1").format(
                sql.Identifier(name),
                sql.SQL(table),  # type: ignore[arg-type]  # a regclass is quoted where it must be
            )
            found = self.connection.execute(query).fetchone()
            return found[0] if found else None
        if column.labels:
            return self.rng.choice(column.labels)
        if column.type in ("varchar", "bpchar", "text", "citext"):
            longest = column.typmod - 4 if column.typmod > 0 else 60
            return "".join(self.rng.choice(_LETTERS) for _ in range(self.rng.randint(0, min(longest, 60))))
        if column.type == "numeric":
            return round(self.rng.random() * 9, 2)
        if (make := _VALUES.get(column.type)) is not None:
            return make(self.rng)
        if column.type.startswith("_"):
            return "{}"
        return None


_VALUES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "bool": lambda rng: rng.random() < 0.5,
    "int2": lambda rng: rng.randint(0, 30_000),
    "int4": lambda rng: rng.randint(0, 2_000_000_000),
    "int8": lambda rng: rng.randint(0, 2_000_000_000),
    "float8": lambda rng: rng.random() * 1e6,
    "float4": lambda rng: rng.randint(0, 1000) / 4,
    "timestamptz": lambda rng: f"20{rng.randint(10, 29)}-03-0{rng.randint(1, 9)} 12:{rng.randint(10, 59)}:01.25+00",
    "timestamp": lambda rng: f"20{rng.randint(10, 29)}-03-0{rng.randint(1, 9)} 12:{rng.randint(10, 59)}:01.25",
    "date": lambda rng: f"20{rng.randint(10, 29)}-03-0{rng.randint(1, 9)}",
    "time": lambda rng: f"12:{rng.randint(10, 59)}:01.25",
    "interval": lambda rng: f"{rng.randint(0, 999)} minutes",
    "uuid": lambda rng: uuid.UUID(int=rng.getrandbits(128)),
    "jsonb": lambda rng: rng.choice(("{}", "[]", '{"a": [1, "x"]}')),
    "json": lambda rng: rng.choice(("{}", "[]", '{"a": [1, "x"]}')),
    "inet": lambda rng: f"10.0.0.{rng.randint(1, 200)}",
    "bytea": lambda rng: rng.randbytes(rng.randint(0, 9)),
}
