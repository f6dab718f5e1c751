"""Change capture as a library: what is confirmed does not come again, what is not does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada.capture import Change, ChangeCapture, ChangeStream, EmptyStream, WalChangeCapture
from levada.errors import NeedsOperator, Transient
from levada.pgoutput.events import Begin, Commit, Delete, Insert, RelationEvent, TruncateEvent, Update
from levada.postgres.publication_owners import mark_publication
from levada.stores import OwnerRecord, PostgresStore
from levada.values import Lsn, PipelineOwner, QualifiedTable

A, B = QualifiedTable("public", "a"), QualifiedTable("public", "b")
TABLES = ("CREATE TABLE a (id int PRIMARY KEY, note text)", "CREATE TABLE b (id int PRIMARY KEY)")


@pytest.fixture
def capture(db: Database) -> WalChangeCapture:
    """Create two tables, and return a capture of them that creates its publication and slot on first use."""
    db.execute(*TABLES)
    made = WalChangeCapture(db.connection, slot=f"s_{db.name}", publication="p")
    return made.with_publication_management({A, B}, manage=True)


def rows(stream: ChangeStream, count: int) -> list[Change]:
    """The next changes that are of rows or truncates."""
    wanted: Iterator[Change] = (c for c in stream if not isinstance(c.event, Begin | Commit | RelationEvent))
    return list(islice(wanted, count))


def confirmed(db: Database) -> Lsn:
    """Return the LSN that is confirmed to the slot."""
    [(lsn,)] = db.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = %s", db.name)
    return Lsn.parse(lsn)


def test_live_tells_every_change(db: Database, capture: WalChangeCapture) -> None:
    """Publication, slot and stream are created in the order in which no change is missed. Changes come as events."""
    with capture.live() as stream:
        db.execute(
            "INSERT INTO a VALUES (1, 'x')",
            "UPDATE a SET id = 2 WHERE id = 1",
            "DELETE FROM a WHERE id = 2",
            "WITH x AS (INSERT INTO a VALUES (3, 'z') RETURNING id) INSERT INTO b SELECT id FROM x",
            "TRUNCATE a, b",
        )
        got = rows(stream, 6)
    kinds = [type(c.event) for c in got]
    assert kinds == [Insert, Update, Delete, Insert, Insert, TruncateEvent]
    assert [c.end_of_transaction for c in got] == [True, True, True, False, True, True]
    assert [c.ordinal for c in got] == [0, 0, 0, 0, 1, 0]
    assert [c.commit_lsn for c in got] == sorted(c.commit_lsn for c in got)


def test_live_has_the_bounds_of_each_transaction(db: Database, capture: WalChangeCapture) -> None:
    """Each transaction is between one Begin and one Commit with its LSNs, xid and time. Empty ones are not shown."""
    with capture.live() as stream, db.connect() as c:
        c.execute("BEGIN")
        [(before, xid, began_us)] = c.execute(
            "SELECT pg_current_wal_insert_lsn()::text, pg_current_xact_id()::text::int8,"
            " (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
        ).fetchall()
        c.execute("SAVEPOINT s; INSERT INTO b VALUES (1); RELEASE s; INSERT INTO a VALUES (1)")
        c.execute("SAVEPOINT s; INSERT INTO b VALUES (2); ROLLBACK TO s; COMMIT")
        [(after, ended_us)] = c.execute(
            "SELECT pg_current_wal_insert_lsn()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
        ).fetchall()
        c.execute("BEGIN; INSERT INTO b VALUES (3); ROLLBACK")
        c.execute("SELECT pg_logical_emit_message(true, 'levada_test', 'alone')")
        c.execute("INSERT INTO b VALUES (4)")
        got = list(islice(stream, 9))
    events = [x.event for x in got]
    kinds = [type(e) for e in events]
    assert kinds == [Begin, RelationEvent, Insert, RelationEvent, Insert, Commit, Begin, Insert, Commit]
    begin, commit = events[0], events[5]
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert (commit.commit_lsn, commit.start_lsn, commit.xid, commit.commit_ts_us) == (
        begin.commit_lsn, begin.start_lsn, begin.xid, begin.commit_ts_us,
    )  # fmt: skip
    assert begin.xid == xid
    assert began_us <= begin.commit_ts_us <= ended_us
    assert Lsn.parse(before) <= begin.start_lsn < begin.commit_lsn < commit.end_lsn <= Lsn.parse(after)
    assert (begin.ordinal, commit.ordinal) == (0, 2)
    assert {e.commit_lsn for e in events[:6]} == {begin.commit_lsn}
    assert [x.end_of_transaction for x in got] == [False] * 4 + [True] * 2 + [False, True, True]


def test_begin_and_commit_need_no_confirmation(db: Database, capture: WalChangeCapture) -> None:
    """The acks of its rows confirm a transaction."""
    with capture.live() as stream:
        db.execute("INSERT INTO b SELECT generate_series(1, 3)")
        got = list(islice(stream, 6))
        for change in got:
            if isinstance(change.event, Insert):
                change.ack.confirm()
    assert isinstance(got[5].event, Commit)
    assert got[5].commit_lsn < confirmed(db) <= got[5].event.end_lsn


def test_what_is_not_confirmed_comes_again(db: Database, capture: WalChangeCapture) -> None:
    """Confirming a part of a transaction releases nothing of it. Confirming all of it in any order releases it."""
    with capture.live() as stream:
        db.execute(
            "INSERT INTO b VALUES (1)",
            "INSERT INTO b SELECT generate_series(2, 4)",
            "INSERT INTO b VALUES (5)",
        )
        got = rows(stream, 5)
        for change in (got[0], got[3], got[1]):
            change.ack.confirm()
    with capture.live() as stream:
        again = rows(stream, 4)
        ids = [c.event.row.values["id"] for c in again if isinstance(c.event, Insert)]
        assert ids == [2, 3, 4, 5]
        for change in reversed(again):
            change.ack.confirm()
    with capture.live() as stream:
        db.execute("INSERT INTO b VALUES (6)")
        [last] = rows(stream, 1)
        assert isinstance(last.event, Insert)
        assert last.event.row.values == {"id": 6}


def test_closing_frees_the_slot(db: Database, capture: WalChangeCapture) -> None:
    """A slot is held while its stream is open, and free as soon as it is closed."""
    with capture.live(), pytest.raises(Transient):
        capture.live()
    with capture.live():
        pass


def test_batches_are_whole_transactions(db: Database, capture: WalChangeCapture) -> None:
    """As Arrow columns the same changes come by the slice, and an ack confirms a slice."""
    with capture.live() as stream:
        db.execute("INSERT INTO b SELECT generate_series(1, 1000)", "INSERT INTO b VALUES (2000)")
        seen = 0
        for batch, ack in stream.batches():
            assert not batch.in_transaction
            assert batch.end_lsn is not None
            seen += batch.rows
            ack.confirm()
            if seen == 1001:
                break
        end = batch.end_lsn
    assert confirmed(db) == end


def test_an_idle_stream_moves_its_slot(db: Database, capture: WalChangeCapture) -> None:
    """While nothing is unconfirmed, WAL without published changes is confirmed as it passes."""
    with capture.live() as stream:
        before = confirmed(db)
        db.execute("CREATE TABLE other AS SELECT generate_series(1, 10000)", "INSERT INTO b VALUES (1)")
        for change in rows(stream, 1):
            change.ack.confirm()
        db.execute("CREATE TABLE another AS SELECT generate_series(1, 10000)")
        [(head,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
        db.execute("INSERT INTO b VALUES (2)")
        rows(stream, 1)
    until(lambda: confirmed(db), lambda lsn: lsn > before)
    assert Lsn.parse(head) > before


def test_a_snapshot_is_the_tables_rows(db: Database, capture: WalChangeCapture) -> None:
    """A snapshot has all rows of one moment as inserts, of every type, then an end. Its acks move nothing."""
    db.execute(
        "INSERT INTO a VALUES (1, 'one'), (2, NULL)",
        "INSERT INTO b SELECT generate_series(1, 5)",
        "CREATE TABLE c (id int PRIMARY KEY, at timestamptz, n numeric(8,2), r int4range, d date) ",
        "INSERT INTO c VALUES (1, '2024-01-02 03:04:05+00', 1.25, '[1,3)', 'infinity')",
    )
    c = QualifiedTable("public", "c")
    capture.with_publication_management({A, B, c}, manage=True)
    with capture.snapshot([B, A, c]) as stream:
        db.execute("INSERT INTO b VALUES (6)")
        got = list(stream)
        for change in got:
            change.ack.confirm()
    events = [x.event for x in got]
    assert [type(e) for e in events] == [Insert] * 8
    inserts = [e for e in events if isinstance(e, Insert)]
    assert [e.row.values["id"] for e in inserts] == [1, 2, 3, 4, 5, 1, 2, 1]
    assert inserts[-2].row.values == {"id": 2, "note": None}
    assert inserts[-1].row.values["r"] == "[1,3)"
    assert inserts[-1].row.unrepresentable == {"d": "infinity"}
    assert [x.ordinal for x in got] == list(range(8))
    assert not any(x.end_of_transaction for x in got)


def test_a_snapshot_keeps_rewrites_away(db: Database, capture: WalChangeCapture) -> None:
    """A statement that would empty or rewrite a table under the snapshot waits until the stream is closed."""
    db.execute("INSERT INTO a VALUES (1, 'one')", "INSERT INTO b SELECT generate_series(1, 5)")
    capture.with_publication_management({A, B}, manage=True)
    with capture.snapshot([A, B]) as stream, db.connect() as c:
        c.execute("SET lock_timeout = '100ms'")
        for statement in ("TRUNCATE b", "VACUUM FULL b", "ALTER TABLE a ALTER note TYPE varchar USING 'x'"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                c.execute(statement)
        assert len(list(stream)) == 6


def test_a_table_that_is_not_published_is_told(db: Database, capture: WalChangeCapture) -> None:
    """A snapshot of a table that the stream does not cover is refused, with the SQL that publishes the table."""
    db.execute("CREATE TABLE c (id int)")
    with pytest.raises(NeedsOperator) as refused:
        capture.snapshot([QualifiedTable("public", "c")])
    assert refused.value.code == "table_not_published"
    assert "ALTER PUBLICATION" in refused.value.hint


def test_lag_and_coverage(db: Database, capture: WalChangeCapture) -> None:
    """There is no lag without a slot. Coverage is inspected without a change, and ensured on request."""
    assert capture.lag() is None
    report = capture.inspect_coverage({A, B})
    assert (report.satisfied, report.missing) == (False, (A, B))
    assert not db.query("SELECT 1 FROM pg_publication")
    assert not capture.ensure_coverage({A}, manage=True).satisfied
    assert capture.inspect_coverage({A, B}).missing == (B,)
    with capture.live():
        pass
    assert capture.inspect_coverage({A, B}).satisfied
    lag = capture.lag()
    assert lag is not None
    # The server's position passes an asynchronous commit only when the WAL writer comes round.
    db.execute("SET synchronous_commit = on; INSERT INTO b SELECT generate_series(1, 1000)")
    assert (capture.lag() or 0) > lag


def test_the_slot_of_a_pipeline_is_left_alone(db: Database, capture: WalChangeCapture) -> None:
    """Neither the slot in a Pipeline's state nor the publication that it manages is used by another program."""
    store = PostgresStore(db.connection, "shop")
    owner = PipelineOwner("uid-1", "a/shop")
    assert store.change_owner_record(None, OwnerRecord(owner, f"s_{db.name}", "p"))
    store.close()
    db.execute("CREATE PUBLICATION p FOR TABLE a")
    for use in (capture.prepare, capture.live, lambda: capture.snapshot([A])):
        with pytest.raises(NeedsOperator, match="belongs to Pipeline a/shop") as refused:
            use()
        assert refused.value.code == "not_the_owner"
    with db.connect() as connection:
        mark_publication(connection, "p", owner)
    other = WalChangeCapture(db.connection, slot=f"t_{db.name}", publication="p")
    with pytest.raises(NeedsOperator, match="publication p belongs to Pipeline a/shop"):
        other.ensure_coverage({A, B}, manage=True)
    assert db.query("SELECT slot_name FROM pg_replication_slots WHERE database = %s", db.name) == []
    assert db.query("SELECT tablename FROM pg_publication_tables") == [("a",)]


def test_a_mechanism_without_snapshots_has_an_empty_one() -> None:
    """The least that a mechanism must give is a live stream."""

    class Least(ChangeCapture):
        def live(self) -> ChangeStream:
            return EmptyStream()

    assert list(Least().snapshot([A])) == []
    assert list(Least().live().batches()) == []
    assert Least().lag() is None


def test_a_truncate_names_its_tables(db: Database, capture: WalChangeCapture) -> None:
    """An event of TRUNCATE has the OIDs and the names of all its tables, in one order."""
    with capture.live() as stream:
        db.execute("TRUNCATE b, a")
        [change] = rows(stream, 1)
    assert isinstance(change.event, TruncateEvent)
    oids = dict(db.query("SELECT relname, oid::int8 FROM pg_class WHERE relname IN ('a', 'b')"))
    assert [oids[name.name] for name in change.event.names] == list(change.event.tables)
    assert set(change.event.names) == {A, B}


def test_no_representation_has_the_password(db: Database) -> None:
    """A password that is given in Python is not in the text of a connection or of a capture."""
    connection = replace(db.connection, password="geheim")
    capture = WalChangeCapture(connection, slot="s", publication="p")
    assert "geheim" not in f"{connection!r} {connection} {capture!r} {capture} {vars(capture)}"
