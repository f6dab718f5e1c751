"""Streams of a library user: one reading, one resume point, and nothing that is passed over silently."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import until

from levada.capture import CaptureHost, Change, ChangeStream, Continuity, TableResolver, WalChangeCapture
from levada.capture.message_stream import SliceLimits
from levada.capture.streams import BatchedStream, BatchSource
from levada.capture.wal import WalSource
from levada.errors import NeedsOperator, Transient
from levada.pgoutput.changes import ChangeBatch
from levada.pgoutput.events import Begin, Commit, Insert
from levada.postgres.connection import PostgresConnection
from levada.postgres.stream import ReplicationStream
from levada.stores.memory import MemoryStore
from levada.values import Lsn, QualifiedTable

A = QualifiedTable("public", "a")


@pytest.fixture
def capture(db: Database) -> WalChangeCapture:
    """A table and a capture of it that makes what it needs. Nothing is made yet."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, note text)")
    return new_capture(db)


def new_capture(db: Database, **more: Any) -> WalChangeCapture:
    """Return the capture of another process."""
    made = WalChangeCapture(db.connection, slot=f"s_{db.name}", publication="p", **more)
    return made.with_publication_management({A}, manage=True)


def in_small_slices(db: Database) -> ChangeStream:
    """Return the stream of a prepared capture, decoded in slices of at most three messages."""
    stream = ReplicationStream(db.connection, slot=f"s_{db.name}", publication="p")
    resolver = TableResolver(db.connection, MemoryStore(), "p", CaptureHost())
    return BatchedStream(WalSource(stream, resolver, SliceLimits(messages=3)), "small slices")


def insert_ids(db: Database, first: int, last: int) -> None:
    """Insert the rows in one transaction."""
    with db.connect() as connection:
        connection.execute("INSERT INTO a SELECT generate_series(%s::int, %s::int)", [first, last])


def inserted(stream: ChangeStream, count: int) -> list[Change]:
    """Read the next inserts, and nothing after them."""
    wanted: Iterator[Change] = (c for c in stream if isinstance(c.event, Insert))
    return list(islice(wanted, count))


def until_committed(stream: ChangeStream) -> list[Change]:
    """Read the rest of a transaction, with its Commit."""
    read = []
    for change in stream:
        read.append(change)
        if isinstance(change.event, Commit):
            break
    return read


def id_of(change: Change) -> int:
    """Return the row's id."""
    assert isinstance(change.event, Insert)
    return int(change.event.row.values["id"])


def slots(db: Database) -> list[tuple[str, bool]]:
    """Return the slots of the test's database and whether each is in use."""
    return db.query("SELECT slot_name, active FROM pg_replication_slots WHERE database = %s", db.name)


def confirmed(db: Database) -> Lsn:
    """Return the slot's position."""
    [(lsn,)] = db.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = %s", db.name)
    return Lsn.parse(lsn)


# ---- one reading ------------------------------------------------------------------------------------------------


def test_iterating_again_goes_on(db: Database, capture: WalChangeCapture) -> None:
    """A loop that was left goes on where it was: a second loop, `next` and `iter` read the same stream."""
    with capture.live() as stream:
        insert_ids(db, 1, 10)
        ids = []
        for change in stream:
            if isinstance(change.event, Insert):
                ids.append(id_of(change))
                if len(ids) == 3:
                    break
        ids.append(id_of(next(iter(stream))))
        ids.append(id_of(next(stream)))
        ids += [id_of(change) for change in inserted(stream, 5)]
    assert ids == list(range(1, 11))


def test_batches_go_on_too(db: Database, capture: WalChangeCapture) -> None:
    """Asking for the batches again goes on after the last one."""
    with capture.live() as stream:
        insert_ids(db, 1, 3)
        [(first, _)] = islice(stream.batches(), 1)
        insert_ids(db, 4, 5)
        [(second, _)] = islice(stream.batches(), 1)
    assert (first.rows, second.rows) == (3, 2)


def test_changes_and_batches_do_not_mix(db: Database, capture: WalChangeCapture) -> None:
    """A stream is read as changes or as batches: a change to the other view would pass over what was not handed out."""
    with capture.live() as stream:
        insert_ids(db, 1, 3)
        inserted(stream, 1)
        with pytest.raises(NeedsOperator) as refused:
            stream.batches()
        assert refused.value.code == "stream_read_otherwise"
        assert [id_of(c) for c in inserted(stream, 2)] == [2, 3], "the refusal costs nothing"
    with capture.live() as stream:
        next(stream.batches())
        with pytest.raises(NeedsOperator) as refused:
            next(stream)
        assert refused.value.code == "stream_read_otherwise"


def test_an_error_stays(db: Database, capture: WalChangeCapture) -> None:
    """A stream that failed raises its error again: it does not look like one that ended."""
    with capture.live() as stream:
        db.execute("INSERT INTO a VALUES (1)")
        until_committed(stream)
        db.query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active", db.name
        )
        for _ in range(2):
            with pytest.raises(Transient):
                next(stream)


class Interrupted(BatchSource):
    """A snapshot with one read, which Ctrl-C interrupts."""

    finite = True

    def decoded(self) -> Iterator[ChangeBatch | None]:
        yield None
        raise KeyboardInterrupt

    def close(self) -> None: ...

    def abandon(self) -> None: ...


def test_an_interrupted_read_is_no_end() -> None:
    """Ctrl-C in a read ends the iterator inside. A reader that goes on gets an error, and no shorter table."""
    rows = BatchedStream(Interrupted(), "the snapshot")
    with pytest.raises(KeyboardInterrupt):
        list(rows)
    for _ in range(2):
        with pytest.raises(NeedsOperator) as refused:
            list(rows)
        assert refused.value.code == "stream_closed"
    assert not rows.ended
    rows.close()


def test_a_closed_stream_hands_out_nothing(db: Database, capture: WalChangeCapture) -> None:
    """A closed stream returns none of the changes that it decoded before. A snapshot that was left raises."""
    with capture.live() as stream:
        insert_ids(db, 1, 10)
        inserted(stream, 1)
    assert list(stream) == []
    with capture.snapshot([A]) as rows:
        next(rows)
    with pytest.raises(NeedsOperator) as refused:
        list(rows)
    assert refused.value.code == "stream_closed"
    with capture.snapshot([A]) as rows:
        assert len(list(rows)) == 10
    assert list(rows) == []


# ---- what is acknowledged ---------------------------------------------------------------------------------------


def test_a_loop_left_inside_a_transaction_acknowledges_nothing_of_it(db: Database, capture: WalChangeCapture) -> None:
    """All of a transaction comes again when its reader left it or failed in it, whatever of it was confirmed."""
    with capture.live() as stream:
        insert_ids(db, 1, 10)
        for change in inserted(stream, 9):
            change.ack.confirm()
            change.ack.confirm()
    # What comes before the transaction may be acknowledged at any time.
    assert confirmed(db) < change.commit_lsn
    with pytest.raises(ZeroDivisionError):
        read_until_it_fails(capture)
    assert confirmed(db) < change.commit_lsn
    with capture.live() as stream:
        assert [id_of(c) for c in inserted(stream, 10)] == list(range(1, 11))


def read_until_it_fails(capture: WalChangeCapture) -> None:
    """Read a stream with a consumer that fails at the ninth row."""
    with capture.live() as stream:
        for change in stream:
            change.ack.confirm()
            if isinstance(change.event, Insert) and id_of(change) == 9:
                raise ZeroDivisionError


def test_acks_of_an_earlier_stream_move_nothing(db: Database, capture: WalChangeCapture) -> None:
    """An ack belongs to its stream: confirmed after the close it is without effect, on the slot and on the next one."""
    with capture.live() as stream:
        insert_ids(db, 1, 2)
        late = inserted(stream, 2)
    before = confirmed(db)
    with capture.live() as stream:
        again = inserted(stream, 2)
        for change in late:
            change.ack.confirm()
    assert confirmed(db) == before
    assert [(c.commit_lsn, c.ordinal) for c in again] == [(c.commit_lsn, c.ordinal) for c in late]
    for change in reversed(again):
        change.ack.confirm()
    assert confirmed(db) == before


def test_the_last_change_of_a_large_transaction_says_so(db: Database, capture: WalChangeCapture) -> None:
    """A transaction that is decoded in several slices has one last change, also where the cut is before its COMMIT."""
    capture.prepare()
    with in_small_slices(db) as stream:
        for first in range(0, 60, 10):
            insert_ids(db, first, first + first // 10)
        got = inserted(stream, 21)
    last_of = {c.commit_lsn: c.ordinal for c in got}
    assert [c.end_of_transaction for c in got] == [c.ordinal == last_of[c.commit_lsn] for c in got]


def test_a_large_transaction_begins_and_ends_once(db: Database, capture: WalChangeCapture) -> None:
    """A transaction in many slices has one Begin and one Commit, also if its last slices have none of its changes."""
    capture.prepare()
    with in_small_slices(db) as stream:
        for size in range(1, 9):
            insert_ids(db, 100 * size, 100 * size + size)
        with db.connect() as connection:
            connection.execute("BEGIN; INSERT INTO a VALUES (1)")
            for _ in range(8):
                connection.execute("SELECT pg_logical_emit_message(true, 'levada_test', 'text')")
            connection.execute("COMMIT")
        read = [until_committed(stream) for _ in range(9)]
    for number, transaction in enumerate(read, 1):
        first, *_, last = (c.event for c in transaction)
        assert isinstance(first, Begin)
        assert isinstance(last, Commit)
        assert [sum(isinstance(c.event, k) for c in transaction) for k in (Begin, Commit)] == [1, 1]
        assert {c.commit_lsn for c in transaction} == {first.commit_lsn}
        assert (last.ordinal, len(inserts(transaction))) == ((number + 1,) * 2 if number < 9 else (1, 1))
        assert first.start_lsn == last.start_lsn < first.commit_lsn < last.end_lsn


def inserts(changes: list[Change]) -> list[Insert]:
    """Return the inserts."""
    return [c.event for c in changes if isinstance(c.event, Insert)]


# ---- a stream that is dropped -----------------------------------------------------------------------------------


def test_a_dropped_stream_frees_its_slot(db: Database, capture: WalChangeCapture) -> None:
    """A stream that is garbage frees its slot and warns. A stream that only its loop refers to is no garbage."""
    insert_ids(db, 0, 0)
    capture.prepare()
    insert_ids(db, 1, 10)
    with pytest.warns(ResourceWarning, match="was not closed"):
        read_and_drop(capture)
    until(lambda: slots(db), lambda found: found == [(f"s_{db.name}", False)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capture.live() as stream:
            inserted(stream, 10)
        del stream
        gc.collect()


def read_and_drop(capture: WalChangeCapture) -> None:
    """Read a stream that only the loop holds, and leave the loop."""
    for change in capture.live():
        gc.collect()
        if isinstance(change.event, Insert) and id_of(change) == 9:
            break
    del change
    gc.collect()


# ---- the resume point -------------------------------------------------------------------------------------------


def test_nothing_is_lost_between_a_snapshot_and_the_first_stream(db: Database, capture: WalChangeCapture) -> None:
    """The snapshot makes the resume point before it reads: what is written after it is in the stream."""
    insert_ids(db, 1, 3)
    with capture.snapshot([A]) as snapshot:
        insert_ids(db, 4, 5)
        rows = [id_of(c) for c in snapshot]
    insert_ids(db, 6, 7)
    with capture.live() as stream:
        assert rows == [1, 2, 3]
        assert [id_of(c) for c in inserted(stream, 4)] == [4, 5, 6, 7]


def test_prepare_makes_the_resume_point_once(db: Database, capture: WalChangeCapture) -> None:
    """`prepare` returns Fresh when it creates the slot and Resumed afterwards.

    The first stream of a new slot is Fresh.
    """
    assert capture.prepare() is Continuity.FRESH
    assert capture.prepare() is Continuity.RESUMED
    insert_ids(db, 1, 1)
    with capture.live() as stream:
        assert stream.continuity is Continuity.FRESH
        assert [id_of(c) for c in inserted(stream, 1)] == [1]
    with capture.live() as stream:
        assert stream.continuity is Continuity.RESUMED
    assert new_capture(db).prepare() is Continuity.RESUMED


def test_a_slot_made_again_is_reported(db: Database, capture: WalChangeCapture) -> None:
    """A slot that was dropped is made again, and its stream says that changes may be missing."""
    with capture.live():
        pass
    with db.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [f"s_{db.name}"])
    insert_ids(db, 1, 1)
    with capture.live() as stream:
        assert stream.continuity is Continuity.FRESH


def test_a_slot_that_another_moved_is_reported(db: Database, capture: WalChangeCapture) -> None:
    """Between two streams of one capture the slot stays where the first left it, or changes may be missing."""
    with capture.live() as stream:
        insert_ids(db, 1, 1)
        for change in inserted(stream, 1):
            change.ack.confirm()
    with capture.live() as stream:
        assert stream.continuity is Continuity.RESUMED
    insert_ids(db, 2, 3)
    with db.connect() as connection:
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [f"s_{db.name}"])
    with capture.live() as stream:
        assert stream.continuity is Continuity.FRESH
    with capture.live() as stream:
        assert stream.continuity is Continuity.RESUMED


def test_a_start_below_the_slot_is_reported(db: Database, capture: WalChangeCapture) -> None:
    """A caller whose position is below the slot's has missed the changes acknowledged in between."""
    with capture.live() as stream:
        insert_ids(db, 1, 1)
        [first] = inserted(stream, 1)
        insert_ids(db, 2, 2)
        for change in [first, *inserted(stream, 1)]:
            change.ack.confirm()
    with new_capture(db, start_lsn=first.commit_lsn).live() as stream:
        assert stream.continuity is Continuity.FRESH


def test_a_start_above_the_slot_leaves_out_what_the_caller_has(db: Database, capture: WalChangeCapture) -> None:
    """``start_lsn`` skips changes that commit below it. One that the server has not reached is refused."""
    with capture.live() as stream:
        insert_ids(db, 1, 1)
        insert_ids(db, 2, 2)
        first, second = inserted(stream, 2)
    with new_capture(db, start_lsn=Lsn(first.commit_lsn + 1)).live() as stream:
        assert stream.continuity is Continuity.RESUMED
        assert [c.commit_lsn for c in inserted(stream, 1)] == [second.commit_lsn]
    with pytest.raises(NeedsOperator) as refused:
        new_capture(db, start_lsn=Lsn(2**60)).live()
    assert refused.value.code == "start_lsn_ahead"


# ---- checks come first ------------------------------------------------------------------------------------------


def made(db: Database) -> list[Any]:
    """Return what a capture could have made at the source."""
    return [*slots(db), *db.query("SELECT pubname FROM pg_publication")]


@pytest.mark.parametrize("start", ["prepare", "live", "snapshot"])
def test_a_table_that_cannot_be_covered_is_refused(db: Database, capture: WalChangeCapture, start: str) -> None:
    """A required table that the stream would not have is an error, and nothing was made before it is raised."""
    missing = QualifiedTable("public", "nowhere")
    capture.ensure_coverage({A}, manage=True)
    capture.with_publication_management({A, missing}, manage=True)
    begin: dict[str, Callable[[], object]] = {
        "prepare": capture.prepare,
        "live": capture.live,
        "snapshot": lambda: capture.snapshot([A]),
    }
    with pytest.raises(NeedsOperator) as refused:
        begin[start]()
    assert refused.value.code == "publication_incomplete"
    assert "public.nowhere" in str(refused.value)
    assert slots(db) == []


def test_a_missing_publication_is_refused_before_the_slot_is_made(db: Database, capture: WalChangeCapture) -> None:
    """Without leave to make the publication nothing is made."""
    capture.with_publication_management({A}, manage=False)
    with pytest.raises(NeedsOperator) as refused:
        capture.live()
    assert refused.value.code == "publication_missing"
    plain = WalChangeCapture(db.connection, slot=f"s_{db.name}", publication="p")
    with pytest.raises(NeedsOperator) as refused:
        plain.live()
    assert refused.value.code == "publication_missing"
    assert made(db) == []


def test_a_role_without_replication_makes_nothing(db: Database, capture: WalChangeCapture) -> None:
    """The privilege is checked before the publication is made, and the hint gives it."""
    role = f"weak_{db.name}"
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(db.name), sql.Identifier(role))
        )
        connection.execute(sql.SQL("ALTER TABLE a OWNER TO {}").format(sql.Identifier(role)))
    weak = PostgresConnection("127.0.0.1", db.server.port, db.name, sslmode="disable", user=role)
    try:
        weakly = WalChangeCapture(weak, slot=f"s_{db.name}", publication="p")
        with pytest.raises(NeedsOperator) as refused:
            weakly.with_publication_management({A}, manage=True).live()
        assert refused.value.code == "replication_privilege_missing"
        assert made(db) == []
    finally:
        with db.connect() as connection:
            connection.execute("ALTER TABLE a OWNER TO postgres")
            connection.execute(
                sql.SQL("REVOKE ALL ON DATABASE {} FROM {}").format(sql.Identifier(db.name), sql.Identifier(role))
            )
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_slot_of_another_kind_is_refused_before_the_publication_is_made(
    db: Database, capture: WalChangeCapture
) -> None:
    """A slot that cannot serve is left as it is, and no publication is left behind."""
    with db.connect() as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", [f"s_{db.name}"])
    try:
        with pytest.raises(NeedsOperator) as refused:
            capture.live()
    finally:
        with db.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [f"s_{db.name}"])
    assert refused.value.code == "slot_foreign"
    assert db.query("SELECT 1 FROM pg_publication") == []


# ---- partitions -------------------------------------------------------------------------------------------------


def test_a_snapshot_of_a_partitioned_table_is_all_its_rows(db: Database) -> None:
    """Partitions may have columns in another order, or dropped ones. Rows come in the root's columns."""
    db.execute(
        "CREATE TABLE a (gone int, id int, note text, n numeric(8,2)) PARTITION BY RANGE (id)",
        "ALTER TABLE a DROP COLUMN gone",
        "CREATE TABLE a1 (n numeric(8,2), old text, note text, id int)",
        "ALTER TABLE a1 DROP COLUMN old",
        "ALTER TABLE a ATTACH PARTITION a1 FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE a2 PARTITION OF a FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE a3 PARTITION OF a FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id)",
        "CREATE TABLE a31 PARTITION OF a3 FOR VALUES FROM (20) TO (25)",
        "CREATE TABLE a32 PARTITION OF a3 FOR VALUES FROM (25) TO (30)",
        "ALTER TABLE a ADD PRIMARY KEY (id)",
        "INSERT INTO a SELECT i, 'n' || i, i + 0.25 FROM generate_series(1, 29) i",
        "CREATE PUBLICATION p FOR TABLE a WITH (publish_via_partition_root)",
    )
    with new_capture(db).snapshot([A]) as stream:
        got = list(stream)
    values = sorted((c.event.row.values for c in got if isinstance(c.event, Insert)), key=lambda v: v["id"])
    assert [(v["id"], v["note"], float(v["n"])) for v in values] == [(i, f"n{i}", i + 0.25) for i in range(1, 30)]
    assert {c.event.schema.name for c in got if isinstance(c.event, Insert)} == {A}
    assert [c.ordinal for c in got] == list(range(29))


def test_a_truncate_waits_for_the_snapshot(db: Database, capture: WalChangeCapture) -> None:
    """TRUNCATE is not seen by snapshots: the tables are locked first, so that all rows are of one moment."""
    insert_ids(db, 1, 5)
    with capture.snapshot([A]) as stream, db.connect() as other:
        other.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("TRUNCATE a")
        assert len(list(stream)) == 5


def test_wal_level_is_checked_first(start_postgres: StartPostgres) -> None:
    """A server that does not decode is refused with the statement that changes it, and nothing is made."""
    with start_postgres(settings={"wal_level": "replica"}) as server:
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
        plain = PostgresConnection("127.0.0.1", server.port, "postgres", sslmode="disable", user="postgres")
        capture = WalChangeCapture(plain, slot="s", publication="p").with_publication_management({A}, manage=True)
        with pytest.raises(NeedsOperator) as refused:
            capture.live()
        assert refused.value.code == "wal_level_not_logical"
        with psycopg.connect(server.uri()) as connection:
            assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == []
