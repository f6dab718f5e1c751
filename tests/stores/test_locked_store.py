"""A store whose tables another session keeps locked."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.rigs.database import Database
from tests.runtime import samples

from levada.cli.render import errors
from levada.errors import Transient
from levada.runtime.report.http import not_ready
from levada.status import StoreProgress
from levada.stores import PostgresStore
from levada.stores.phases import Init, Ready
from levada.stores.postgres import StoreWaits
from levada.values import TableId

ORDERS = TableId(16402)


def test_a_locked_table_of_the_store_is_named(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A write ends as Transient. It names the store, the session and the SQL that ends it. Later it works."""
    store = PostgresStore(db.connection, "shop", waits=StoreWaits(lock_s=0.05, server_s=0.5))
    store.next_epoch()
    store.update_table_replication_states({ORDERS: Init()})
    assert store.last_error is None
    with db.connect() as other, other.transaction():
        other.execute("LOCK TABLE levada.documents")
        with caplog.at_level(logging.WARNING), pytest.raises(Transient) as raised:
            store.update_table_replication_states({ORDERS: Ready()})
        assert raised.value.code == "store_locked"
        assert "reading or writing the state of pipeline shop in schema levada at" in raised.value.message
        pid = other.info.backend_pid
        assert f"PID {pid} (role postgres, idle in transaction since" in raised.value.message
        assert "has table levada.documents in mode AccessExclusiveLock" in raised.value.message
        show, end = raised.value.hint.partition("at the store: ")[2].split("; ")
        assert db.query(show) == [("LOCK TABLE levada.documents",)]
        assert end == f"SELECT pg_terminate_backend({pid})"
        assert isinstance(store.last_error, Transient)
    store.update_table_replication_states({ORDERS: Ready()})
    assert store.last_error is None
    store.close()


def test_a_status_shows_the_store_while_it_is_waited_for(db: Database) -> None:
    """The engine says which store it waits for before it gives up."""
    store = PostgresStore(db.connection, "shop", waits=StoreWaits(lock_s=0.05))
    store.next_epoch()
    with ThreadPoolExecutor(1) as pool:
        with db.connect() as other, other.transaction():
            other.execute("LOCK TABLE levada.documents")
            write = pool.submit(store.update_table_replication_states, {ORDERS: Ready()})
            while store.last_error is None:
                assert not write.done()
        write.result()
    store.close()
    waiting = samples.progress(store=StoreProgress(samples.error(code="store_locked")))
    assert "[store_locked]" in not_ready(waiting, waiting.at)
    [line] = errors(waiting)
    assert line.startswith("store: ")
    assert "[store_locked]" in line


def test_a_stop_ends_the_wait(db: Database) -> None:
    """A write that is repeated for two minutes ends soon once the pipeline stops. Later ones raise its error."""
    store = PostgresStore(db.connection, "shop", waits=StoreWaits(lock_s=0.05, server_s=1e9))
    store.next_epoch()
    with ThreadPoolExecutor(1) as pool, db.connect() as other, other.transaction():
        other.execute("LOCK TABLE levada.documents")
        write = pool.submit(store.update_table_replication_states, {ORDERS: Ready()})
        while store.last_error is None:
            assert not write.done()
        store.stop_waiting()
        assert isinstance(write.exception(), Transient)
        with pytest.raises(Transient) as raised:
            store.update_table_replication_states({ORDERS: Init()})
        assert raised.value.code == "store_locked"
    store.close()


def test_a_store_that_answers_is_written_after_a_stop(db: Database) -> None:
    """The last states of a pipeline that stops are stored."""
    store = PostgresStore(db.connection, "shop")
    store.next_epoch()
    store.stop_waiting()
    store.update_table_replication_states({ORDERS: Ready()})
    store.close()
    again = PostgresStore(db.connection, "shop")
    again.load_table_replication_states()
    assert again.get_table_replication_states() == {ORDERS: Ready()}
    again.close()
