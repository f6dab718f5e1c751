"""Rows of a transaction in progress are staged before its end, and are then as if they had been staged after it."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from tests.rigs.capture import Capture
from tests.rigs.database import Database, StartPostgres
from tests.rigs.open_transactions import Client, send_immediately

from levada import codes
from levada.capture.in_progress import InProgressLimits
from levada.capture.message_stream import SliceLimits
from levada.errors import Transient
from levada.postgres.slots import create_slot
from levada.schema import TableTarget
from levada.segments import StagedBatch, TableStart
from levada.segments.manifest import EARLY_VERSION, MANIFEST_VERSION
from levada.values import Lsn, OnUnrepresentable, TableId

SMALL: dict[str, Any] = {
    "slices": SliceLimits(messages=40, bytes=1 << 20),
    "in_progress": InProgressLimits(chunk_messages=10),
}
"""The sizes with which a transaction of a few rows is staged while it is in progress."""


def stream_early(db: Database) -> None:
    """Let the server send transactions of a few rows before their end."""
    with db.connect() as c:
        name = sql.Identifier(db.name)
        c.execute(sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'").format(name))
        send_immediately(c)


def early_files(capture: Capture) -> list[str]:
    """The files of transactions that have not ended, and of those that were staged before their end."""
    return [name for name in capture.staging.list("shop") if name.startswith("open-")]


def used(capture: Capture) -> int:
    """The number of segments whose rows were staged before the COMMIT."""
    return sum(any("/open-" in path for path in m.paths) for m in capture.log.list())


def events(capture: Capture, tables: list[str]) -> list[Any]:
    """Everything that is staged of these tables, as a destination of events gets it."""
    manifests = capture.log.list()
    versions = [v.schema() for m in manifests for v in m.versions]
    oids = {TableId(capture.table(name)) for name in tables}
    starts = [
        TableStart(TableTarget.of(min((v for v in versions if v.id == t), key=lambda v: v.snapshot_id)), Lsn(0))
        for t in sorted(oids & {v.id for v in versions})
    ]
    return list(StagedBatch(capture.staging, manifests, starts, Lsn(2**62), OnUnrepresentable.NULL))


def test_rows_are_staged_before_the_commit_and_visible_at_it(capture: Capture, db: Database, tmp_path: Path) -> None:
    """The files are there while no manifest names them. At the COMMIT they are the segment, with its LSN and time."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    db.execute("CREATE TABLE b (id int PRIMARY KEY)")
    db.execute("INSERT INTO a VALUES (0), (-1)")
    capture.prepare()
    stream_early(db)
    capture.new_worker(work_dir=tmp_path, **SMALL)
    with capture.running(), db.connect() as c:
        db.execute("INSERT INTO b VALUES (1)")
        db.execute("UPDATE a SET v = 'x' WHERE id = 0")
        capture.catch_up()
        c.execute("BEGIN")
        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 6000) i")
        c.execute("UPDATE a SET v = 'y' WHERE id < 2")
        c.execute("DELETE FROM a WHERE id > 5990")
        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(7001, 8000) i")
        capture.until(lambda: early_files(capture) != [])
        assert (len(capture.rows("a")), used(capture)) == (1, 0)
        db.execute("INSERT INTO b VALUES (2)")
        capture.catch_up()
        c.execute("COMMIT")
        db.execute("INSERT INTO b VALUES (3)")
        capture.catch_up()
    assert capture.error is None
    assert used(capture) == 1
    assert capture.replayed("a") == capture.source("a")
    assert sorted(capture.column("b", "id")) == [1, 2, 3]
    versions = {m.name: json.loads(capture.staging.read(f"shop/{m.name}.json"))["version"] for m in capture.log.list()}
    assert versions == {
        m.name: MANIFEST_VERSION if m.files.commit_ts_us is None else EARLY_VERSION for m in capture.log.list()
    }
    named = {path for m in capture.log.list() for path in m.paths}
    assert {f"shop/{name}" for name in early_files(capture)} <= named


@pytest.mark.parametrize("end", ["ROLLBACK", "kill"])
def test_nothing_is_left_of_what_did_not_commit(capture: Capture, db: Database, tmp_path: Path, end: str) -> None:
    """Files of a transaction that is rolled back are removed, and so are those of one whose session ends."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    capture.prepare()
    stream_early(db)
    capture.new_worker(work_dir=tmp_path, **SMALL)
    with db.connect() as c:
        with capture.running():
            db.execute("INSERT INTO a VALUES (-1)")
            capture.catch_up()
            c.execute("BEGIN")
            c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 6000) i")
            capture.until(lambda: early_files(capture) != [])
            if end == "ROLLBACK":
                c.execute("ROLLBACK")
                capture.until(lambda: early_files(capture) == [])
        assert early_files(capture) == []
        if end == "kill":
            c.execute("COMMIT")
    capture.new_worker(work_dir=tmp_path, **SMALL)
    with capture.running():
        capture.catch_up()
    assert capture.replayed("a") == capture.source("a")


def test_several_at_the_same_time(capture: Capture, db: Database, tmp_path: Path) -> None:
    """Of twenty transactions in progress, 16 are staged side by side. All are in the order of their commits."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    capture.prepare()
    stream_early(db)
    capture.new_worker(work_dir=tmp_path, **SMALL)
    with capture.running():
        db.execute("INSERT INTO a VALUES (-1)")
        capture.catch_up()
        clients = [db.connect() for _ in range(20)]
        for n, c in enumerate(clients):
            c.__enter__()
            c.execute("BEGIN")
            c.execute(
                "INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(%s::int, %s::int) i",
                (n * 1000, n * 1000 + 100),
            )
        for n, c in enumerate(clients):
            c.execute(
                "INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(%s::int, %s::int) i",
                (n * 1000 + 501, n * 1000 + 550),
            )
        for c in reversed(clients):
            c.execute("COMMIT")
            c.__exit__(None, None, None)
        capture.catch_up()
    assert capture.error is None
    assert used(capture) == 16
    assert capture.replayed("a") == capture.source("a")


@pytest.mark.parametrize("rows", [30, 300])
def test_a_part_that_is_rolled_back(capture: Capture, db: Database, tmp_path: Path, rows: int) -> None:
    """Its rows do not count, whether the first messages were taken for a segment before the ROLLBACK or after it."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    capture.prepare()
    stream_early(db)
    limits = InProgressLimits(chunk_messages=100)
    capture.new_worker(work_dir=tmp_path, slices=SliceLimits(messages=40, bytes=1 << 20), in_progress=limits)
    with capture.running(), db.connect() as c:
        db.execute("INSERT INTO a VALUES (-1)")
        capture.catch_up()
        c.execute("BEGIN")
        c.execute("SAVEPOINT s")
        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, %s::int) i", [rows])
        c.execute("ROLLBACK TO SAVEPOINT s")
        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(1001, 1500) i")
        c.execute("COMMIT")
        db.execute("INSERT INTO a VALUES (-2)")
        capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")


def test_a_source_that_cannot_read_its_catalog(capture: Capture, db: Database, tmp_path: Path) -> None:
    """After an internal error for a transaction in progress, the next session receives all after their COMMIT."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "CREATE TABLE b (id int PRIMARY KEY, v text)")
    capture.prepare()
    stream_early(db)
    capture.new_worker(work_dir=tmp_path, **SMALL)
    with db.connect() as c:
        with suppress(Transient), capture.running():
            db.execute("INSERT INTO a VALUES (-1)")
            capture.catch_up()
            c.execute("BEGIN")
            c.execute("INSERT INTO a SELECT i FROM generate_series(1, 400) i")
            c.execute("SAVEPOINT s")
            c.execute("TRUNCATE a")
            c.execute("INSERT INTO a VALUES (1)")
            c.execute("ROLLBACK TO SAVEPOINT s")
            c.execute("INSERT INTO a SELECT i FROM generate_series(501, 900) i")
            c.execute("TRUNCATE a")
            c.execute("INSERT INTO a SELECT i FROM generate_series(501, 900) i")
            c.execute("COMMIT")
            capture.catch_up()
        failed = capture.error is not None
        assert not failed or getattr(capture.error, "code", "") in ("catalog_changed", "source_internal_error")
        with capture.running():
            c.execute("BEGIN")
            c.execute("INSERT INTO b SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 600) i")
            db.execute("INSERT INTO a VALUES (-2)")
            capture.catch_up()
            if failed:
                assert capture.worker.position.in_progress_bytes == 0
            c.execute("COMMIT")
            capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")
    assert capture.replayed("b") == capture.source("b")


INSIDE = {
    "alter": ["ALTER TABLE a ADD COLUMN w int DEFAULT 7",
        "INSERT INTO a SELECT i, 'z', i FROM generate_series(9001, 9100) i"],
    "truncate": ["TRUNCATE a", "INSERT INTO a SELECT i, 'z' FROM generate_series(9001, 9100) i"],
    "savepoint": [
        "SAVEPOINT s", "DELETE FROM a WHERE id % 3 = 0", "ROLLBACK TO SAVEPOINT s", "INSERT INTO a VALUES (9001, 'z')",
    ],
    "rolled back twice": [
        "INSERT INTO p VALUES (1), (198)", "SAVEPOINT s",
        "INSERT INTO a SELECT i, 'z' FROM generate_series(9001, 9200) i",
        "SAVEPOINT t", "UPDATE a SET v = 'u' WHERE id % 7 = 0", "ROLLBACK TO SAVEPOINT t",
        "UPDATE p SET id = id + 1 WHERE id = 1",
        "SAVEPOINT r", "DELETE FROM a WHERE id % 5 = 0", "RELEASE SAVEPOINT r", "ROLLBACK TO SAVEPOINT s",
        "UPDATE a SET v = 'w' WHERE id % 9 = 0",
        "SAVEPOINT u", "DELETE FROM a WHERE id % 11 = 0", "RELEASE SAVEPOINT u",
    ],
    "truncate rolled back": [
        "SAVEPOINT s", "TRUNCATE p", "INSERT INTO p VALUES (1)", "ROLLBACK TO SAVEPOINT s", "INSERT INTO p VALUES (3)",
    ],
    "described in it alone": [
        "SAVEPOINT s", "INSERT INTO p SELECT i FROM generate_series(1, 198) i", "ROLLBACK TO SAVEPOINT s",
        "UPDATE a SET v = 'w' WHERE id % 9 = 0",
    ],
    "caught errors": [
        "DO $$ BEGIN FOR i IN 1..60 LOOP BEGIN UPDATE a SET v = v || i WHERE id = i;"
        " IF i % 2 = 0 THEN RAISE 'x'; END IF;"
        " EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$",
    ],
    "many parts": [
        "DO $$ BEGIN FOR i IN 1..10050 LOOP BEGIN INSERT INTO a VALUES (20000 + i, 'p');"
        " EXCEPTION WHEN unique_violation THEN NULL; END; END LOOP; END $$",
        "SAVEPOINT s", "INSERT INTO a SELECT i, repeat(md5(i::text), 60) FROM generate_series(40001, 42000) i",
        "ROLLBACK TO SAVEPOINT s",
    ],
    "released": ["SAVEPOINT s", "DELETE FROM a WHERE id % 3 = 0",
        "RELEASE SAVEPOINT s", "INSERT INTO a VALUES (9001, 'z')"],
    "moved keys": ["UPDATE a SET id = id + 100000 WHERE id % 2 = 0", "UPDATE a SET id = -id WHERE id % 5 = 0"],
    "unchanged values": [
        "INSERT INTO a SELECT i, (SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 200) n)"
        " FROM generate_series(9001, 9040) i",
        "UPDATE a SET id = id + 1000000 WHERE id > 9000",
    ],
    "another table": ["CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO c SELECT generate_series(1, 100)"],
    "partitions": ["INSERT INTO p SELECT i FROM generate_series(1, 198) i"],
    "message": ["SELECT pg_logical_emit_message(true, 'other', 'text')", "DELETE FROM a WHERE id % 3 = 0"],
}  # fmt: skip
"""Statements of a transaction whose other changes are staged before its end."""

EARLY = INSIDE.keys() - {"alter", "another table", "many parts"}
"""Those with which it is staged before its end."""


@pytest.mark.parametrize("ddl_messages", [False, True])
@pytest.mark.parametrize(
    "inside", [pytest.param(n, marks=pytest.mark.nightly if n == "many parts" else ()) for n in INSIDE]
)
def test_statements_inside(db: Database, tmp_path: Path, inside: str, ddl_messages: bool) -> None:
    """Every event of a transaction that is staged before its end is as by protocol version 1."""
    capture, plain = (Capture(db, tmp_path / name, ddl_messages=ddl_messages) for name in ("staging", "plain"))
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    db.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for n in range(2):
        db.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n * 100}) TO ({n * 100 + 100})")  # type: ignore[arg-type]
    capture.prepare()
    db.execute("ALTER PUBLICATION levada_shop SET (publish_via_partition_root)")
    plain.slot += "_plain"
    with db.connect() as c:
        create_slot(c, plain.slot)
    stream_early(db)
    capture.new_worker(work_dir=tmp_path, **SMALL)
    plain.new_worker()
    with capture.running(), db.connect() as c:
        db.execute("INSERT INTO a VALUES (-1)")
        db.execute("INSERT INTO p VALUES (0), (199)")
        capture.catch_up()
        c.execute("BEGIN")
        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 300) i")
        for statement in INSIDE[inside]:
            c.execute(statement)  # type: ignore[arg-type]
        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(3001, 3100) i")
        c.execute("COMMIT")
        db.execute("INSERT INTO a VALUES (-2)")
        capture.catch_up()
    assert capture.error is None
    assert (used(capture) > 0) == (inside in EARLY)
    assert capture.replayed("a") == capture.source("a")
    with plain.running():
        plain.catch_up()
    tables = ["a", "p", "c"] if inside == "another table" else ["a", "p"]
    assert events(capture, tables) == events(plain, tables)


STAGED = (0, 3)
"""Seeds of which a transaction is staged before its COMMIT. In others each one may alter a table."""


@pytest.mark.parametrize(
    ("seed", "chunk"),
    [
        *zip(STAGED, (4, 30), strict=True),
        *(pytest.param(n, (2, 4, 15, 60)[n % 4], marks=pytest.mark.nightly) for n in range(5, 45)),
    ],
)
def test_random_transactions_are_staged_as_by_the_other_protocol(
    db: Database, tmp_path: Path, seed: int, chunk: int
) -> None:
    """Every event is the same, for savepoints, DDL and TRUNCATE in interleaved transactions too."""
    capture, plain = (Capture(db, tmp_path / name, ddl_messages=True) for name in ("staging", "plain"))
    tables = Client.create(db, 3)
    capture.prepare()
    plain.slot += "_plain"
    with db.connect() as c:
        create_slot(c, plain.slot)
    stream_early(db)
    tiny: dict[str, Any] = {
        "slices": SliceLimits(messages=8, bytes=1 << 20),
        "in_progress": InProgressLimits(chunk_messages=chunk),
    }
    capture.new_worker(work_dir=tmp_path, **tiny)
    plain.new_worker()
    with capture.running():
        clients = [Client(db, n, seed) for n in range(3)]
        order = random.Random(seed)
        for _ in range(120):
            order.choice(clients).step()
        for client in clients:
            client.end()
            client.close()
        with suppress(Transient):
            capture.catch_up()
    if capture.error is not None:
        # PostgreSQL cannot decode some transactions with DDL or a TRUNCATE while they are in progress.
        assert getattr(capture.error, "code", "") in {codes.CATALOG_CHANGED, codes.SOURCE_INTERNAL_ERROR}
        with capture.running():
            capture.catch_up()
    assert capture.error is None
    with plain.running():
        plain.catch_up()
    assert events(capture, tables) == events(plain, tables)
    assert used(capture) > 0 or seed not in STAGED


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction(start_postgres: StartPostgres, tmp_path: Path, end: str) -> None:
    """It stays staged after PREPARE, and is visible at COMMIT PREPARED or never, also in the next session.

    That one stages it early too only if it has read a row of the table before, which the slot need not send again.
    """
    with start_postgres(settings={"max_prepared_transactions": "5", "wal_level": "logical"}) as server:
        db = Database(server, "postgres")
        capture = Capture(db, tmp_path / "staging")
        db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        capture.prepare()
        stream_early(db)
        for turn in range(2):
            capture.new_worker(work_dir=tmp_path, **SMALL)
            with capture.running():
                db.execute(f"INSERT INTO a VALUES ({-1 - turn})")  # type: ignore[arg-type]  # a number
                capture.catch_up()
                if not turn:
                    with db.connect() as c:
                        c.execute("BEGIN")
                        c.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 6000) i")
                        c.execute("PREPARE TRANSACTION 'p'")
                    capture.until(lambda: early_files(capture) != [])
                assert sorted(capture.column("a", "id")) == [-1 - n for n in range(turn, -1, -1)]
                if turn:
                    db.execute(f"{end} PREPARED 'p'")  # type: ignore[arg-type]  # one of two words
                    capture.catch_up()
            assert capture.error is None
        assert used(capture) <= (end == "COMMIT")
        assert capture.replayed("a") == capture.source("a")
        assert (early_files(capture) != []) == (used(capture) > 0)


def test_texts_of_another_encoding(db: Database, tmp_path: Path) -> None:
    """They are converted before the end of the transaction too, and one that cannot be is NULL under that policy."""
    name = f"{db.name}_encoded"
    db.execute(f"CREATE DATABASE {name} ENCODING 'WIN1252' TEMPLATE template0 LOCALE 'C'")  # type: ignore[arg-type]  # a name of the test
    encoded = Database(db.server, name)
    try:
        encoded.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (0, '')")
        capture = Capture(encoded, tmp_path / "staging")
        capture.prepare()
        stream_early(encoded)
        capture.new_worker(work_dir=tmp_path, **SMALL)
        with capture.running(), encoded.connect() as c:
            encoded.execute("UPDATE a SET v = chr(233)")
            capture.catch_up()
            c.execute("BEGIN")
            c.execute("INSERT INTO a SELECT i, chr(233) || repeat(md5(i::text), 60) FROM generate_series(1, 3000) i")
            c.execute("INSERT INTO a VALUES (3001, chr(129))")
            c.execute("COMMIT")
            capture.catch_up()
        assert capture.error is None
        assert used(capture) == 1
        replayed = capture.replayed("a")
        assert len(replayed) == 3002
        assert replayed[3001]["v"] is None
        assert {row["v"][:1] for key, row in replayed.items() if key != 3001} == {"\u00e9"}
    finally:
        encoded.close()
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]  # as above
