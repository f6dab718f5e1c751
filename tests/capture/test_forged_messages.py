"""Messages in the WAL that another role wrote under the DDL trigger's prefix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from tests.postgres.streams import kinds, receive_until
from tests.rigs.capture import PUBLICATION, Capture
from tests.rigs.database import Database

from levada.postgres.ddl_functions import DDL_PREFIX
from levada.postgres.description_sql import DESCRIPTION_QUERY
from levada.postgres.stream import ReplicationStream

GARBAGE = [b"garbage", b"", b"\xff\x00", b"null", b"[" * 100_000, b"x" * 32 + b"null", b'{"id": ' + b"1" * 5000 + b"}"]


@pytest.fixture
def capture(db: Database, tmp_path: Path) -> Capture:
    """A capture of a database that has the trigger."""
    return Capture(db, tmp_path / "staging", ddl_messages=True)


def emit(db: Database, user: str, *contents: bytes, transactional: bool = True) -> None:
    """Write messages as a role without any right."""
    with replace(db.connection, user=user).connect() as c:
        for content in contents:
            c.execute("SELECT pg_logical_emit_message(%s, %s, %s::bytea)", [transactional, DDL_PREFIX, content])


@pytest.mark.parametrize("transactional", [True, False])
def test_garbage_is_passed_over(
    capture: Capture, db: Database, role: str, transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Unreadable messages change nothing, stop nothing, and are logged once."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, x int)")
    capture.prepare()
    with capture.running():
        emit(db, role, *GARBAGE, transactional=transactional)
        db.execute("INSERT INTO a VALUES (1, 1)")
        capture.catch_up()
    assert capture.error is None
    assert capture.failures == []
    assert capture.replayed("a") == capture.source("a")
    assert caplog.text.count("ignoring a message") == 1


def test_forged_description_steers_nothing(capture: Capture, db: Database, role: str) -> None:
    """A message that says two columns have changed their names, with every detail right, changes no value."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, x int, y int)")
    capture.prepare()
    swapped = description_of(db, "a")
    swapped["columns"][1][1], swapped["columns"][2][1] = "y", "x"
    forged = json.dumps(swapped).encode()
    with capture.running(), db.connect() as c:
        c.execute("INSERT INTO a VALUES (1, 10, 20)")
        capture.catch_up()
        emit(db, role, forged, bytes(32) + forged)
        # The server repeats the table's RELATION.
        c.execute("ALTER TABLE a SET (fillfactor = 90)")
        c.execute("INSERT INTO a VALUES (2, 10, 20)")
        capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")
    assert len({s.snapshot_id for s in capture.store.get_table_schemas()}) == 1


def test_message_of_another_transaction_is_refused(capture: Capture, db: Database, role: str) -> None:
    """The trigger's own message, written again by another role in a transaction of its own, changes nothing."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, x int, y int)")
    capture.prepare()
    db.execute("ALTER TABLE a RENAME x TO z")
    with ReplicationStream(db.connection, slot=capture.slot, publication=PUBLICATION) as stream:
        received = receive_until(stream, lambda messages: "C" in kinds(messages))
    mark = DDL_PREFIX.encode() + b"\0"
    [replayed] = [m[35:].partition(b"\0")[2][4:] for m in received if m[25:26] == b"M" and m[35:].startswith(mark)]
    db.execute("ALTER TABLE a RENAME z TO x", "INSERT INTO a VALUES (1, 10, 20)")
    with capture.running():
        capture.catch_up()
        emit(db, role, replayed)
        db.execute("ALTER TABLE a SET (fillfactor = 90)", "INSERT INTO a VALUES (2, 10, 20)")
        capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")
    names = [c.name for c in max(capture.store.get_table_schemas(), key=lambda s: s.snapshot_id).columns]
    assert names == ["id", "x", "y"]


@pytest.mark.parametrize("back", ["ENABLE", "ENABLE ALWAYS"])
def test_trigger_that_was_away_is_not_relied_on(capture: Capture, db: Database, back: str) -> None:
    """A column that was dropped and added again while the trigger was disabled looks as before: the table is parked."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, x int, y int)")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1, 10, 20)")
        capture.catch_up()
    with db.connect() as c:
        c.execute("ALTER EVENT TRIGGER levada_ddl DISABLE")
        c.execute("ALTER TABLE a DROP y")
        c.execute("ALTER TABLE a ADD y int")
        c.execute("INSERT INTO a VALUES (2, 10, 20)")
        c.execute(sql.SQL("ALTER EVENT TRIGGER levada_ddl {}").format(sql.SQL(back)))  # type: ignore[arg-type]
    with capture.running():
        capture.catch_up()
    assert capture.error is None
    assert [error.code for _, error in capture.failures] == ["schema_change_ambiguous"]
    assert capture.column("a", "id") == [1]


def description_of(db: Database, name: str) -> Any:
    """The JSON that the trigger would write of a table."""
    with db.connect() as c:
        row = c.execute(DESCRIPTION_QUERY + sql.SQL(" WHERE c.oid = %s::regclass"), [name]).fetchone()
    assert row is not None
    return row[0]
