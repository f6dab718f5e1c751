"""Promises of the PostgreSQL store beyond the behaviours that every store has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, LiteralString

import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import until

from levada.errors import NeedsOperator, Permanent, StaleEpoch, Transient
from levada.stores import Document, Key, OwnerRecord, PostgresStore, TableAction
from levada.stores.cached import CachedStore
from levada.stores.codecs import OWNER
from levada.stores.migrations import MIGRATIONS, migrate
from levada.stores.phases import DataSync, Init, Ready
from levada.stores.postgres import PostgresStorage, StoreWaits
from levada.stores.readiness import FoundStore, check_postgres_store
from levada.testing.store_samples import ERRORED
from levada.values import Lsn, PipelineOwner, TableId

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
    assert db.query("SELECT epoch FROM levada.pipelines") == [(1,)]


def losing_the_first_answer(monkeypatch: pytest.MonkeyPatch, store: PostgresStore) -> list[object]:
    """Let the connection break after the commit of the store's next transaction. Return that transaction's answer."""
    storage = store._storage
    lost: list[object] = []
    attempt = storage.attempt  # type: ignore[attr-defined]  # the PostgreSQL storage has it

    def losing(work: object) -> object:
        answer = attempt(work)
        if not lost:
            lost.append(answer)
            raise Transient("source_unreachable", "the connection broke after the commit")
        return answer

    monkeypatch.setattr(storage, "attempt", losing)
    return lost


def test_rollback_whose_answer_was_lost_steps_back_once(
    db: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was committed although its connection broke is recognised when it is tried again."""
    for phase in (Init(), DataSync(), Ready()):
        store.update_table_replication_states({ORDERS: phase})
    lost = losing_the_first_answer(monkeypatch, store)
    assert store.rollback_table_replication_state(ORDERS) == DataSync()
    assert len(lost) == 1
    assert store.rollback_table_replication_state(ORDERS) == Init()


def test_request_whose_taking_lost_its_answer_is_taken(
    db: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is neither lost nor taken twice when the connection breaks after its removal."""
    store.request_table_action(ORDERS, TableAction.RETRY)
    losing_the_first_answer(monkeypatch, store)
    assert store.take_table_actions() == {ORDERS: TableAction.RETRY}
    assert store.take_table_actions() == {}


def test_unreachable_server_is_transient(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A server that does not answer is reported as Transient after a bounded number of attempts, and logged once."""
    store = PostgresStore(replace(db.connection, port=1), "shop")
    with caplog.at_level(logging.WARNING), pytest.raises(Transient):
        store.next_epoch()
    assert len(caplog.messages) == 1


def test_write_waits_for_a_takeover_under_way(db: Database, store: PostgresStore) -> None:
    """A write that meets an uncommitted takeover is refused once that is committed: none slips in between."""
    with db.connect() as other, ThreadPoolExecutor(1) as pool:
        with other.transaction():
            other.execute("UPDATE levada.epochs SET epoch = epoch + 1")
            write = pool.submit(store.update_table_replication_states, {ORDERS: Ready()})
            while not db.query("SELECT FROM pg_locks WHERE NOT granted"):
                assert not write.done()
        with pytest.raises(StaleEpoch):
            write.result()
    assert db.query("SELECT count(*) FROM levada.documents") == [(0,)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_takeover_that_waits_for_a_new_owner_sees_it(db: Database, isolation: str) -> None:
    """Whatever isolation is the database's default: what was written while a step waited for its lock counts in it."""
    db.execute(f"ALTER DATABASE {db.connection.database} SET default_transaction_isolation = '{isolation}'")
    first, second = (PostgresStorage(db.connection, "shop", "levada") for _ in range(2))
    owner, seen = {"uid": "uid-1"}, list[Document | None]()
    assert second.get(Key(OWNER)) is None
    with closing(first), closing(second), ThreadPoolExecutor(1) as pool:
        takeovers: list[Future[int]] = []

        def change(_: Key[Any], document: Document | None) -> Document:
            takeovers.append(pool.submit(second.next_epoch, Key(OWNER), seen.append))
            while not db.query("SELECT FROM pg_locks WHERE NOT granted"):
                assert not takeovers[0].done()
            return owner

        first.update(None, [Key(OWNER)], change)
        assert [takeover.result() for takeover in takeovers] == [1]
    assert seen == [owner]


def test_an_accepted_write_survives_a_crash(start_postgres: StartPostgres) -> None:
    """Also if the server, by its own setting, answers before it has written a commit."""
    settings = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "100MB"}
    with start_postgres(settings=settings) as server:
        db = Database(server, "postgres")
        store = PostgresStore(db.connection, "shop")
        store.next_epoch()
        store.store_fingerprint("source", "known")
        store.close()
        server.stop("immediate")
        server.start()
        kept = PostgresStore(db.connection, "shop")
        kept.load_fingerprints()
        assert kept.get_fingerprint("source") == "known"
        kept.close()


@pytest.mark.parametrize(
    ("damage", "repair"),
    [
        (["ALTER SCHEMA levada RENAME TO away"], ["ALTER SCHEMA away RENAME TO levada"]),
        (["ALTER TABLE levada.documents RENAME TO away"], ["ALTER TABLE levada.away RENAME TO documents"]),
        (
            ["CREATE TABLE kept AS TABLE levada.epochs", "TRUNCATE levada.epochs, levada.documents"],
            ["INSERT INTO levada.epochs TABLE kept"],
        ),
        (["UPDATE levada.epochs SET epoch = 0"], ["UPDATE levada.epochs SET epoch = 1"]),
    ],
    ids=["schema", "table", "rows", "older state"],
)
@pytest.mark.parametrize("reconnects", [False, True])
def test_a_state_that_another_hand_removes_is_missed(
    db: Database, damage: list[LiteralString], repair: list[LiteralString], reconnects: bool
) -> None:
    """A process that uses it writes nothing and creates no new store, with or without a new session.

    It goes on once the state is back, whose owner it expects too.
    """
    with closing(PostgresStore(db.connection, "shop", waits=StoreWaits(server_s=0.0))) as store:
        store.next_epoch()
        db.execute(*damage)
        if reconnects:
            terminate(db)
        for write in (store.take_table_actions, lambda: store.update_table_replication_states({ORDERS: Init()})):
            with suppress(Transient, NeedsOperator):  # An ended session is seen first.
                write()
            with pytest.raises(NeedsOperator) as lost:
                write()
            assert lost.value.code == "store_empty"
            assert store.last_error is lost.value
        db.execute(*repair)
        store.update_table_replication_states({ORDERS: Init()})
        assert store.last_error is None
        store.change_owner_record(None, OwnerRecord(PipelineOwner("uid", "shop"), "s", "p"))
        assert store.take_table_actions() == {}
        db.execute("DELETE FROM levada.documents")
        with pytest.raises(NeedsOperator, match="has no owner"):
            store.take_table_actions()


def test_documents_can_be_read_with_sql(db: Database, store: PostgresStore) -> None:
    """Each fact is one row. An error's text does not hide the phases of other tables."""
    strange = replace(ERRORED, code="x")
    for phase in (Init(), DataSync(), Ready()):
        store.update_table_replication_states({ORDERS: phase, TableId(7): strange})
    rows = db.query("SELECT content->'history'->-1->>'phase' FROM levada.documents WHERE table_id = %s", int(ORDERS))
    assert rows == [("Ready",)]
    assert check_postgres_store(db.connection, "shop", "levada") == FoundStore(current=True, has_copies=True)


def test_migrations_run_once_however_many_start(db: Database) -> None:
    """Stores that open an empty database simultaneously all find the schema. Each step is in the ledger once."""
    stores = [PostgresStore(db.connection, f"pipeline-{n}", schema='odd "name"; --') for n in range(6)]
    with ThreadPoolExecutor(len(stores)) as pool:
        assert list(pool.map(lambda s: s.next_epoch(), stores)) == [1] * 6
    for store in stores:
        store.close()
    versions = db.query('SELECT version FROM "odd ""name""; --".store_migrations ORDER BY version')
    assert versions == [(n,) for n in range(1, len(MIGRATIONS) + 1)]
    assert db.query("SELECT FROM pg_namespace WHERE nspname = 'levada'") == []


def test_earlier_schema_keeps_its_state(db: Database, store: PostgresStore) -> None:
    """A migration of a later release runs once, on the state that there is."""
    store.update_table_replication_states({ORDERS: Init()})
    step = "alter table documents add column note text not null default 'none'"
    for _ in range(2):
        storage = PostgresStorage(db.connection, "shop", "levada", migrations=(*MIGRATIONS, step))
        later = CachedStore("shop", storage)
        later.load_table_replication_states()
        assert later.get_table_replication_states() == {ORDERS: Init()}
        later.close()
    assert db.query("SELECT note FROM levada.documents") == [("none",)]
    assert db.query("SELECT max(version) FROM levada.store_migrations") == [(len(MIGRATIONS) + 1,)]


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
    """The error for a role that may not create the schema has the SQL that resolves it, with the role's name."""
    db.execute("CREATE ROLE plain LOGIN")
    try:
        with pytest.raises(NeedsOperator) as caught:
            PostgresStore(replace(db.connection, user="plain"), "shop").next_epoch()
        assert caught.value.code == "store_privilege_missing"
        assert caught.value.hint == f'GRANT CREATE ON DATABASE "{db.name}" TO "plain";'
        db.execute(caught.value.hint)  # type: ignore[arg-type]
        store = PostgresStore(replace(db.connection, user="plain"), "shop")
        assert store.next_epoch() == 1
        store.close()
    finally:
        db.execute("DROP OWNED BY plain", "DROP ROLE plain")


@pytest.mark.parametrize("granted", ["", "USAGE", "SELECT"])
def test_missing_privileges_on_an_existing_store_are_named_at_once(
    db: Database, store: PostgresStore, role: str, granted: str
) -> None:
    """The check has every missing privilege on the schema and on its tables, an opened store the same statements.

    They suffice. A table that the role may only read counts as one that it may not write.
    """
    if granted == "USAGE":
        db.execute(f"GRANT USAGE, CREATE ON SCHEMA levada TO {role}")
    elif granted == "SELECT":
        db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA levada TO {role}")
    plain = replace(db.connection, user=role)
    with pytest.raises(NeedsOperator) as checked:
        check_postgres_store(plain, "shop", "levada")
    with pytest.raises(NeedsOperator) as opened:
        PostgresStore(plain, "shop").next_epoch()
    assert checked.value.code == opened.value.code == "store_privilege_missing"
    tables = f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "levada" TO "{role}";'
    usage = f'GRANT USAGE, CREATE ON SCHEMA "levada" TO "{role}";'
    assert checked.value.hint == opened.value.hint == (tables if granted == "USAGE" else f"{usage} {tables}")
    db.execute(opened.value.hint)  # type: ignore[arg-type]
    check_postgres_store(plain, "shop", "levada")
    resolved = PostgresStore(plain, "shop")
    resolved.next_epoch()
    resolved.close()


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("DATABASE {database}", "of database {database}"),
        ("ROLE {role}", "of role {role}"),
        ("ROLE {role} IN DATABASE {database}", "of role {role} in database {database}"),
    ],
)
def test_a_read_only_store_is_waited_for(db: Database, role: str, whose: str, said: str) -> None:
    """A setting that makes it read-only is named with its owner. The write goes on once the setting is undone."""
    names = {"database": db.name, "role": role}
    db.execute(f"GRANT CREATE ON DATABASE {db.name} TO {role}")  # type: ignore[arg-type]
    setting = f"{whose.format(**names)} {{}} default_transaction_read_only"
    with closing(PostgresStore(replace(db.connection, user=role), "shop")) as store:
        store.next_epoch()
        db.execute(f"ALTER {setting.format('SET')} = on")  # type: ignore[arg-type]
        terminate(db)
        with ThreadPoolExecutor() as pool:
            written = pool.submit(store.update_table_replication_states, {ORDERS: Init()})
            error = until(lambda: store.last_error, lambda e: e is not None and e.code == "store_read_only")
            with db.connect() as admin:
                admin.execute("SET default_transaction_read_only = off")
                admin.execute(f"ALTER {setting.format('RESET')}")  # type: ignore[arg-type]
            db.close()  # Its session began with the setting.
            written.result()
        assert error is not None
        assert f"default_transaction_read_only {said.format(**names)} is on" in error.message
        assert error.hint == "ALTER " + setting.format("RESET").replace(role, f'"{role}"').replace(
            db.name, f'"{db.name}"'
        )


def test_closed_store_says_so(store: PostgresStore) -> None:
    """A write after close is an error, not a new connection."""
    store.close()
    with pytest.raises(Permanent) as closed:
        store.update_table_replication_states({ORDERS: Init()})
    assert closed.value.code == "store_closed"
    assert store.get_table_replication_states() == {}
