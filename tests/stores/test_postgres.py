"""What the PostgreSQL store promises beyond the behaviours that every store has."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from tests.conftest import Database

from levada.errors import NeedsOperator, Permanent, StaleEpoch, Transient
from levada.stores import PostgresStore
from levada.stores.migrations import MIGRATIONS, migrate
from levada.stores.phases import DataSync, Init, Ready
from levada.values import Lsn, TableId

ORDERS = TableId(16402)


@pytest.fixture
def store(db: Database) -> Iterator[PostgresStore]:
    """A store of the pipeline ``shop`` that has taken the pipeline over."""
    store = PostgresStore(db.connection, "shop")
    store.next_epoch()
    yield store
    store.close()


def terminate(db: Database) -> None:
    """End the store's backend, as a restart of the server does."""
    killed = db.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'levada:store:shop'"
    )
    assert killed == [(True,)]


def test_lost_connection_is_made_anew(db: Database, store: PostgresStore) -> None:
    """A store whose backend was terminated goes on, with the epoch that it had."""
    store.update_table_replication_states({ORDERS: Init()})
    terminate(db)
    store.update_table_replication_states({ORDERS: DataSync()})
    terminate(db)
    assert store.rollback_table_replication_state(ORDERS) == Init()
    terminate(db)
    assert store.upsert_replication_progress("capture", Lsn(4)) == Lsn(4)
    assert db.query("SELECT epoch FROM levada.table_phases WHERE is_current") == [(1,)]


def test_rollback_whose_answer_was_lost_steps_back_once(
    db: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was committed although its connection broke is recognised when it is tried again."""
    for phase in (Init(), DataSync(), Ready()):
        store.update_table_replication_states({ORDERS: phase})
    storage = store._storage
    lost: list[object] = []
    attempt = storage._attempt  # type: ignore[attr-defined]  # the PostgreSQL storage has it

    def losing_the_first_answer(work: object) -> object:
        answer = attempt(work)
        if not lost:
            lost.append(answer)
            raise Transient("source_unreachable", "the connection broke after the commit")
        return answer

    monkeypatch.setattr(storage, "_attempt", losing_the_first_answer)
    assert store.rollback_table_replication_state(ORDERS) == DataSync()
    assert lost == [DataSync()]
    assert store.rollback_table_replication_state(ORDERS) == Init()


def test_unreachable_server_is_transient(db: Database) -> None:
    """A server that does not answer is reported as Transient after a bounded number of attempts."""
    store = PostgresStore(replace(db.connection, port=1), "shop")
    with pytest.raises(Transient):
        store.next_epoch()


def test_write_waits_for_a_takeover_under_way(db: Database, store: PostgresStore) -> None:
    """A write that meets an uncommitted takeover is refused once that is committed: none slips in between."""
    with db.connect() as other, ThreadPoolExecutor(1) as pool:
        with other.transaction():
            other.execute("UPDATE levada.pipelines SET epoch = epoch + 1")
            write = pool.submit(store.update_table_replication_states, {ORDERS: Ready()})
            while not db.query("SELECT FROM pg_locks WHERE NOT granted"):
                assert not write.done()
        with pytest.raises(StaleEpoch):
            write.result()
    assert db.query("SELECT count(*) FROM levada.table_phases") == [(0,)]


def test_rows_are_a_chain_with_one_current(db: Database, store: PostgresStore) -> None:
    """Every phase written is a row that names the one before it; one row of a table is current."""
    for phase in (Init(), DataSync(), Ready()):
        store.update_table_replication_states({ORDERS: phase})
    rows = db.query(
        "SELECT p.phase->>'phase', b.phase->>'phase', p.is_current"
        " FROM levada.table_phases p LEFT JOIN levada.table_phases b ON b.id = p.previous_id ORDER BY p.id"
    )
    assert rows == [("Init", None, False), ("DataSync", "Init", False), ("Ready", "DataSync", True)]


def test_migrations_run_once_however_many_start(db: Database) -> None:
    """Stores that open an empty database at once all find the schema; each step is in the ledger once."""
    stores = [PostgresStore(db.connection, f"pipeline-{n}", schema='odd "name"; --') for n in range(6)]
    with ThreadPoolExecutor(len(stores)) as pool:
        assert list(pool.map(lambda s: s.next_epoch(), stores)) == [1] * 6
    for store in stores:
        store.close()
    versions = db.query('SELECT version FROM "odd ""name""; --".store_migrations ORDER BY version')
    assert versions == [(n,) for n in range(1, len(MIGRATIONS) + 1)]
    assert db.query("SELECT FROM pg_namespace WHERE nspname = 'levada'") == []


def test_earlier_schema_keeps_its_state(db: Database) -> None:
    """Each earlier version of the schema is brought to this one, and its phases stay. Dropped tables are gone."""
    for version in range(1, len(MIGRATIONS)):
        name = f"version_{version}"
        db.execute(
            f"CREATE SCHEMA {name}",
            f"CREATE TABLE {name}.store_migrations (version int PRIMARY KEY)",
            f"INSERT INTO {name}.store_migrations SELECT generate_series(1, {version})",
            f"SET search_path = {name}",
            *MIGRATIONS[:version],
            "INSERT INTO pipelines (name) VALUES ('shop')",
            "INSERT INTO table_phases (pipeline, table_id, phase, epoch)"
            """ VALUES ('shop', 7, '{"phase": "Init"}', 0)""",
        )
        store = PostgresStore(db.connection, "shop", schema=name)
        store.load_table_replication_states()
        assert store.get_table_replication_states() == {TableId(7): Init()}
        store.close()
        assert db.query(f"SELECT to_regclass('{name}.destination_tables')") == [(None,)]


def test_newer_schema_is_refused(db: Database, store: PostgresStore) -> None:
    """A schema that a later release has migrated is left alone, at every call."""
    db.execute("INSERT INTO levada.store_migrations (version) VALUES (999)")
    older = PostgresStore(db.connection, "shop")
    for _ in range(2):
        with pytest.raises(NeedsOperator) as caught:
            older.load_table_replication_states()
        assert caught.value.code == "store_newer"


def test_migrating_again_writes_nothing(db: Database, store: PostgresStore) -> None:
    """A role that may only use the schema can open a schema that is up to date."""
    with db.connect() as connection:
        connection.execute("SET default_transaction_read_only = on")
        migrate(connection, "levada")
        assert connection.execute("SELECT name FROM pipelines").fetchall() == [("shop",)]


def test_missing_privilege_names_the_statement(db: Database) -> None:
    """A role that may not make the schema is told so, with the SQL that mends it."""
    db.execute("CREATE ROLE plain LOGIN")
    try:
        with pytest.raises(NeedsOperator) as caught:
            PostgresStore(replace(db.connection, user="plain"), "shop").next_epoch()
        assert caught.value.code == "store_privilege_missing"
        assert 'CREATE SCHEMA IF NOT EXISTS "levada"' in caught.value.hint
    finally:
        db.execute("DROP ROLE plain")


def test_read_only_database_is_named(db: Database) -> None:
    """On a standby, or where writes are off, the error says that another place is needed."""
    with psycopg.connect(db.uri, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {db.name} SET default_transaction_read_only = on")
    with pytest.raises(NeedsOperator) as caught:
        PostgresStore(db.connection, "shop").next_epoch()
    assert caught.value.code == "store_read_only"


def test_closed_store_says_so(store: PostgresStore) -> None:
    """A write after close is an error, not a new connection."""
    store.close()
    with pytest.raises(Permanent):
        store.update_table_replication_states({ORDERS: Init()})
    assert store.get_table_replication_states() == {}
