"""A DuckLake catalog in a database of a test, and DuckDB's own extension as a reader and a second writer."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import duckdb
from tests.rigs.database import Database

from levada.destinations import DestinationContext
from levada.destinations.ducklake import DuckLakeDestination
from levada.destinations.ducklake.settings import Settings
from levada.values import Lsn, Watermark


def extension(name: str) -> Path:
    """Return the file of an extension, which its package installs."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert found is not None
    assert found.submodule_search_locations
    (file,) = Path(found.submodule_search_locations[0]).rglob("*.duckdb_extension")
    return file


_idle: Final[list[duckdb.DuckDBPyConnection]] = []
"""Sessions with the extensions, whose loading costs a third of a CPU second, and without a catalog."""


_reading: Final[dict[str, duckdb.DuckDBPyConnection]] = {}
"""The session that has read last, by its catalog, because ATTACH costs ten times as much as reading a small table."""


def _with_extensions() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("postgres_scanner", "ducklake"):
        connection.execute(f"LOAD '{extension(name)}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _detach(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("USE memory")
    connection.execute("DETACH lake")


@dataclass
class DuckLake:
    """A catalog: makes destinations on it, and reads its tables as users do."""

    db: Database
    folder: Path
    context: DestinationContext
    options: dict[str, Any] = field(default_factory=dict)
    """Options of each ATTACH."""

    def settings(self, **more: Any) -> dict[str, Any]:
        catalog = {"host": "127.0.0.1", "port": self.db.server.port, "database": self.db.name}
        catalog |= {"tls": {"mode": "Disable"}, "schema": "lake", **more.pop("catalog", {})}
        return {"catalog": catalog, "dataPath": str(self.folder), "schema": "shop_{schema}", **more}

    def destination(
        self, settings: dict[str, Any] | None = None, *, work: str = "", **context: Any
    ) -> DuckLakeDestination:
        """Return a destination as a process that just started has it. ``work`` names another folder for caches."""
        changed = replace(self.context, **context)
        if work:
            changed = replace(changed, work_dir=self.context.work_dir / work)
        return DuckLakeDestination.from_settings(Settings.model_validate(self.settings(**(settings or {}))), changed)

    def mark(self, lsn: int, epoch: int = 1) -> Watermark:
        return Watermark(self.context.pipeline, epoch, Lsn(lsn))

    @contextmanager
    def duckdb(self, **options: Any) -> Iterator[duckdb.DuckDBPyConnection]:
        """A session of DuckDB with the catalog attached as ``lake``."""
        connection = self._attached(self._attach(options))
        try:
            yield connection
            _detach(connection)
        except BaseException:
            connection.close()
            raise
        _idle.append(connection)

    def _attach(self, options: Mapping[str, Any]) -> str:
        server = f"host=127.0.0.1 port={self.db.server.port} user=postgres dbname={self.db.name}"
        more = {"METADATA_SCHEMA": "'lake'", **self.options, **options}
        listed = ", ".join(f"{k} {v}" for k, v in more.items())
        return f"ATTACH 'ducklake:postgres:{server}' AS lake ({listed})"

    def _attached(self, attach: str) -> duckdb.DuckDBPyConnection:
        connection = _idle.pop() if _idle else _with_extensions()
        try:
            connection.execute(attach)
            connection.execute("USE lake")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The session that has read last, if it has read this catalog, else one in its place."""
        attach = self._attach({})
        place = f"{attach} {self.folder}"  # a database of the same name may be another one
        connection = _reading.pop(place, None)
        if connection is None:
            while _reading:
                _, other = _reading.popitem()
                with suppress(duckdb.Error):  # its database may be gone
                    _detach(other)
                    _idle.append(other)
            connection = self._attached(attach)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        _reading[place] = connection

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run SQL as a user of DuckDB."""
        with self._reader() as connection:
            return connection.execute(text).fetchall()

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        """The table's rows as DuckDB sees them."""
        with self._reader() as connection:
            found = connection.execute(f'SELECT * FROM shop_public."{table.replace(chr(34), chr(34) * 2)}"')
            rows = found.to_arrow_table().to_pylist()
        return sorted(rows, key=lambda r: tuple(map(repr, r.values())))

    def items(self, table: str = "orders") -> dict[int, Any]:
        return {r["id"]: r["item"] for r in self.rows(table)}
