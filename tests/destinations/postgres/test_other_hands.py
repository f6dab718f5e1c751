"""Actions of users, other tools and stopped drivers on the tables and sessions of the PostgreSQL destination."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.postgres.replica import ORDERS, Replica, TwiceRows, apply, copy
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import LIMIT_S, until

from levada.destinations import DestinationContext
from levada.destinations.postgres import PostgresDestination, destination
from levada.destinations.postgres.apply import apply_table
from levada.errors import AccessDenied, DestinationChanged, LevadaError, NeedsOperator, StaleEpoch, Transient
from levada.schema import Kind, TableTarget
from levada.testing import column, table
from levada.values import TableMode

TARGET = TableTarget.of(ORDERS)
TREE = table(column(1, "id", Kind.INT8), column(2, "boss", Kind.INT8), name="public.orders")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("ALTER TABLE shop_public.orders DROP note, ADD note text", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders ALTER item TYPE text USING upper(item)", "foreign_write"),
        ("ALTER TABLE shop_public.orders SET UNLOGGED", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders ALTER id ADD GENERATED ALWAYS AS IDENTITY", "foreign_schema_change"),
        (
            "ALTER TABLE shop_public.orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
            "foreign_schema_change",
        ),
        (
            'CREATE COLLATION public.ci FROM "C"; UPDATE pg_collation SET collisdeterministic = false'
            " WHERE collname = 'ci'; ALTER TABLE shop_public.orders DROP CONSTRAINT orders_pkey, ALTER id TYPE text;"
            " ALTER TABLE shop_public.orders ALTER id TYPE bigint USING id::bigint, ADD PRIMARY KEY (id)",
            "foreign_write",
        ),
    ],
)
def test_values_that_alter_table_changes(replica: Replica, statement: LiteralString, code: str) -> None:
    """ALTER TABLE fires no trigger. What it does to values, or to what a batch relies on, parks the table."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute(statement)
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    with pytest.raises(DestinationChanged) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == code
    destination.drop_table_for_copy(TARGET, 1)
    copy(replica, destination, n=2)
    assert replica.items() == {1: "item 1", 2: "item 2"}
    assert replica.destination().applied(ORDERS.id) == replica.mark(1000)


def test_keys_that_a_collation_makes_equal(replica: Replica) -> None:
    """A collation by which two of the source's keys are equal would lose one of the rows, so it parks the table."""
    schema = table(column(1, "k", Kind.TEXT), column(2, "v", Kind.TEXT), name="public.orders")
    destination, target = replica.destination(), TableTarget.of(schema)
    destination.write_table_rows(target, MemoryRows(schema, [{"k": "a", "v": "1"}]), replica.mark(1000))
    replica.db.execute(
        'CREATE COLLATION public.ci FROM "C"',
        "ALTER TABLE shop_public.orders ALTER k TYPE text COLLATE public.ci",
        # The build of the tests has no ICU, and only its collations can be created so.
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'ci'",
    )
    stream = Stream(schema)
    stream.insert(k="A", v="2")
    with pytest.raises(DestinationChanged) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "foreign_schema_change"


@pytest.mark.parametrize(
    "statement",
    [
        "VACUUM FULL shop_public.orders",
        "CLUSTER shop_public.orders USING orders_pkey",
        "GRANT SELECT (item) ON shop_public.orders TO PUBLIC",
        "ALTER TABLE shop_public.orders ALTER item SET STATISTICS 10",
        "ALTER TABLE shop_public.orders ADD mine text",
        "VACUUM FREEZE pg_attribute",
    ],
)
def test_what_leaves_values_as_they_are(replica: Replica, statement: LiteralString) -> None:
    """Maintenance, privileges and statistics are no reason to park, nor are Levada's own changes of columns."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute(statement)
    stream.insert(id=4, item="d", note=None)
    apply(replica, destination, stream)
    stream.truncate()
    stream.insert(id=5, item="e", note=None)
    apply(replica, destination, stream)
    stream.insert(id=6, item="f", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {5: "e", 6: "f"}


def test_a_subscription_at_the_destination(replica: Replica) -> None:
    """The worker of a subscription fires no trigger for statements, so a table that it writes too is parked."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute(
        "CREATE SUBSCRIPTION other CONNECTION 'host=127.0.0.1 port=1 dbname=none' PUBLICATION p WITH (connect = false)"
    )
    try:
        replica.db.execute(
            "INSERT INTO pg_subscription_rel SELECT oid, 'shop_public.orders'::regclass, 'r', '0/1'"
            " FROM pg_subscription"
        )
        stream.insert(id=4, item="d", note=None)
        with pytest.raises(DestinationChanged, match="subscription") as caught:
            apply(replica, destination, stream)
        assert caught.value.code == "foreign_write"
        assert "drop the subscription" in caught.value.hint
    finally:
        replica.db.execute("ALTER SUBSCRIPTION other SET (slot_name = NONE)", "DROP SUBSCRIPTION other")


@pytest.mark.parametrize("how", ["DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
def test_rows_that_refer_to_each_other_are_replaced(replica: Replica, how: LiteralString) -> None:
    """A copy of a table with a foreign key to itself replaces its rows, whatever rows are gone."""
    destination, target = replica.destination(), TableTarget.of(TREE)
    rows = [{"id": 1, "boss": None}, {"id": 2, "boss": 1}, {"id": 3, "boss": 2}]
    destination.write_table_rows(target, MemoryRows(TREE, rows), replica.mark(1000))
    replica.db.execute("ALTER TABLE shop_public.orders ADD FOREIGN KEY (boss) REFERENCES shop_public.orders " + how)
    rows = [{"id": 4, "boss": None}, {"id": 2, "boss": 4}, {"id": 3, "boss": 2}]
    destination.drop_table_for_copy(target, 1)
    destination.write_table_rows(target, MemoryRows(TREE, rows), replica.mark(2000))
    assert [r["id"] for r in replica.rows()] == [2, 3, 4]
    rows = [{"id": 5, "boss": None}, {"id": 2, "boss": 5}, {"id": 3, "boss": 2}]
    assert destination.copy_replacement(target, MemoryRows(TREE, rows), replica.mark(3000))
    assert destination.swap_replacement(TREE.id, replica.mark(3000))
    assert [r["id"] for r in replica.rows()] == [2, 3, 5]


@pytest.mark.parametrize("how", ["DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
def test_rows_that_exchange_unique_values_are_replaced(replica: Replica, how: LiteralString) -> None:
    """A copy in which two rows have exchanged their unique values replaces the rows."""
    destination = replica.destination()
    copy(replica, destination)
    replica.db.execute("ALTER TABLE shop_public.orders ADD UNIQUE (item) " + how)
    rows = [{"id": 1, "item": "item 2", "note": None}, {"id": 2, "item": "item 1", "note": None}]
    destination.write_table_rows(TARGET, MemoryRows(ORDERS, rows), replica.mark(2000))
    assert replica.items() == {1: "item 2", 2: "item 1"}


@pytest.mark.parametrize("mode", list(TableMode))
def test_a_publication_of_all_tables(replica: Replica, mode: TableMode) -> None:
    """A destination whose own changes are published takes copies, tasks that run twice, batches and resyncs."""
    replica.db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    destination, target = replica.destination(), TableTarget.of(ORDERS, mode)
    rows = [{"id": i, "item": "i", "note": None} for i in range(10)]
    destination.write_table_rows(target, TwiceRows(ORDERS, rows), replica.mark(1000))
    destination.write_table_rows(target, TwiceRows(ORDERS, rows), replica.mark(1000))
    stream = Stream(ORDERS, mode=mode)
    stream.update(id=1, item="n", note=None)
    stream.delete(id=2)
    stream.truncate()
    stream.insert(id=1, item="n", note=None)
    apply(replica, destination, stream)
    assert destination.copy_replacement(target, TwiceRows(ORDERS, rows), replica.mark(3000))
    assert destination.swap_replacement(ORDERS.id, replica.mark(3000))
    assert len(replica.rows()) == 10
    identity = replica.db.query("SELECT relreplident FROM pg_class WHERE oid = 'shop_public.orders'::regclass")
    assert identity == [("d" if mode is TableMode.UPSERT else "f",)]


class Tasks(MemoryRows):
    """Rows whose tasks wait in their middle until ``proceed`` returns."""

    def __init__(self, proceed: Callable[[], object], *partitions: list[dict[str, Any]]) -> None:
        super().__init__(ORDERS, *partitions)
        self._proceed = proceed

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
        readers = [self._slowly(self._reader(p)) for p in self._partitions]
        return [fn(pa.RecordBatchReader.from_batches(ORDERS.arrow, r)) for r in readers]

    def _slowly(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        yield from rows
        self._proceed()


@pytest.mark.since(17)  # transaction_timeout
def test_a_limit_of_transactions_does_not_end_a_copy(replica: Replica) -> None:
    """A database's transaction_timeout for applications does not count."""
    replica.db.execute(f"ALTER DATABASE {replica.db.name} SET transaction_timeout = '300ms'")
    rows = Tasks(lambda: time.sleep(1), [{"id": 1, "item": "i", "note": None}])
    replica.destination().write_table_rows(TARGET, rows, replica.mark(1000))
    assert replica.items() == {1: "i"}


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_with_another_encoding(replica: Replica, encoding: LiteralString) -> None:
    """A database that cannot hold every text is refused before anything is written."""
    replica.db.execute(f"CREATE DATABASE encoded ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    destination = replica.destination({"database": "encoded"})
    try:
        for call in (destination.startup, destination.check):
            with pytest.raises(NeedsOperator, match=encoding) as caught:
                call()
            assert caught.value.code == "destination_unsupported"
    finally:
        destination.shutdown()
        replica.db.execute("DROP DATABASE encoded WITH (FORCE)")


def test_a_key_that_no_index_takes(replica: Replica) -> None:
    """A key that the destination's index cannot hold names the limit, and what to exclude."""
    schema = table(column(1, "k", Kind.TEXT), name="public.orders")
    key = "".join(chr(33 + n * n * 7919 % 94) + chr(33 + n * 31 % 89) for n in range(9_000))
    with pytest.raises(NeedsOperator) as caught:
        replica.destination().write_table_rows(
            TableTarget.of(schema), MemoryRows(schema, [{"k": key}]), replica.mark(1000)
        )
    assert caught.value.code == "row_too_large"
    assert key[:20] not in str(caught.value)


def accepts(db: Database) -> bool:
    """Return True if the server accepts a session."""
    with suppress(psycopg.OperationalError), db.connect():
        return True
    return False


def test_a_full_table_of_locks(start_postgres: StartPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without free locks is no full disk: the hint has the setting, and the copy is retried."""
    monkeypatch.setenv("PGUSER", "postgres")
    few = {"max_locks_per_transaction": "10", "max_connections": "10", "max_worker_processes": "0"}
    with start_postgres(settings=few) as server:
        replica = Replica(Database(server, "postgres"), DestinationContext("shop", tmp_path))
        destination = replica.destination()
        destination.startup()
        with replica.db.connect() as greedy:
            for number in range(5_000):
                try:
                    greedy.execute("SELECT pg_advisory_lock(%s)", [number])
                except psycopg.errors.OutOfMemory:
                    break
            with pytest.raises(Transient) as caught:
                copy(replica, destination)
        assert caught.value.code == "destination_out_of_memory"
        assert "max_locks_per_transaction" in caught.value.hint
        # The server releases the locks after the client has closed the connection.
        until(lambda: accepts(replica.db))
        copy(replica, destination)


class Stopped:
    """A thread of an old driver that stops in the middle of a call, as by SIGSTOP, until `go_on`."""

    def __init__(self) -> None:
        self._reached, self._go = threading.Event(), threading.Event()
        self.errors: list[LevadaError] = []

    def stop(self) -> None:
        """Wait, in the thread of the old driver."""
        self._reached.set()
        assert self._go.wait(LIMIT_S)

    @contextmanager
    def during(self, call: Callable[[], object]) -> Iterator[None]:
        """Run the block while the call is stopped, and let it go on then."""

        def run() -> None:
            try:
                call()
            except LevadaError as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert self._reached.wait(LIMIT_S)
        try:
            yield
        finally:
            self._go.set()
            thread.join()


@pytest.fixture
def continued(replica: Replica, role: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A role as which the sessions of Levada's login continue. It may not end them."""
    database = replica.db.name
    replica.db.execute(
        "CREATE ROLE replicator LOGIN",
        f"GRANT {role} TO replicator",  # type: ignore[arg-type]  # names of the test
        f"ALTER ROLE replicator IN DATABASE {database} SET role = {role}",  # type: ignore[arg-type]
        f"GRANT CREATE, TEMPORARY ON DATABASE {database} TO {role}",  # type: ignore[arg-type]
    )
    monkeypatch.setenv("PGUSER", "replicator")
    yield role
    replica.db.execute(f"DROP OWNED BY {role}, replicator CASCADE", "DROP ROLE replicator")  # type: ignore[arg-type]


@pytest.mark.parametrize("also", [None, "continued"])
def test_a_stopped_copy_is_taken_over(replica: Replica, also: str | None, request: pytest.FixtureRequest) -> None:
    """A driver that stops in a COPY holds a lock. A newer one copies all the same, and the old one writes nothing.

    So it is where sessions continue as another role.
    """
    if also is not None:
        request.getfixturevalue(also)
    old, new, stopped = replica.destination(), replica.destination(), Stopped()
    rows = Tasks(stopped.stop, [{"id": 1, "item": "old", "note": None}])
    with stopped.during(lambda: old.write_table_rows(TARGET, rows, replica.mark(1000))):
        copy(replica, new, n=2, epoch=2)
    assert isinstance(stopped.errors[0], Transient)
    with pytest.raises(StaleEpoch):
        old.write_table_rows(TARGET, MemoryRows(ORDERS), replica.mark(1000))
    assert replica.items() == {1: "item 1", 2: "item 2"}
    assert replica.db.query("SELECT count(*) FROM pg_class WHERE starts_with(relname, '_levada_')") == [(0,)]


def _replace(new: PostgresDestination, replica: Replica) -> None:
    assert new.copy_replacement(TARGET, MemoryRows(ORDERS), replica.mark(3000, 2))
    assert new.swap_replacement(ORDERS.id, replica.mark(3000, 2))


def test_a_grant_names_the_role_that_lacks_it(replica: Replica, continued: str) -> None:
    """It is the role as which the sessions continue, whatever the login is."""
    copy(replica, replica.destination())
    replica.db.execute("ALTER TABLE shop_public.orders OWNER TO postgres")
    with pytest.raises(AccessDenied) as caught:
        copy(replica, replica.destination(), lsn=3000)
    assert caught.value.hint.endswith(f'OWNER TO "{continued}"')


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("call", "step", "also"),
    [
        *itertools.product(("batch", "copy", "drop", "resync"), ("before", "after"), (None,)),
        ("batch", "after", "continued"),
    ],
)
def test_a_stopped_batch_is_taken_over(
    replica: Replica,
    call: str,
    step: str,
    also: str | None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A driver that stops in a transaction does not keep a newer one from the table, and cannot commit any more."""
    if also is not None:
        request.getfixturevalue(also)
    old, new, stopped = replica.destination(), replica.destination(), Stopped()
    stream = copy(replica, old)
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    real = apply_table

    def stopping(*arguments: Any) -> Any:
        if step == "before":
            stopped.stop()
        done = real(*arguments)
        if step == "after":
            stopped.stop()
        return done

    monkeypatch.setattr(destination, "apply_table", stopping)
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "batch": (4, lambda: new.write_events(batch, replica.mark(batch.until, 2))),
        "copy": (2, lambda: copy(replica, new, n=2, lsn=3000, epoch=2)),
        "drop": (3, lambda: new.drop_table_for_copy(TARGET, 2)),
        "resync": (0, lambda: _replace(new, replica)),
    }
    rows, act = calls[call]
    with stopped.during(lambda: old.write_events(batch, replica.mark(batch.until))):
        monkeypatch.setattr(destination, "apply_table", real)
        act()
    assert isinstance(stopped.errors[0], Transient)
    assert len(replica.rows()) == rows
    with pytest.raises(StaleEpoch):
        old.write_events(batch, replica.mark(batch.until))


def test_sessions_of_other_tables_go_on(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover ends the sessions of its own tables only."""
    other = replica.destination(pipeline="bills")
    bills = table(column(1, "id", Kind.INT8), id=77, name="public.bills")
    other.write_table_rows(TableTarget.of(bills), MemoryRows(bills, [{"id": 1}]), replica.mark(1000))
    stream, stopped = Stream(bills), Stopped()
    stream.insert(id=2)
    batch = stream.batch()
    copy(replica, replica.destination())
    real = apply_table

    def stopping(*arguments: Any) -> Any:
        stopped.stop()
        return real(*arguments)

    monkeypatch.setattr(destination, "apply_table", stopping)
    with stopped.during(lambda: other.write_events(batch, replica.mark(batch.until))):
        monkeypatch.setattr(destination, "apply_table", real)
        copy(replica, replica.destination(), n=2, lsn=3000, epoch=2)
    assert stopped.errors == []
    assert [r["id"] for r in replica.rows("bills")] == [1, 2]
