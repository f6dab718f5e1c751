"""The destinations of the project under the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, LiteralString, cast

import psycopg
import pyarrow as pa
import pytest
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range
from tests.destinations.openings import open_postgres
from tests.rigs.clear_values import files_with
from tests.rigs.database import Database
from tests.rigs.lake import Lake
from tests.servers.ducklake import DuckLake

from levada.copy.rows import TableRows
from levada.destinations import Destination, DestinationContext
from levada.destinations.arrow_text import map_text
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings, TableSettings
from levada.destinations.iceberg.state import IcebergState
from levada.locations import target_name
from levada.runtime.resources.spark import spark_session
from levada.schema import Column, Kind, TableTarget
from levada.schema.changes import OP
from levada.segments.batch import TableEvents
from levada.testing import DestinationConformance, DestinationPlace, MemoryDestination, MemoryTables, fold_changelog
from levada.testing.destinations.changes import Changes
from levada.testing.destinations.crashes import Crashes
from levada.testing.destinations.errors import Errors
from levada.testing.destinations.watermarks import Watermarks
from levada.values import Durability, Watermark

REMOVALS = ("test_truncate", "test_keys_that_change", "test_partial_rows")
"""Tests of the suite that remove rows, and find them by their keys."""


class TestMemory(DestinationConformance):
    """The destination in memory."""

    @pytest.fixture
    def place(self) -> DestinationPlace:
        """Return a place that outlives the destination's objects."""
        tables = MemoryTables()
        return DestinationPlace(
            open=lambda: MemoryDestination(tables),
            read=tables.read,
            read_cut=tables.read_cut,
            search=tables.search,
        )


class TestIceberg(DestinationConformance):
    """The Iceberg destination in a Hadoop catalog, read by PyIceberg and by Spark.

    A process that is killed has a JVM of its own, so kills run nightly. So do all but one of the errors, which pass
    through the same code.
    """

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = (
        *(part for part in DestinationConformance.__bases__ if part not in (Crashes, Errors)),
        "test_an_unrepresentable_value",
        "test_errors_keep_their_class[Transient]",
    )

    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def place(self, hadoop: Lake) -> DestinationPlace:
        """Return a lake in a folder."""
        hadoop.manifest.update(self.settings)
        in_child = partial(_open_in_child, hadoop.manifest, replace(hadoop.context, spark=None), IcebergDestination)
        read = partial(_read_lake, hadoop)
        at = partial(_read_cut, hadoop)
        return DestinationPlace(hadoop.destination, read, _times_are_text, in_child, at, _search_in(hadoop))


class TestIcebergVersion3(TestIceberg):
    """The same in format version 3, with deletion vectors: what removes rows can differ, the rest runs nightly."""

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = REMOVALS

    settings: ClassVar[dict[str, Any]] = {"formatVersion": 3}


class TestPartitionedIceberg(TestIceberg):
    """The same with partitions and a sort order by columns of each table, which change with its schema.

    What finds and moves rows can differ. The rest runs nightly.
    """

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = REMOVALS

    @pytest.fixture
    def place(self, hadoop: Lake) -> DestinationPlace:
        """Return a lake in a folder."""
        opened = partial(_open_partitioned, hadoop.manifest, hadoop.context)
        in_child = partial(_open_in_child, hadoop.manifest, replace(hadoop.context, spark=None), PartitionedIceberg)
        read, at = partial(_read_lake, hadoop), partial(_read_cut, hadoop)
        return DestinationPlace(opened, read, _times_are_text, in_child, at, _search_in(hadoop))


class PartitionedIceberg(IcebergDestination):
    """Iceberg with settings for every table: partitions by each column that fits one, and the last columns sorted."""

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Write the copy in partitions."""
        return super().write_table_rows(_with_settings(target), rows, mark)

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Write the shadow copy in partitions."""
        return super().copy_replacement(_with_settings(target), rows, mark)

    def _apply_once(self, state: IcebergState, events: TableEvents, mark: Watermark) -> None:
        events.target = _with_settings(events.target)
        super()._apply_once(state, events, mark)


def _with_settings(target: TableTarget) -> TableTarget:
    """Return the target with partitions by its key and by one other column, which an added column changes."""
    unfit = (Kind.FLOAT4, Kind.FLOAT8, Kind.ARRAY, Kind.RANGE, Kind.MAP)
    fitting = [c for c in target.schema.columns if c.type.kind not in unfit and not c.type.native]
    names = {c.attnum: f"`{c.name.replace('`', '``')}`" for c in fitting}
    buckets = [f"bucket(3, {names[c.attnum]})" for c in fitting[:2] if c.type.kind is not Kind.BOOL]
    last = [names[c.attnum] for c in fitting[2:]][-1:]
    by = {"partitionBy": [*buckets, *last], "sortBy": [f"{n} desc nulls first" for n in [*names.values()][-3:]]}
    return replace(target, settings=TableSettings.model_validate(by))


def _open_partitioned(manifest: dict[str, Any], context: DestinationContext) -> Destination:
    return PartitionedIceberg.from_settings(Settings.model_validate(manifest), context)


class TestDuckLake(DestinationConformance):
    """The DuckLake destination, read by DuckDB's extension. All but one of the errors pass through the same code."""

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = (Crashes, *TestIceberg.parts_of_each_run)

    @pytest.fixture
    def place(self, ducklake: DuckLake) -> DestinationPlace:
        """Return a database without a catalog."""

        def read(target: TableTarget) -> Iterable[dict[str, Any]]:
            rows = ducklake.rows(target.name.name)
            return fold_changelog(target.schema, rows) if rows and OP in rows[0] else rows

        def search(text: str) -> list[str]:
            folders = (ducklake.folder, ducklake.context.work_dir)
            found = [file for folder in folders for file in files_with(folder, text.encode())]
            for table in ("ducklake_file_column_stats", "ducklake_table_column_stats", "levada_tables"):
                query = cast(
                    "LiteralString", f"SELECT count(*) FROM lake.{table} AS t WHERE strpos(t::text, '{text}') > 0"
                )
                [(count,)] = ducklake.db.query(query)
                found += [table] if count else []
            return found

        return DestinationPlace(open=ducklake.destination, read=read, in_child=ducklake.destination, search=search)


def _search_in(lake: Lake) -> Callable[[str], list[str]]:
    """Return a search of all files of a lake and of the caches of its destination."""
    folders = (Path(lake.manifest["catalog"]["warehouse"]), lake.context.work_dir)
    return lambda text: [file for folder in folders for file in files_with(folder, text.encode())]


def _read_lake(lake: Lake, target: TableTarget) -> Iterable[dict[str, Any]]:
    rows = lake.rows(target_name(target.name.name))
    return fold_changelog(target.schema, rows) if rows and OP in rows[0] else rows


def _read_cut(lake: Lake, target: TableTarget, name: str) -> Iterable[dict[str, Any]]:
    return lake.rows_at(name, target_name(target.name.name))


def _times_are_text(column: Column, value: Any) -> Any:
    return value.isoformat(timespec="microseconds") if column.type.kind is Kind.TIME else value


def _open_in_child(
    manifest: dict[str, Any], context: DestinationContext, kind: type[IcebergDestination]
) -> Destination:
    settings = Settings.model_validate(manifest)
    conf, jars = IcebergDestination.spark_conf(settings), IcebergDestination.jars()
    session = spark_session("conformance", cores=1, defaults=conf, jars=jars)
    return kind.from_settings(settings, replace(context, spark=session))


class TestPostgres(DestinationConformance):
    """The PostgreSQL destination, read by SQL."""

    @pytest.fixture
    def place(self, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DestinationPlace:
        """Return an empty database."""
        monkeypatch.setenv("PGUSER", "postgres")
        server = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
        opened = partial(open_postgres, {**server, **self.settings}, tmp_path)
        read = partial(_read_postgres, db)
        search = partial(_search_postgres, db)
        return DestinationPlace(open=opened, read=read, shown=_maps_are_text, in_child=opened, search=search)

    settings: ClassVar[dict[str, Any]] = {}


class TestOrderedPostgres(TestPostgres):
    """The same with all tables in one transaction.

    What does not write changes is the same, and runs nightly. So do kills in a batch of one table.
    """

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = (
        Changes,
        Watermarks,
        *(f"test_a_batch_of_several_tables_that_is_killed[{at}]" for at in ("first", "third", "read", "returned")),
    )

    settings: ClassVar[dict[str, Any]] = {"ordering": "Pipeline", "schema": "copy_of_{schema}"}


def _search_postgres(db: Database, text: str) -> list[str]:
    """Return the tables and the statistics that have a text."""
    tables = db.query(
        "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables"
        " WHERE schemaname <> ALL ('{pg_catalog,information_schema}')"
    )
    query = "SELECT count(*) FROM {} AS t WHERE strpos(t::text, '{}') > 0"
    places = [*(name for (name,) in tables), "pg_stats"]
    return [p for p in places if db.query(cast("LiteralString", query.format(p, text))) != [(0,)]]


def _maps_are_text(column: Column, value: Any) -> Any:
    return map_text(pa.array([value], column.type.arrow))[0].as_py() if column.type.kind is Kind.MAP else value


def _without_range(value: Any) -> Any:
    """Return a range as the struct of other destinations. A numrange has bounds of any number of digits, as text."""
    if isinstance(value, Multirange):
        return [_without_range(part) for part in value]
    if not isinstance(value, Range):
        return value
    bounds = [str(b) if isinstance(b, Decimal) else b for b in (value.lower, value.upper)]
    names = ("lower", "upper", "lower_inc", "upper_inc", "isempty")
    return dict(zip(names, (*bounds, value.lower_inc, value.upper_inc, value.isempty), strict=True))


def _read_postgres(db: Database, target: TableTarget) -> list[dict[str, Any]]:
    with db.connect(row_factory=psycopg.rows.dict_row, options="-c timezone=UTC") as connection:
        found = connection.execute(
            "SELECT attname::text AS name, format_type(atttypid, NULL) AS type, nspname::text AS schema"
            " FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE nspname = ANY (%(schemas)s) AND relname = %(name)s AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum",
            {"schemas": [target.name.schema, f"copy_of_{target.name.schema}"], "name": target.name.name},
        ).fetchall()
        shown = [
            psycopg.sql.SQL("{0}::text AS {0}" if c["type"] in ("uuid", "json", "jsonb") else "{0}").format(
                psycopg.sql.Identifier(c["name"])
            )
            for c in found
        ]
        query = psycopg.sql.SQL("SELECT {} FROM {}").format(
            psycopg.sql.SQL(", ").join(shown), psycopg.sql.Identifier(found[0]["schema"], target.name.name)
        )
        rows = [{n: _without_range(v) for n, v in row.items()} for row in connection.execute(query).fetchall()]
    return fold_changelog(target.schema, rows) if any(c["name"] == OP for c in found) else rows
