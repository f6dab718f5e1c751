"""A database that PostgreSQL tables are replicated into, and the steps that its tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from tests.destinations.memory import MemoryRows, Stream
from tests.rigs.database import Database

from levada.destinations import DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.testing import column, table
from levada.values import Durability, Lsn, QualifiedTable, TableMode, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


@dataclass
class Replica:
    """A destination's database: makes destinations on it, and reads its tables."""

    db: Database
    context: DestinationContext

    def settings(self, **more: Any) -> dict[str, Any]:
        server = {"host": "127.0.0.1", "port": self.db.server.port, "database": self.db.name}
        return {**server, "tls": {"mode": "Disable"}, "schema": "shop_{schema}", **more}

    def destination(self, settings: dict[str, Any] | None = None, **context: Any) -> PostgresDestination:
        """A destination as a process that just started has it."""
        model = Settings.model_validate(self.settings(**(settings or {})))
        return PostgresDestination.from_settings(model, replace(self.context, **context))

    def mark(self, lsn: int, epoch: int = 1) -> Watermark:
        return Watermark(self.context.pipeline, epoch, Lsn(lsn))

    def rows(self, name: LiteralString = "orders") -> list[dict[str, Any]]:
        with self.db.connect(row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute(f"SELECT * FROM shop_public.{name} ORDER BY 1").fetchall()

    def items(self) -> dict[int, Any]:
        return {r["id"]: r["item"] for r in self.rows()}

    def columns(self, name: str = "orders") -> list[tuple[str, str]]:
        return [
            (n, t)
            for n, t in self.db.query(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                f"shop_public.{name}",
            )
        ]


def copy(
    replica: Replica,
    destination: PostgresDestination,
    schema: ReplicatedTableSchema = ORDERS,
    n: int = 3,
    *,
    mode: TableMode = TableMode.UPSERT,
    lsn: int = 1000,
    epoch: int = 1,
    name: QualifiedTable | None = None,
) -> Stream:
    """Copy rows 1 to n as of LSN 1000. The stream returned has the changes after that."""
    target = TableTarget.of(schema, mode, name)
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    destination.write_table_rows(target, MemoryRows(schema, rows[::2], rows[1::2]), replica.mark(lsn, epoch))
    return Stream(schema, mode=mode)


def apply(replica: Replica, destination: PostgresDestination, stream: Stream, *, epoch: int = 1) -> None:
    """Apply what the stream has since the last batch."""
    batch = stream.batch()
    assert destination.write_events(batch, replica.mark(batch.until, epoch)) is Durability.DURABLE


class TwiceRows(MemoryRows):
    """Rows of which each partition is written twice, as when the result of a Spark task is lost."""

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
        lost = [fn(self._reader(p)) for p in self._partitions]
        assert lost
        return super().map_partitions(fn)
