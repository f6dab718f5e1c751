"""PostgreSQL as a destination, on a real server, read back by SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
import pytest
from tests.conftest import Database
from tests.destinations.memory import MemoryRows, Stream

from levada.destinations import DestinationContext, OnSchemaChange, Ordering
from levada.destinations.data_files import upsert as pieces
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings
from levada.errors import DestinationChanged, LoginFailed, NeedsOperator, StaleEpoch, Transient
from levada.local.postgres import temporary_postgres
from levada.postgres.identity import SourceIdentity
from levada.schema import Column, ColumnType, Kind, ReplicatedTableSchema, TableTarget
from levada.testing import Source, column, table
from levada.values import Durability, Lsn, QualifiedTable, TableId, TableMode, Watermark

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


@pytest.fixture
def replica(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    """An empty database to write to."""
    monkeypatch.setenv("PGUSER", "postgres")
    return Replica(db, DestinationContext("shop", tmp_path))


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


def test_copy_then_changes(replica: Replica) -> None:
    """A copy and a batch leave the last state of each row, and another process reads the same watermark."""
    destination = replica.destination()
    destination.startup()
    destination.check()
    stream = copy(replica, destination)
    assert destination.applied(ORDERS.id) == replica.mark(1000)
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {1: "A", 3: "item 3", 4: "d"}
    assert destination.applied(ORDERS.id) == replica.mark(stream.taken)
    assert replica.destination().applied(ORDERS.id) == replica.mark(stream.taken)
    assert replica.destination().applied(TableId(1)) is None
    destination.shutdown()


def test_an_empty_table_is_created(replica: Replica) -> None:
    """A copy without rows, or without partitions, creates the table and its watermark. Changes follow."""
    destination = replica.destination()
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS), replica.mark(1000))
    assert replica.rows() == []
    assert replica.destination().applied(ORDERS.id) == replica.mark(1000)
    stream = Stream(ORDERS)
    stream.insert(id=1, item="a", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {1: "a"}


def test_a_batch_twice_is_a_batch_once(replica: Replica) -> None:
    """After a crash a batch comes again, with more behind it, and changes nothing that it changed before."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=9, item="new", note=None)
    apply(replica, destination, stream)
    stream.delete(id=9)
    again = stream.batch(since=1000)
    destination.write_events(again, replica.mark(again.until))
    destination.write_events(again, replica.mark(again.until))
    assert replica.items() == {1: "item 1", 2: "item 2", 3: "item 3"}
    assert destination.applied(ORDERS.id) == replica.mark(again.until)


def test_keys_that_change_and_come_back(replica: Replica) -> None:
    """A row that moves to another key leaves the old one. Keys are taken again within a batch and across batches."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.update(old={"id": 1}, id=10, item="moved", note="n")
    stream.update(old={"id": 2}, id=1, item="took one", note="n")
    stream.delete(id=3)
    stream.insert(id=3, item="three again", note="n")
    apply(replica, destination, stream)
    assert replica.items() == {1: "took one", 3: "three again", 10: "moved"}
    stream.update(old={"id": 1}, id=0, item="a", note="n")
    stream.update(old={"id": 10}, id=1, item="moved", note="n")
    stream.update(old={"id": 0}, id=10, item="took one", note="n")
    apply(replica, destination, stream)
    assert replica.items() == {1: "moved", 3: "three again", 10: "took one"}


def test_unknown_values_come_from_the_row_that_is_there(replica: Replica) -> None:
    """An unchanged TOASTed value is that of the row: from the batch, or from the table, under its old key too."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.update(id=1, item="one", note=None, unchanged=[3])
    stream.update(old={"id": 2}, id=20, item="twenty", note=None, unchanged=[3])
    stream.insert(id=4, item="four", note="long")
    stream.update(id=4, item="FOUR", note=None, unchanged=[3])
    stream.update(id=3, item="only note", note="y", unchanged=[])
    stream.update(id=3, item=None, note=None, unchanged=[2, 3])
    apply(replica, destination, stream)
    assert {r["id"]: (r["item"], r["note"]) for r in replica.rows()} == {
        1: ("one", "x" * 100),
        3: ("only note", "y"),
        4: ("FOUR", "long"),
        20: ("twenty", "x" * 100),
    }


def test_unknown_values_of_two_rows_that_exchange_their_keys(replica: Replica) -> None:
    """Two rows that exchange their keys in one batch keep their own unchanged values."""
    destination = replica.destination()
    stream = copy(replica, destination, n=0)
    stream.insert(id=1, item="a", note="note of a")
    stream.insert(id=2, item="b", note="note of b")
    apply(replica, destination, stream)
    stream.update(old={"id": 1}, id=3, item="a", note=None, unchanged=[3])
    stream.update(old={"id": 2}, id=1, item="b", note=None, unchanged=[3])
    stream.update(old={"id": 3}, id=2, item="a", note=None, unchanged=[3])
    apply(replica, destination, stream)
    assert [(r["id"], r["item"], r["note"]) for r in replica.rows()] == [(1, "b", "note of b"), (2, "a", "note of a")]


def test_an_unknown_value_of_a_row_that_is_not_there_is_an_error(replica: Replica) -> None:
    """A value that neither batch nor table has parks the table. Nothing of the batch is written."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=8, item="?", note=None)
    stream.update(id=77, item="?", note=None, unchanged=[3])
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "unknown_value"
    assert destination.applied(ORDERS.id) == replica.mark(1000)
    assert len(replica.items()) == 3


def test_truncate(replica: Replica) -> None:
    """A TRUNCATE removes what was before it, in the batch and in the table, and nothing after it."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=5, item="gone", note=None)
    stream.truncate()
    stream.insert(id=1, item="after", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {1: "after"}
    replica.db.execute("CREATE TABLE refs (id bigint REFERENCES shop_public.orders)")
    stream.truncate()
    apply(replica, destination, stream)
    assert replica.items() == {}


def test_a_large_batch_is_applied_in_pieces(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is folded piece by piece has the same result, in one transaction."""
    monkeypatch.setattr(pieces, "PIECE_ROWS", 3)
    destination = replica.destination()
    stream = copy(replica, destination)
    for turn in range(4):
        for i in (1, 2, 4):
            if i == 4 and not turn:
                stream.insert(id=4, item="new", note="four")
            else:
                stream.update(id=i, item=f"turn {turn}", note=None, unchanged=[3])
    stream.update(old={"id": 4}, id=5, item="five", note=None, unchanged=[3])
    apply(replica, destination, stream)
    assert replica.items() == {1: "turn 3", 2: "turn 3", 3: "item 3", 5: "five"}
    assert {r["id"]: r["note"] for r in replica.rows()}[5] == "four"


def test_an_older_driver_is_refused(replica: Replica) -> None:
    """After a driver with a newer epoch wrote the table, an older one can neither write, copy nor drop it."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=4, item="d", note=None)
    apply(replica, replica.destination(), stream, epoch=2)
    stream.insert(id=5, item="e", note=None)
    batch = stream.batch()
    for call in (
        lambda: destination.write_events(batch, replica.mark(batch.until)),
        lambda: copy(replica, destination),
        lambda: destination.drop_table_for_copy(TableTarget.of(ORDERS), 1),
        lambda: destination.copy_replacement(TableTarget.of(ORDERS), MemoryRows(ORDERS), replica.mark(2000)),
    ):
        with pytest.raises(StaleEpoch):
            call()
    assert list(replica.items()) == [1, 2, 3, 4]


def test_columns_come_and_go(replica: Replica) -> None:
    """Added, renamed, dropped and widened columns keep the values of existing rows."""
    v0 = table(column(1, "id", Kind.INT4), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
    destination = replica.destination()
    stream = copy(replica, destination, v0)
    v1 = replace(
        v0,
        columns=(
            column(1, "id", Kind.INT8),
            # The names of two columns change places.
            column(2, "note", Kind.TEXT),
            column(4, "price", Kind.DECIMAL, precision=10, scale=2),
            column(5, "item", Kind.TEXT, missing_value="it's\\ \t"),
            column(6, "n", Kind.INT4, missing_value="7"),
        ),
    )
    stream.alter(v1)
    stream.insert(id=1 << 40, note="new", price=Decimal("1.50"), item="fresh", n=None)
    apply(replica, destination, stream)
    assert [tuple(r[c] for c in ("id", "note", "price", "item", "n")) for r in replica.rows()] == [
        (1, "item 1", None, "it's\\ \t", 7),
        (2, "item 2", None, "it's\\ \t", 7),
        (3, "item 3", None, "it's\\ \t", 7),
        (1 << 40, "new", Decimal("1.50"), "fresh", None),
    ]
    v2 = replace(v1, columns=(*v1.columns[:2], column(4, "price", Kind.DECIMAL, precision=14, scale=2)))
    stream.alter(v2)
    stream.update(id=2, note=None, price=Decimal("123456789012.00"), unchanged=[2])
    apply(replica, replica.destination(), stream)
    assert (replica.rows()[1]["note"], replica.rows()[1]["price"]) == ("item 2", Decimal("123456789012.00"))
    assert replica.columns() == [("id", "bigint"), ("note", "text"), ("price", "numeric(14,2)")]


@pytest.mark.parametrize(
    "columns",
    [
        (column(1, "id", Kind.INT8), column(2, "item", Kind.INT4), column(3, "note", Kind.TEXT)),
        (*ORDERS.columns, column(4, "made", Kind.TEXT, rewritten=True)),
    ],
    ids=["type", "computed default"],
)
def test_a_change_that_cannot_be_followed_parks_the_table(replica: Replica, columns: Any) -> None:
    """Nothing is written, the error says how to go on, and the table stays as it was."""
    destination = replica.destination()
    stream = copy(replica, destination)
    before = replica.rows()
    stream.alter(replace(ORDERS, columns=columns))
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "schema_change_unsupported"
    assert caught.value.hint
    assert replica.rows() == before
    assert destination.applied(ORDERS.id) == replica.mark(1000)


def test_policies_of_schema_changes(replica: Replica) -> None:
    """Fail names the change and parks. Ignore leaves new columns out, and dropped ones become NULL."""
    stream = copy(replica, replica.destination())
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns[:2], column(4, "note", Kind.INT4, missing_value="1"))))
    stream.insert(id=4, item="d", note=5)
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        replica.destination(on_schema_change=OnSchemaChange.FAIL).write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "schema_change_refused"
    replica.destination(on_schema_change=OnSchemaChange.IGNORE).write_events(batch, replica.mark(batch.until))
    assert replica.rows()[3]["note"] is None
    assert [n for n, _ in replica.columns()] == ["id", "item", "note"]


def test_a_dropped_column_that_a_view_needs_parks_the_table(replica: Replica) -> None:
    """A view is never dropped. The error names the object, and a retry after the view's end goes on."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute("CREATE VIEW notes AS SELECT note FROM shop_public.orders")
    stream.alter(replace(ORDERS, columns=ORDERS.columns[:2]))
    stream.insert(id=4, item="d")
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "destination_dependents"
    replica.db.execute("DROP VIEW notes")
    destination.write_events(batch, replica.mark(batch.until))
    assert replica.columns() == [("id", "bigint"), ("item", "text")]


def test_another_key_needs_a_new_copy(replica: Replica) -> None:
    """A changed key parks the table, and a copy then replaces the table."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.alter(replace(ORDERS, key=(2,), identity_attnums=(2,)))
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "key_changed"
    destination.drop_table_for_copy(TableTarget.of(stream.schema), 1)
    stream = copy(replica, destination, stream.schema)
    stream.update(id=30, item="item 3", note="n")
    apply(replica, destination, stream)
    assert replica.items() == {1: "item 1", 2: "item 2", 30: "item 3"}


def test_a_table_of_others_is_never_touched(replica: Replica) -> None:
    """A user's table, another pipeline's, another source's and another source table's table stay as they are."""
    replica.db.execute("CREATE SCHEMA shop_public", "CREATE TABLE shop_public.mine (a int)")
    mine = table(column(1, "id", Kind.INT8), id=7, name="public.mine")
    destination = replica.destination()
    copy(replica, destination)
    others: list[tuple[PostgresDestination, ReplicatedTableSchema, str]] = [
        (destination, mine, "table_not_ours"),
        (replica.destination(pipeline="other"), ORDERS, "table_not_ours"),
        (replica.destination(namespace="team"), ORDERS, "table_not_ours"),
        (destination, replace(ORDERS, id=TableId(99)), "destination_collision"),
    ]
    for who, schema, code in others:
        for call in (
            lambda w=who, s=schema: w.check_place(TableTarget.of(s)),
            lambda w=who, s=schema: w.drop_table_for_copy(TableTarget.of(s), 1),
            lambda w=who, s=schema: w.drop_table_for_copy(TableTarget.of(s)),
            lambda w=who, s=schema: w.write_table_rows(TableTarget.of(s), MemoryRows(s), replica.mark(1000)),
        ):
            with pytest.raises(DestinationChanged) as caught:
                call()
            assert caught.value.code == code
    assert replica.columns("mine") == [("a", "integer")]
    assert len(replica.rows()) == 3


def test_a_renamed_pipeline_keeps_its_tables(replica: Replica) -> None:
    """The pipeline owns the tables of its former owners, and its new name is recorded with the next change."""
    stream = copy(replica, replica.destination())
    stream.insert(id=4, item="d", note=None)
    apply(replica, replica.destination(pipeline="bills", former_names=lambda: ["shop"]), stream)
    assert replica.db.query("SELECT pipeline FROM levada.destination_tables") == [("bills",)]
    with pytest.raises(DestinationChanged):
        replica.destination().check_place(TableTarget.of(ORDERS))


def test_views_privileges_and_foreign_keys_outlast_a_resync(replica: Replica) -> None:
    """A resync changes only the rows that differ, and neither the table nor what depends on it."""
    destination = replica.destination()
    copy(replica, destination)
    replica.db.execute(
        "CREATE VIEW seen AS SELECT id, item FROM shop_public.orders",
        "CREATE TABLE refs (id bigint REFERENCES shop_public.orders DEFERRABLE)",
        "INSERT INTO refs VALUES (1)",
        "GRANT SELECT ON shop_public.orders TO PUBLIC",
        "CREATE INDEX by_item ON shop_public.orders (item)",
    )
    before = replica.db.query(
        "SELECT 'shop_public.orders'::regclass::oid, xmin, relacl FROM pg_class WHERE relname = 'orders'"
    )
    untouched = replica.db.query("SELECT xmin::text FROM shop_public.orders WHERE id = 1")
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    assert destination.applied(ORDERS.id) is None
    assert len(replica.rows()) == 3, "the old rows serve until the copy is complete"
    rows = [{"id": 1, "item": "item 1", "note": "x" * 100}, {"id": 2, "item": "changed", "note": None}]
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, rows), replica.mark(2000))
    assert replica.items() == {1: "item 1", 2: "changed"}
    assert replica.db.query("SELECT count(*) FROM seen") == [(2,)]
    assert replica.db.query("SELECT xmin::text FROM shop_public.orders WHERE id = 1") == untouched
    after = replica.db.query(
        "SELECT 'shop_public.orders'::regclass::oid, xmin, relacl FROM pg_class WHERE relname = 'orders'"
    )
    assert after[0][0] == before[0][0]
    assert after[0][2] == before[0][2]
    assert replica.db.query("SELECT count(*) FROM pg_class WHERE starts_with(relname, '_levada_')") == [(0,)]


def test_a_replacement_while_changes_go_on(replica: Replica) -> None:
    """A shadow copy takes changes, the table serves others meanwhile, and one commit replaces its rows."""
    destination = replica.destination()
    stream = copy(replica, destination)
    target = TableTarget.of(ORDERS)
    assert destination.copy_replacement(
        target, MemoryRows(ORDERS, [{"id": 1, "item": "c1", "note": "n"}]), replica.mark(1000)
    )
    stream.insert(id=4, item="d", note=None)
    apply(replica, destination, stream)
    assert list(replica.items()) == [1, 2, 3, 4]
    batch = stream.batch(since=1000)
    assert destination.write_replacement_events(batch, replica.mark(batch.until))
    assert destination.write_replacement_events(batch, replica.mark(batch.until))
    assert destination.swap_replacement(ORDERS.id, replica.mark(batch.until))
    assert replica.items() == {1: "c1", 4: "d"}
    assert not destination.swap_replacement(ORDERS.id, replica.mark(batch.until))
    destination.drop_replacement(ORDERS.id)
    assert destination.applied(ORDERS.id) == replica.mark(batch.until)
    assert destination.copy_replacement(target, MemoryRows(ORDERS), replica.mark(3000))
    destination.drop_replacement(ORDERS.id)
    assert replica.items() == {1: "c1", 4: "d"}
    assert replica.db.query("SELECT count(*) FROM levada.destination_copies") == [(0,)]


class TwiceRows(MemoryRows):
    """Rows of which each partition is written twice, as when the result of a Spark task is lost."""

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
        lost = [fn(self._reader(p)) for p in self._partitions]
        assert lost
        return super().map_partitions(fn)


def test_a_partition_that_is_written_twice_counts_once(replica: Replica) -> None:
    """Rows of a task whose result was lost are removed, and later ones cannot be committed."""
    destination = replica.destination()
    rows = [{"id": i, "item": "i", "note": None} for i in range(10)]
    destination.write_table_rows(TableTarget.of(ORDERS), TwiceRows(ORDERS, rows[:5], rows[5:]), replica.mark(1000))
    assert len(replica.rows()) == 10

    late: list[Any] = []

    class LateRows(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            late.append(fn)
            return super().map_partitions(fn)

    changelog = TableTarget.of(replace(ORDERS, key=(), id=TableId(8), name=QualifiedTable("public", "log")))
    destination.write_table_rows(changelog, LateRows(changelog.schema, rows), replica.mark(1000))
    with pytest.raises((Transient, NeedsOperator)):
        late[0](pa.RecordBatchReader.from_batches(ORDERS.arrow, [pa.RecordBatch.from_pylist(rows, ORDERS.arrow)]))
    assert len(replica.rows("log")) == 10


def test_a_failed_copy_leaves_the_table_as_it_was(replica: Replica) -> None:
    """An error in the middle of a copy changes nothing that is read, and leaves no shadow copy."""
    destination = replica.destination()
    copy(replica, destination)

    class BrokenRows(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            super().map_partitions(fn)
            raise Transient("source_unreachable", "gone")

    with pytest.raises(Transient) as caught:
        destination.write_table_rows(
            TableTarget.of(ORDERS), BrokenRows(ORDERS, [{"id": 7, "item": "i", "note": None}]), replica.mark(2000)
        )
    assert caught.value.code == "source_unreachable"
    assert len(replica.rows()) == 3
    assert replica.db.query("SELECT count(*) FROM pg_class WHERE starts_with(relname, '_levada_')") == [(0,)]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("DROP TABLE shop_public.orders", "destination_table_missing"),
        ("ALTER TABLE shop_public.orders RENAME TO other", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders SET SCHEMA public", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders DROP COLUMN note", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders ALTER note TYPE varchar(3) USING 'a'", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders DROP CONSTRAINT orders_pkey", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders DISABLE TRIGGER ALL", "foreign_write"),
        ("DROP TRIGGER levada_guard ON shop_public.orders", "foreign_write"),
        ("CREATE RULE kept AS ON DELETE TO shop_public.orders DO INSTEAD NOTHING", "foreign_schema_change"),
        (
            "CREATE TABLE all_orders (LIKE shop_public.orders) PARTITION BY RANGE (id);"
            " ALTER TABLE all_orders ATTACH PARTITION shop_public.orders DEFAULT; UPDATE all_orders SET item = 'x'",
            "foreign_schema_change",
        ),
        ("UPDATE levada.destination_tables SET lsn = '0/10'", "table_rolled_back"),
        ("DELETE FROM levada.destination_tables", "destination_table_missing"),
    ],
)
def test_a_change_by_another_session_parks_the_table(replica: Replica, statement: LiteralString, code: str) -> None:
    """Whatever another session does to table or state, a batch is refused, and a new copy repairs it."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute(statement)
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    with pytest.raises(DestinationChanged) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == code
    assert caught.value.hint
    if code == "destination_table_missing" and statement.startswith("DELETE"):
        with pytest.raises(DestinationChanged) as caught:
            destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
        assert caught.value.code == "table_not_ours"
        return
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    copy(replica, destination, n=2)
    assert replica.items() == {1: "item 1", 2: "item 2"}
    assert replica.destination().applied(ORDERS.id) == replica.mark(1000)
    if "RENAME TO other" in statement:
        assert len(replica.rows("other")) == 3, "a table that a user moved away is left alone"


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO shop_public.orders VALUES (9)",
        "UPDATE shop_public.orders SET item = 'x'",
        "DELETE FROM shop_public.orders",
        "TRUNCATE shop_public.orders",
        "SET session_replication_role = replica; DELETE FROM shop_public.orders",
    ],
)
def test_other_sessions_cannot_write_the_table(replica: Replica, statement: LiteralString) -> None:
    """A table of ours is read-only for others, even for its owner, and the error names Levada."""
    copy(replica, replica.destination())
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="written by Levada"):
        replica.db.execute(statement)
    assert len(replica.rows()) == 3


def test_a_user_may_add_columns_and_indexes(replica: Replica) -> None:
    """A user's columns, indexes and privileges are no reason to park, and keep their values."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute(
        "ALTER TABLE shop_public.orders ADD words tsvector GENERATED ALWAYS AS (to_tsvector('simple', item)) STORED",
        "CREATE INDEX ON shop_public.orders USING gin (words)",
    )
    stream.insert(id=4, item="red shoe", note=None)
    stream.update(id=1, item="blue shoe", note="n")
    apply(replica, destination, stream)
    assert replica.db.query("SELECT count(*) FROM shop_public.orders WHERE words @@ 'shoe'") == [(2,)]


def test_a_changelog_has_every_change(replica: Replica) -> None:
    """A table without a key gets a row for each change, once, with its operation, LSN and ordinal."""
    log = replace(ORDERS, key=(), identity_attnums=())
    destination = replica.destination()
    stream = copy(replica, destination, log, n=1)
    stream.insert(id=2, item="b", note="n")
    stream.update(id=2, item="B", note=None, unchanged=[3])
    stream.delete(id=2)
    stream.truncate()
    apply(replica, destination, stream)
    again = stream.batch(since=1000)
    destination.write_events(again, replica.mark(again.until))
    with replica.db.connect() as connection:
        found = connection.execute(
            "SELECT _levada_op, id, item, _levada_commit_lsn, _levada_ordinal, _levada_unchanged"
            " FROM shop_public.orders ORDER BY _levada_commit_lsn"
        ).fetchall()
    assert found == [
        ("I", 1, "item 1", 1000, None, None),
        ("I", 2, "b", 1010, 0, None),
        ("U", 2, "B", 1020, 0, ["note"]),
        ("D", 2, None, 1030, 0, None),
        ("T", None, None, 1040, 0, None),
    ]


def test_a_table_that_gets_another_name_moves(replica: Replica) -> None:
    """A copy to another name serves under that name, and the table of the old name is gone."""
    destination = replica.destination()
    copy(replica, destination)
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    target = QualifiedTable("public", "bills")
    destination.drop_table_for_copy(TableTarget.of(ORDERS, name=target), 1)
    stream = copy(replica, destination, name=target)
    assert len(replica.rows("bills")) == 3
    assert replica.db.query("SELECT to_regclass('shop_public.orders')") == [(None,)]
    destination.drop_table_for_copy(TableTarget.of(ORDERS, name=target))
    assert replica.db.query("SELECT to_regclass('shop_public.bills')") == [(None,)]
    assert stream is not None


@pytest.mark.parametrize("name", ["a" * 64, "é" * 32, "_levada_x"])
def test_names_that_the_server_would_cut_are_refused(replica: Replica, name: str) -> None:
    """A name of more than 63 bytes, or one of Levada's own, is refused before anything is written."""
    with pytest.raises(NeedsOperator) as caught:
        replica.destination().target_name(ORDERS.name, QualifiedTable("public", name))
    assert caught.value.code == "destination_name_unusable"


def test_odd_names(replica: Replica) -> None:
    """Quotes, dots, spaces, percent signs and upper case in names of schemas, tables and columns are kept."""
    odd = 'We"ird. %s {x} \\ Täble'
    schema = table(column(1, 'I"d %s', Kind.INT8), column(2, "%(a)s {}", Kind.TEXT), name="public.x")
    destination = replica.destination({"schema": 'S"c %s{schema}'})
    target = TableTarget.of(schema, name=QualifiedTable("A b", odd))
    destination.write_table_rows(target, MemoryRows(schema, [{'I"d %s': 1, "%(a)s {}": "v"}]), replica.mark(1000))
    place = replica.db.query("SELECT schema_name, table_name FROM levada.destination_tables")
    assert place == [('S"c %sA b', odd)]
    stream = Stream(schema)
    stream.update(**{'I"d %s': 1, "%(a)s {}": None}, unchanged=[2])
    stream.insert(**{'I"d %s': 2, "%(a)s {}": "w"})
    batch = stream.batch()
    batch.changes(schema.id).target = target
    destination.write_events(batch, replica.mark(batch.until))
    with replica.db.connect() as connection:
        query = psycopg.sql.SQL("SELECT * FROM {} ORDER BY 1").format(psycopg.sql.Identifier('S"c %sA b', odd))
        assert connection.execute(query).fetchall() == [(1, "v"), (2, "w")]


def test_the_ordering_is_a_setting(replica: Replica) -> None:
    """The setting chooses one transaction for each table, or one for all."""
    assert replica.destination().capabilities.ordering is Ordering.TABLE
    assert replica.destination({"ordering": "Pipeline"}).capabilities.ordering is Ordering.PIPELINE


def test_a_wrong_password_is_retried_and_a_missing_server_is_transient(replica: Replica, tmp_path: Path) -> None:
    """The class of the error is the retry policy, and the message never has the password."""
    replica.db.execute("CREATE ROLE secret_writer LOGIN PASSWORD 'right'")
    try:
        (tmp_path / "username").write_text("secret_writer")
        (tmp_path / "password").write_text("wrong")
        destination = replica.destination(credentials=tmp_path)
        with pytest.raises(LoginFailed) as caught:
            destination.startup()
        assert caught.value.code == "destination_auth_failed"
        (tmp_path / "password").write_text("right")
        with pytest.raises(NeedsOperator) as refused:
            destination.startup()
        assert refused.value.code == "destination_privilege_missing"
        replica.db.execute(f"GRANT CREATE ON DATABASE {replica.db.name} TO secret_writer")
        destination.startup()
        copy(replica, destination)
    finally:
        replica.db.execute("DROP OWNED BY secret_writer CASCADE", "DROP ROLE secret_writer")
    with pytest.raises(Transient) as away:
        replica.destination({"port": 1}).startup()
    assert away.value.code == "destination_unreachable"


def test_a_connection_that_ends_is_opened_again(replica: Replica) -> None:
    """After the server ended the connections, a batch fails as Transient at most once, and then applies."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'levada:%%'")
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    try:
        destination.write_events(batch, replica.mark(batch.until))
    except Transient:
        destination.write_events(batch, replica.mark(batch.until))
    assert list(replica.items()) == [1, 2, 3, 4]


def test_foreign_keys_between_tables_hold(replica: Replica) -> None:
    """With the ordering Pipeline, parents and children change in one transaction, in whatever order they come."""
    lines = table(column(1, "id", Kind.INT8), column(2, "order_id", Kind.INT8), id=16300, name="public.lines")
    destination = replica.destination({"ordering": "Pipeline"})
    source = Source(row_group_bytes=1, lsn=1000)
    parents, children = source.add(ORDERS), source.add(lines)
    rows = [{"id": i, "item": f"item {i}", "note": None} for i in (1, 2)]
    destination.write_table_rows(parents.target, MemoryRows(ORDERS, rows), replica.mark(1000))
    destination.write_table_rows(children.target, MemoryRows(lines, [{"id": 1, "order_id": 1}]), replica.mark(1000))
    replica.db.execute(
        "ALTER TABLE shop_public.lines ADD FOREIGN KEY (order_id) REFERENCES shop_public.orders DEFERRABLE"
    )
    parents.insert(id=3, item="c", note=None)
    children.insert(id=2, order_id=3)
    children.delete(id=1)
    parents.delete(id=1)
    batch = source.batch(parents, children)
    destination.write_events(batch, replica.mark(batch.until))
    assert list(replica.items()) == [2, 3]
    assert replica.rows("lines") == [{"id": 2, "order_id": 3}]
    assert {destination.applied(t) for t in (ORDERS.id, lines.id)} == {replica.mark(batch.until)}
    children.insert(id=9, order_id=77)
    batch = source.batch(parents, children)
    with pytest.raises(Transient) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "destination_foreign_key"
    replica.db.execute(
        "ALTER TABLE shop_public.lines ADD FOREIGN KEY (order_id) REFERENCES shop_public.orders ON DELETE CASCADE"
    )
    with pytest.raises(DestinationChanged) as changed:
        destination.write_events(batch, replica.mark(batch.until))
    assert changed.value.code == "destination_cascade"


def test_a_table_is_never_replicated_into_itself(replica: Replica) -> None:
    """In the source database, a table of the same name and a table that a pipeline writes are refused."""
    destination = replica.destination({"schema": "{schema}"}, source=SourceIdentity(replica.db.connection))
    with pytest.raises(NeedsOperator) as caught:
        destination.check_place(TableTarget.of(ORDERS))
    assert caught.value.code == "destination_is_source"
    elsewhere = replica.destination(source=SourceIdentity(replica.db.connection))
    copy(replica, elsewhere)
    written = replace(ORDERS, id=TableId(77), name=QualifiedTable("shop_public", "orders"))
    with pytest.raises(NeedsOperator) as caught:
        elsewhere.write_table_rows(TableTarget.of(written), MemoryRows(written), replica.mark(1000))
    assert caught.value.code == "destination_is_source"


def test_nothing_of_a_value_is_in_an_error(replica: Replica) -> None:
    """A value that the server refuses parks the table, and its text is in neither the message nor the cause."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute("ALTER TABLE shop_public.orders ADD CHECK (item <> 'secret')")
    stream.insert(id=4, item="secret", note=None)
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "destination_constraint"
    assert "secret" not in str(caught.value)
    odd = table(
        column(1, "id", Kind.INT8),
        Column(2, "span", ColumnType(Kind.TEXT), type_name="int4range", type_oid=3904),
        id=5,
        name="public.odd",
    )
    with pytest.raises(NeedsOperator) as caught:
        destination.write_table_rows(
            TableTarget.of(odd), MemoryRows(odd, [{"id": 1, "span": "top secret"}]), replica.mark(1000)
        )
    assert caught.value.code == "destination_value_refused"
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_check_writes_nothing(replica: Replica) -> None:
    """What `levada check` calls leaves an empty database as it is."""
    destination = replica.destination(only_checks=True)
    destination.startup()
    destination.check()
    assert replica.db.query("SELECT count(*) FROM pg_namespace WHERE nspname IN ('levada', 'shop_public')") == [(0,)]
    destination.shutdown()


def test_tables_of_the_same_types_in_one_transaction(replica: Replica) -> None:
    """Tables whose columns have the same types share temporary tables, and get none of each other's rows."""
    destination = replica.destination({"ordering": "Pipeline"})
    source = Source(row_group_bytes=1, lsn=1000)
    tables = [
        source.add(replace(ORDERS, id=TableId(500 + i), name=QualifiedTable("public", f"t{i}"))) for i in range(3)
    ]
    for each in tables:
        destination.write_table_rows(
            each.target, MemoryRows(each.schema, [{"id": 1, "item": "one", "note": "n"}]), replica.mark(1000)
        )
    for i, each in enumerate(tables):
        each.update(id=1, item=f"of {i}", note=None, unchanged=[3])
        each.insert(id=10 + i, item="new", note=None)
        each.insert(id=20 + i, item="gone", note=None)
        each.delete(id=20 + i)
    batch = source.batch(*tables)
    destination.write_events(batch, replica.mark(batch.until))
    for i, name in enumerate(("t0", "t1", "t2")):
        assert [tuple(r.values()) for r in replica.rows(name)] == [(1, f"of {i}", "n"), (10 + i, "new", None)]


@pytest.mark.parametrize(
    ("type_name", "oid", "kind", "before", "after"),
    [
        ("numeric", 1700, Kind.TEXT, "1.0", "1.00"),
        ("interval", 1186, Kind.TEXT, "1 day", "24:00:00"),
        ("jsonb", 3802, Kind.JSON, "1.0", "1.00"),
        ("double precision", 701, Kind.FLOAT8, -0.0, 0.0),
    ],
)
def test_equal_keys_with_other_texts(
    replica: Replica, type_name: str, oid: int, kind: Kind, before: Any, after: Any
) -> None:
    """A key that becomes an equal one with another text, such as 1.00 for 1.0, is changed by batches and copies."""
    key = replace(column(1, "k", kind), type_name=type_name, type_oid=oid)
    schema = replace(table(key, column(2, "v", Kind.TEXT)), name=QualifiedTable("public", "orders"))
    target, destination = TableTarget.of(schema), replica.destination()
    query = "SELECT k::text, v FROM shop_public.orders"
    destination.write_table_rows(target, MemoryRows(schema, [{"k": before, "v": "a"}]), replica.mark(1000))
    (old,) = replica.db.query(query)
    stream = Stream(schema)
    stream.update(old={"k": before}, k=after, v="b")
    apply(replica, destination, stream)
    (new,) = replica.db.query(query)
    assert new[0] != old[0]
    assert new[1] == "b"
    destination.drop_table_for_copy(target, 1)
    destination.write_table_rows(target, MemoryRows(schema, [{"k": before, "v": "b"}]), replica.mark(9000))
    assert replica.db.query(query) == [(old[0], "b")]


def test_a_resync_does_not_wait_for_readers(replica: Replica) -> None:
    """A transaction that has read the table, and stays open, does not delay the new rows, nor the guard's repair."""
    destination = replica.destination()
    copy(replica, destination)
    replica.db.execute("ALTER TABLE shop_public.orders DISABLE TRIGGER ALL")
    with replica.db.connect() as reader, reader.transaction():
        reader.execute("SELECT FROM shop_public.orders")
        copy(replica, destination, n=2, lsn=2000)
        assert reader.execute("SELECT count(*) FROM shop_public.orders").fetchone() == (2,)
    assert replica.destination().applied(ORDERS.id) == replica.mark(2000)


def test_surplus_rows_in_a_schema_with_percent_signs(replica: Replica) -> None:
    """Rows of a partition that was written twice are removed, whatever the schema's name is."""
    destination = replica.destination({"schema": "100%s %d {schema}"})
    rows = [{"id": i, "item": "i", "note": None} for i in range(10)]
    destination.write_table_rows(TableTarget.of(ORDERS), TwiceRows(ORDERS, rows), replica.mark(1000))
    assert replica.db.query('SELECT count(*) FROM "100%%s %%d public".orders') == [(10,)]


def test_rows_of_a_table_that_inherits_are_not_truncated(replica: Replica) -> None:
    """A user's table that inherits from ours keeps its rows, and ours is parked."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute("CREATE TABLE heir () INHERITS (shop_public.orders)", "INSERT INTO heir VALUES (9)")
    stream.truncate()
    batch = stream.batch()
    with pytest.raises(DestinationChanged) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "foreign_schema_change"
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    with pytest.raises(NeedsOperator) as refused:
        copy(replica, destination, lsn=2000)
    assert refused.value.code == "destination_dependents"
    assert replica.db.query("SELECT id FROM heir") == [(9,)]


def test_settings_of_roles_and_poolers_do_not_change_values(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler that ignores the connection's options, and defaults of the database, leave every value as it is."""
    monkeypatch.setattr("levada.postgres.connection.SESSION_OPTIONS", "")
    for setting in ("timezone = 'Asia/Tokyo'", "array_nulls = off", "intervalstyle = sql_standard"):
        replica.db.execute(f"ALTER DATABASE {replica.db.name} SET {setting}")
    texts = ColumnType(Kind.ARRAY, element=ColumnType(Kind.TEXT))
    tags = replace(column(4, "tags", Kind.TEXT), type=texts, type_name="text[]", type_oid=1009)
    spans = replace(column(3, "span", Kind.TEXT), type_name="interval", type_oid=1186)
    schema = table(column(1, "id", Kind.INT8), column(2, "at", Kind.TIMESTAMPTZ), spans, tags)
    row = {"id": 1, "at": datetime(2020, 1, 1, tzinfo=UTC), "span": "-1 days +02:03:00", "tags": [None, "a"]}
    destination = replica.destination()
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, [row]), replica.mark(1000))
    stream = Stream(schema)
    stream.insert(**{**row, "id": 2})
    apply(replica, destination, stream)
    query = f"SELECT at, extract(epoch FROM span), tags FROM shop_public.{schema.name.name}"
    assert replica.db.query(query) == [(row["at"], Decimal(-79_020), row["tags"])] * 2


def test_an_old_driver_does_not_drop_the_copy_of_a_newer_one(replica: Replica) -> None:
    """A driver that wakes up and cleans up after its failed copy leaves the newer driver's unfinished copy alone."""
    old, new = replica.destination(), replica.destination()
    copy(replica, old)

    class Interrupted(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            with pytest.raises(StaleEpoch):
                old.drop_replacement(ORDERS.id)
            return super().map_partitions(fn)

    rows = Interrupted(ORDERS, [{"id": 1, "item": "new", "note": None}])
    assert new.copy_replacement(TableTarget.of(ORDERS), rows, replica.mark(2000, epoch=2))
    assert new.swap_replacement(ORDERS.id, replica.mark(2000, epoch=2))
    assert replica.items() == {1: "new"}


def test_a_lost_answer_to_a_commit_changes_nothing_twice(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of a shadow copy whose commit was not answered come again, and are not written again."""
    destination = replica.destination()
    target = TableTarget.of(ORDERS, TableMode.CHANGELOG)
    stream = copy(replica, destination, mode=TableMode.CHANGELOG)
    assert destination.copy_replacement(target, MemoryRows(ORDERS), replica.mark(1000))
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    answered = destination._connections.transaction

    @contextmanager
    def lost(doing: str) -> Iterator[Any]:
        with answered(doing) as connection:
            yield connection
        raise Transient("destination_unreachable", "the answer was lost")

    calls: list[Callable[[], bool]] = [
        lambda: destination.write_replacement_events(batch, replica.mark(batch.until)),
        lambda: destination.swap_replacement(ORDERS.id, replica.mark(batch.until)),
    ]
    for call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(destination._connections, "transaction", lost)
            with pytest.raises(Transient):
                call()
        again = call()
    assert again is False, "the resync starts again, because there is no shadow copy any more"
    assert [r["id"] for r in replica.rows()] == [4]


def test_temporary_tables_of_other_tables_are_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with few locks takes batches of any number of tables, each with columns of its own."""
    monkeypatch.setenv("PGUSER", "postgres")
    few = {"max_locks_per_transaction": "10", "max_connections": "10", "max_worker_processes": "0"}
    with temporary_postgres(settings=few) as server:
        replica = Replica(Database(server, "postgres"), DestinationContext("shop", tmp_path))
        destination = replica.destination()
        for number in range(1, 301):
            item = replace(column(2, "item", Kind.TEXT), type_name=f"character varying({number})", type_oid=1043)
            name = QualifiedTable("public", f"t{number}")
            schema = replace(table(column(1, "id", Kind.INT8), item), id=TableId(number), name=name)
            rows = MemoryRows(schema, [{"id": 1, "item": "a"}])
            destination.write_table_rows(TableTarget.of(schema), rows, replica.mark(1000))
            stream = Stream(schema)
            stream.update(old={"id": 1}, id=2, item=None, unchanged=[2])
            apply(replica, destination, stream)
