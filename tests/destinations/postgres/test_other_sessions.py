"""Other sessions at the same tables of PostgreSQL: users, other pipelines, the source itself and older drivers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.postgres.replica import ORDERS, Replica, apply, copy

from levada.destinations.postgres import PostgresDestination
from levada.errors import DestinationChanged, NeedsOperator, StaleEpoch, Transient
from levada.postgres.identity import SourceIdentity
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.testing import column, table
from levada.values import QualifiedTable, TableId


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


@pytest.mark.parametrize(
    ("statements", "message", "solution"),
    [
        (
            ("CREATE SCHEMA levada AUTHORIZATION plain_role",),
            "schema levada of the destination's state belongs to role plain_role",
            "ALTER SCHEMA",
        ),
        (
            ("CREATE SCHEMA levada", "GRANT CREATE ON SCHEMA levada TO PUBLIC"),
            "every role may create tables in schema levada of the destination's state",
            'REVOKE CREATE ON SCHEMA "levada" FROM PUBLIC',
        ),
    ],
)
def test_a_state_that_another_role_could_change(
    replica: Replica,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
    statements: tuple[LiteralString, ...],
    message: str,
    solution: str,
) -> None:
    """The destination keeps no state in such a schema. The hint has the SQL, and the setting of another schema."""
    replica.db.execute(*statements)
    if "AUTHORIZATION" in statements[0]:
        # A superuser trusts every owner.
        replica.db.execute("CREATE ROLE replicator LOGIN")
        replica.db.execute(f"GRANT CREATE ON DATABASE {replica.db.name} TO replicator")
        monkeypatch.setenv("PGUSER", "replicator")
    try:
        with pytest.raises(NeedsOperator) as refused:
            copy(replica, replica.destination())
        assert refused.value.code == "destination_schema_foreign"
        assert refused.value.message == message
        assert solution in refused.value.hint
        assert refused.value.hint.endswith("; or set another stateSchema in the destination's settings")
    finally:
        if "AUTHORIZATION" in statements[0]:
            replica.db.execute("DROP OWNED BY replicator", "DROP ROLE replicator")


def test_a_copy_is_overtaken_by_another_one(replica: Replica) -> None:
    """The driver whose shadow copy was replaced writes nothing more, and its table stays. A retry copies again."""
    old, new = replica.destination(), replica.destination()
    copy(replica, old)

    class Overtaken(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            assert new.copy_replacement(TableTarget.of(ORDERS), MemoryRows(ORDERS), replica.mark(2000))
            return super().map_partitions(fn)

    rows = Overtaken(ORDERS, [{"id": 1, "item": "old", "note": None}])
    with pytest.raises(Transient) as lost:
        old.copy_replacement(TableTarget.of(ORDERS), rows, replica.mark(2000))
    assert lost.value.code == "shadow_copy_lost", lost.value
    assert "another copy of the table began" in lost.value.message
    assert len(replica.items()) == 3


def test_a_copy_whose_state_was_removed(replica: Replica) -> None:
    """Another session removed the record of what was written, so the copy may lack rows and starts again."""
    destination = replica.destination()
    copy(replica, destination)

    class Forgotten(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            done = super().map_partitions(fn)
            replica.db.execute("TRUNCATE levada.destination_copy_parts")
            return done

    rows = Forgotten(ORDERS, [{"id": 1, "item": "new", "note": None}])
    with pytest.raises(Transient) as lost:
        destination.copy_replacement(TableTarget.of(ORDERS), rows, replica.mark(2000))
    assert lost.value.code == "shadow_copy_lost"
    assert "the state of the destination no longer has 1 part of the copy shop_public." in lost.value.message
    assert len(replica.items()) == 3


@pytest.mark.parametrize("change", ["alter", "truncate"])
def test_no_reader_waits_behind_a_change(replica: Replica, caplog: pytest.LogCaptureFixture, change: str) -> None:
    """While a session sits in a transaction after a SELECT, others read the table. The change comes when it leaves."""
    caplog.set_level("INFO")
    destination = replica.destination()
    stream = copy(replica, destination)
    if change == "truncate":
        stream.truncate()
    else:
        stream.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "n", Kind.INT4, missing_value="7"))))
    stream.insert(id=4, item="d", note=None)
    with ThreadPoolExecutor(1) as pool, replica.db.connect() as reader, replica.db.connect() as others:
        # Less than a session waits for a lock by default, and much more than a read takes.
        others.execute("SET statement_timeout = '5s'")
        with reader.transaction():
            reader.execute("SELECT FROM shop_public.orders")
            applied = pool.submit(apply, replica, destination, stream)
            while sum("uses shop_public.orders" in r.message for r in caplog.records) < 2:
                assert not applied.done()
                assert others.execute("SELECT count(*) FROM shop_public.orders").fetchone() == (3,)
        applied.result()
    assert list(replica.items()) == ([4] if change == "truncate" else [1, 2, 3, 4])


def test_settings_of_the_database(replica: Replica) -> None:
    """Nothing that a database's owner may set changes what is compared, or what is written."""
    kinds = table(
        column(1, "id", Kind.INT8),
        column(2, "at", Kind.TIMESTAMPTZ),
        column(3, "b", Kind.BYTEA),
        column(4, "j", Kind.JSON),
        column(5, "f", Kind.FLOAT8),
        column(6, "t", Kind.TEXT),
        column(7, "u", Kind.UUID),
        id=17500,
        name="public.kinds",
    )
    settings = {
        "quote_all_identifiers": "on",
        "transform_null_equals": "on",
        "standard_conforming_strings": "off",
        "bytea_output": "escape",
        "extra_float_digits": "-15",
        "default_transaction_isolation": "serializable",
        "array_nulls": "off",
        "xmloption": "document",
        "search_path": "nowhere",
        "default_transaction_read_only": "on",
    }
    for name, value in settings.items():
        replica.db.execute(f"ALTER DATABASE {replica.db.name} SET {name} = {value}")  # type: ignore[arg-type]  # constants
    destination = replica.destination()
    stream = copy(replica, destination)
    second = Stream(kinds)
    destination.write_table_rows(
        second.target, MemoryRows(kinds, [{"id": 1, "t": "a\\b", "f": 0.1}]), replica.mark(1000)
    )
    stream.insert(id=4, item="d\\e'f", note=None)
    second.insert(id=2, b=b"\0\xff", j='{"a": "\\\\"}', f=1 / 3, t="'\\", at=None, u=None)
    for each in (stream, second):
        apply(replica, replica.destination(), each)
    added = replace(ORDERS, columns=(*ORDERS.columns, column(4, "t", Kind.TEXT, missing_value="a\\'")))
    stream.alter(added)
    stream.insert(id=5, item="e", note=None, t=None)
    apply(replica, destination, stream)
    assert destination.applied(ORDERS.id) is not None
    assert replica.items() == {1: "item 1", 2: "item 2", 3: "item 3", 4: "d\\e'f", 5: "e"}
    assert [r["t"] for r in replica.rows()] == ["a\\'"] * 4 + [None]
    found = replica.db.query("SELECT id, f IN (0.1, 1::float8 / 3), t, b FROM shop_public.kinds ORDER BY 1")
    assert found == [
        (1, True, "a\\b", None),
        (2, True, "'\\", b"\0\xff"),
    ]


def test_types_that_were_recorded_with_quotes(replica: Replica) -> None:
    """A table that was made while both sides had quote_all_identifiers is still the same."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.query(
        "UPDATE levada.destination_tables SET columns = replace(columns::text, %s, %s)::json RETURNING columns",
        '"text", {',
        r'"\"text\"", {',
    )
    stream.insert(id=4, item="d", note=None)
    apply(replica, replica.destination(), stream)
    assert list(replica.items()) == [1, 2, 3, 4]
