"""Readers of destinations that share no code with the engine, and the sections of the manifest for them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.table import StaticTable
from tests.histories.changelog import folded
from tests.histories.expected import Watched, as_held
from tests.histories.stored import plain
from tests.rigs.database import Database
from tests.rigs.equality import only, open_lake_table, table_differences, without_rows_of_other_keys
from tests.servers.ducklake import DuckLake

from levada.destinations import DestinationContext

_META: Final = {
    "_levada_op": pa.string(),
    "_levada_commit_lsn": pa.int64(),
    "_levada_ordinal": pa.int64(),
    "_levada_unchanged": pa.list_(pa.string()),
}
"""The columns of a changelog that `folded` needs."""
_MARK: Final = "_levada_deleted_at"


class Reader(Protocol):
    """Reads what a destination has."""

    @property
    def section(self) -> dict[str, Any]:
        """The destination in the manifest."""

    def differences(self, source: psycopg.Connection[Any], table: Watched) -> str:
        """Return what differs from the source, empty if nothing does."""

    def close(self) -> None:
        """End sessions."""


@dataclass
class DuckLakeReader:
    """DuckDB's own extension."""

    db: Database
    folder: Path
    changelog: bool = False
    keep: bool = False
    """True if the lake keeps rows that the source has no more."""
    _session: duckdb.DuckDBPyConnection | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def section(self) -> dict[str, Any]:
        mode = {"mode": "Changelog"} if self.changelog else {}
        return {"ducklake": self._lake.settings(credentialsSecretRef={"name": "pg"}, schema="{schema}", **mode)}

    @property
    def _lake(self) -> DuckLake:
        return DuckLake(self.db, self.folder / "lake", DestinationContext("shop", self.folder / "unused"))

    def differences(self, source: psycopg.Connection[Any], table: Watched) -> str:
        schema, _, name = table.place.partition(".")
        if self._session is None:
            self._session = self._stack.enter_context(self._lake.duckdb())
        query = f'SELECT * FROM "{schema}"."{name.replace(chr(34), chr(34) * 2)}"'
        found = self._session.execute(query).to_arrow_table()
        return compare(source, found, table, table.key if self.keep else ())

    def close(self) -> None:
        """End the session."""
        self._session = None
        self._stack.close()


@dataclass
class IcebergReader:
    """PyIceberg, of a catalog of type Hadoop."""

    folder: Path
    changelog: bool = False
    version: int = 2
    keep: bool = False
    """True if the lake keeps rows that the source has no more."""

    @property
    def section(self) -> dict[str, Any]:
        catalog = {"type": "Hadoop", "warehouse": f"file://{self.folder / 'warehouse'}"}
        mode = {"mode": "Changelog"} if self.changelog else {}
        return {"iceberg": {"catalog": catalog, "namespace": "{schema}", "formatVersion": self.version, **mode}}

    def differences(self, source: psycopg.Connection[Any], table: Watched) -> str:
        schema, _, name = table.place.partition(".")
        found = open_lake_table(self.folder / "warehouse" / schema / name)
        key = table.key if self.keep else ()
        different = compare(source, found.scan().to_arrow(), table, key, nulls=False)
        different = different or _taken_for_one(source, table)
        return different or _hidden(found)

    def close(self) -> None:
        """There is nothing to end."""


@dataclass
class PostgresReader:
    """psycopg, with both sides as PostgreSQL prints them."""

    db: Database
    changelog: bool = False

    @property
    def section(self) -> dict[str, Any]:
        server = {"host": "127.0.0.1", "port": self.db.server.port, "database": self.db.name}
        mode = {"mode": "Changelog"} if self.changelog else {}
        return {"postgres": {**server, "tls": {"mode": "Disable"}, "schema": "{schema}",
                             "credentialsSecretRef": {"name": "pg"}, **mode}}  # fmt: skip

    def differences(self, source: psycopg.Connection[Any], table: Watched) -> str:
        schema, _, name = table.place.partition(".")
        columns = _columns(source, table)
        with self.db.connect() as connection:
            there = {n for (n,) in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
                " AND attname NOT LIKE '\\_levada\\_%%'", [f'"{schema}"."{name}"'],
            )}  # fmt: skip
            if there != set(columns):
                return f"columns {sorted(there)} instead of {sorted(columns)}"
            if table.changelog:
                changes = _texts(connection, schema, name, columns, *_META)
                found = _lines(folded(changes, table.key))
                expected = _lines(_texts(source, table.schema, table.name, columns))
                return "" if found == expected else f"{_first(found, expected)} instead of {_first(expected, found)}"
            found = _printed(connection, schema, name, columns)
        expected = _printed(source, table.schema, table.name, columns)
        return "" if found == expected else f"{_first(found, expected)} instead of {_first(expected, found)}"

    def close(self) -> None:
        """There is nothing to end."""


def compare(
    source: psycopg.Connection[Any], found: pa.Table, table: Watched, key: Sequence[str] = (), *, nulls: bool = True
) -> str:
    """Compare what a reader of a lake has read with the source. Without ``nulls``, it takes those for empty lists.

    Rows that are marked as deleted are left out, and with a ``key`` those whose keys the source has no more.
    """
    if table.changelog:
        found = folded(found, table.key)
    elif _MARK in found.column_names:
        found = found.filter(pc.is_null(found[_MARK])).drop_columns(_MARK)
    if table.numbers:
        found, table = as_held(source, found, table)
    found, table = plain(source, found, table, nulls=nulls)
    texts = [f.with_type(pa.string()) if pa.types.is_time(f.type) else f for f in found.schema]
    found = found.cast(pa.schema(texts))
    if key:
        found = without_rows_of_other_keys(source, found, table.schema, table.name, key)
    return table_differences(source, found, table.schema, table.name)


def _hidden(table: StaticTable) -> str:
    """Return a filter by a column of the partitions that finds other rows than a comparison of each row does."""
    rows = table.scan().to_arrow()
    for name in {table.schema().find_column_name(f.source_id) or "" for f in table.spec().fields}:
        for value in pc.unique(rows[name].drop_null()):
            found = table.scan(EqualTo(term=Reference(name), value=literal(_plain(value)))).to_arrow().num_rows
            there = pc.sum(pc.equal(rows[name], value)).as_py()
            if found != there:
                return f"the filter {name} = {value} hides rows: it finds {found} of {there}"
    return ""


def _plain(value: pa.Scalar) -> Any:
    """Return a value as PyIceberg takes it in filters, which reads dates and moments from texts."""
    plain = value.as_py()
    return plain.isoformat() if pa.types.is_temporal(value.type) else plain


def _taken_for_one(source: psycopg.Connection[Any], table: Watched) -> str:
    """Return names that Java's equalsIgnoreCase, and so Spark, takes for one. It compares capitals, then small ones."""
    seen: dict[str, str] = {}
    for name in _columns(source, table):
        plain = "".join((c.upper() if len(c.upper()) == 1 else c).lower()[0] for c in name)
        if plain in seen:
            return f"Spark takes the columns {seen[plain]} and {name} for one"
        seen[plain] = name
    return ""


def _columns(connection: psycopg.Connection[Any], table: Watched) -> list[str]:
    return [
        name
        for (name,) in connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' ORDER BY attname", [table.compared],
        )
    ]  # fmt: skip


def _texts(connection: psycopg.Connection[Any], schema: str, name: str, columns: list[str], *others: str) -> pa.Table:
    """Return rows with the columns as PostgreSQL prints them, and with others as they are."""
    chosen = [sql.SQL("{}::text").format(sql.Identifier(c)) for c in columns] + [sql.Identifier(c) for c in others]
    cursor = connection.execute(
        sql.SQL("SELECT {} FROM {} {}").format(
            sql.SQL(", ").join(chosen), only(connection, schema, name), sql.Identifier(schema, name)
        )
    )
    rows = cursor.fetchall()
    names = [*columns, *others]
    kinds = {name: pa.string() for name in columns} | {name: kind for name, kind in _META.items() if name in others}
    return pa.table({n: pa.array([row[i] for row in rows], kinds[n]) for i, n in enumerate(names)})


def _lines(rows: pa.Table) -> list[bytes]:
    """Return a line for each row, in order, and an empty one, as `_printed` does."""
    return sorted([b"", *(repr([row[n] for n in sorted(row)]).encode() for row in rows.to_pylist())])


def _printed(connection: psycopg.Connection[Any], schema: str, name: str, columns: list[str]) -> list[bytes]:
    query = sql.SQL("COPY (SELECT {} FROM {} {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), only(connection, schema, name), sql.Identifier(schema, name)
    )
    out = io.BytesIO()
    with connection.cursor().copy(query) as copy:
        for part in copy:
            out.write(part)
    return sorted(out.getvalue().split(b"\n"))


def _first(one: list[bytes], other: list[bytes]) -> str:
    rest = sorted(set(one) - set(other))
    return f"{len(one) - 1} rows with {rest[:2]}"
