"""Sessions of a comparison at the source, and the statements of an application."""

from __future__ import annotations

import threading
from contextlib import closing

import pyarrow as pa
from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada import codes
from levada.copy.guard import GUARDS, hold_table
from levada.errors import Transient
from levada.postgres.catalog import published_tables, read_table_description
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.slots import export_snapshot
from levada.runtime.verifications.verifier import AGAIN
from levada.values import OnUnrepresentable
from levada.verify.source_table import SourceTable

NUMBER = pa.schema([("n", pa.int64())])


def waits(db: Database) -> bool:
    """Return True if a session waits for the second partition. It has the lock of the first one then."""
    return bool(db.query("SELECT FROM pg_locks WHERE relation = 't_2'::regclass AND NOT granted"))


def test_a_reader_gives_way_before_postgresql_looks_for_deadlocks(db: Database) -> None:
    """It waits for one partition with the lock of another one, while an application wants both the other way round."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t, other WITH (publish_via_partition_root)",
    )
    source, errors = db.connection, []
    with db.connect() as connection:
        # The guard is that of another table: this one's would end the reader before it waits for a lock.
        [other, published] = sorted(published_tables(connection, "p"), key=lambda found: found.name.name)
        description = read_table_description(connection, other.id)

    def read() -> None:
        try:
            table._run("SELECT count(*) AS n FROM ONLY public.t_1, ONLY public.t_2", table.ranges[0], NUMBER)
        except Transient as error:
            errors.append(error.code)

    with (
        export_snapshot(source, "levada_shop_copy_00000a1b2c") as snapshot,
        IdleReaders(source, GUARDS) as guards,
        hold_table(guards, other, description.schema(), description) as guard,
        closing(db.connect()) as application,
    ):
        table = SourceTable(source, snapshot, published, 1, OnUnrepresentable.ERROR, guard, threading.Event())
        application.execute("BEGIN")
        application.execute("LOCK TABLE ONLY t_2 IN ACCESS EXCLUSIVE MODE")
        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: waits(db) or not reader.is_alive())
        application.execute("LOCK TABLE ONLY t_1 IN ACCESS EXCLUSIVE MODE")
        reader.join()
        application.execute("COMMIT")
    # A deadlock would be a serialization conflict, of the reader or of the application.
    assert errors == [codes.LOCK_TIMEOUT]
    assert AGAIN.issuperset({codes.LOCK_TIMEOUT, codes.SERIALIZATION_CONFLICT})
