"""The events of batches after kill -9: the same transactions, value for value, as an undisturbed stream has."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.faults.event_log import HIDDEN, shown
from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada.capture import WalChangeCapture
from levada.events import RelationEvent, TruncateEvent
from levada.local.postgres import temporary_postgres
from levada.values import Lsn

KILLS = 5
TABLES = ("CREATE TABLE a (id int PRIMARY KEY, note text)", "CREATE TABLE b (id int PRIMARY KEY, a int)")


@pytest.fixture
def db() -> Iterator[Database]:
    """A server of its own, which allows prepared transactions."""
    with temporary_postgres(settings={"max_prepared_transactions": "5", "max_replication_slots": "20"}) as server:
        yield Database(server, "postgres")


class Traffic:
    """Transactions of many kinds, one after another in a thread."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with self._db.connect() as connection:
                while not self._stop.is_set():
                    self._transaction(connection, self.count)
                    self.count += 1
                    self._stop.wait(0.02)
        except BaseException as error:
            self._failure = error

    def _transaction(self, c: psycopg.Connection[Any], n: int) -> None:
        one, two = 100_000 + 2 * n, 100_001 + 2 * n
        match n % 12:
            case 0:
                c.execute("BEGIN")
                c.execute("INSERT INTO a (id, note) VALUES (%s, 'x')", [one])
                c.execute("SAVEPOINT s")
                c.execute("INSERT INTO b VALUES (%s, 1)", [one])
                c.execute("ROLLBACK TO s")
                c.execute("SAVEPOINT s")
                c.execute("INSERT INTO b VALUES (%s, 2)", [two])
                c.execute("RELEASE s; COMMIT")
            case 1:
                c.execute("BEGIN; INSERT INTO a (id) VALUES (-1); ROLLBACK")
            case 2:
                c.execute("BEGIN; INSERT INTO b VALUES (%s); PREPARE TRANSACTION 'p'".replace("%s", str(one)).encode())
                c.execute("INSERT INTO a (id) VALUES (%s)", [two])
                c.execute("COMMIT PREPARED 'p'")
            case 3:
                c.execute(f"BEGIN; INSERT INTO a (id) VALUES ({one}); PREPARE TRANSACTION 'r'".encode())
                c.execute("ROLLBACK PREPARED 'r'")
            case 4:
                c.execute("SELECT pg_logical_emit_message(true, 'levada_test', repeat('x', 100))")
                c.execute("INSERT INTO hidden VALUES (%s)", [one])
            case 5:
                c.execute("BEGIN; INSERT INTO hidden VALUES (%s)".replace("%s", str(two)).encode())
                c.execute("UPDATE a SET note = 'y' WHERE id %% 7 = %s", [n % 7])
                c.execute("SELECT pg_logical_emit_message(true, 'levada_test', 'inside')")
                c.execute("COMMIT")
            case 6 if n % 120 == 6:
                c.execute("BEGIN; INSERT INTO b VALUES (-5); TRUNCATE a, b, hidden CASCADE; INSERT INTO b VALUES (-6)")
                c.execute("COMMIT; DELETE FROM b WHERE id = -6")
            case 7 if n % 60 == 7:
                c.execute(f"BEGIN; INSERT INTO a (id) VALUES ({one}); ALTER TABLE a ADD c{n} int DEFAULT {n}".encode())
                c.execute(f"INSERT INTO a (id, c{n}) VALUES ({two}, 5); COMMIT".encode())
            case 8 if n in (8, 152):
                c.execute("INSERT INTO b SELECT i, i FROM generate_series(1000000, 1017000) i")
                c.execute("DELETE FROM b WHERE id >= 1000000")
            case 9 if n == 69:
                c.execute("CREATE TABLE late (id int PRIMARY KEY)")
            case 10 if n > 69:
                c.execute(f"BEGIN; INSERT INTO late VALUES ({one}); INSERT INTO b VALUES ({one}); COMMIT".encode())
            case _:
                c.execute("INSERT INTO a (id) VALUES (%s)", [one])


def start(source: Database, folder: Path, ordering: str) -> subprocess.Popen[bytes]:
    """Start the pipeline."""
    arguments = [str(source.server.port), source.name, str(folder), ordering]
    with (folder / "engine.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.event_log", *arguments], stdout=log, stderr=subprocess.STDOUT
        )


def batches(folder: Path) -> list[list[str]]:
    """Return the lines of each batch. The last line of a batch that was killed may be torn."""
    found = []
    for path in sorted(folder.glob("*.log")):
        lines = path.read_text().split("\n")[:-1]
        found.append(lines[:-1] if lines[-1:] == ["end"] else lines)
    return [lines for lines in found if lines]


def wait_for(process: subprocess.Popen[bytes], folder: Path, look: Callable[[], bool]) -> None:
    """Wait until the engine has done what is looked for. Fail with what it printed."""
    until(look, alive=lambda: process.poll() is None, report=lambda: (folder / "engine.txt").read_text()[-4000:])


def wait_for_line(process: subprocess.Popen[bytes], folder: Path, text: str) -> None:
    """Wait until a batch has a line with this text."""
    wait_for(process, folder, lambda: any(text in path.read_text() for path in folder.glob("*.log")))


def kind(line: str) -> str:
    """Return the type of the line's event."""
    return line.split(" ", 1)[0]


def place(line: str) -> tuple[Lsn, int]:
    """Return the commit LSN and the ordinal of the line's event."""
    _, lsn, ordinal, _ = line.split(" ", 3)
    return Lsn.parse(lsn), int(ordinal)


def check_bounds(lines: list[str]) -> None:
    """Check one batch: each transaction once, between its Begin and its Commit, in order."""
    assert [place(line) for line in lines] == sorted(place(line) for line in lines)
    current: Lsn | None = None
    begun = []
    for line in lines:
        lsn, _ = place(line)
        if kind(line) == "Begin":
            assert current is None
            current = lsn
            begun.append(lsn)
            continue
        assert lsn == current
        if kind(line) == "Commit":
            start_lsn, end_lsn = (Lsn.parse(t) for t in re.findall(r"(?:start|end)_lsn=Lsn\('(.+?)'\)", line))
            assert start_lsn < lsn < end_lsn
            current = None
    assert len(begun) == len(set(begun))


def undisturbed(source: Database, last: str) -> list[list[str]]:
    """Return the lines of each transaction in a stream of the same publication. Relations are left out."""
    transactions: list[list[str]] = []
    with WalChangeCapture(source.connection, slot="undisturbed", publication="levada_log").live() as stream:
        for change in stream:
            line = shown(change.event)
            if kind(line) == "Begin":
                transactions.append([])
            if not isinstance(change.event, RelationEvent):
                transactions[-1].append(line)
            if kind(line) == "Commit" and any(last in line for line in transactions[-1]):
                return transactions
    raise AssertionError("unreachable")


def without_hidden(line: str) -> str:
    """Return a truncate without the table that is not selected."""
    return re.sub(
        r"tables=\(.*?\), names", "names", re.sub(r", QualifiedTable\(schema='public', name='hidden'\)", "", line)
    )


@pytest.mark.parametrize("ordering", ["pipeline", "table"])
def test_the_events_are_the_same_after_kills(db: Database, tmp_path: Path, ordering: str) -> None:
    """However often the engine is killed, each batch has whole transactions with the values of an undisturbed stream.

    Among them are subtransactions, rolled back and prepared ones, DDL, truncates of several tables, large ones, and
    transactions of tables that the pipeline does not select.
    """
    db.execute(*TABLES, "CREATE TABLE hidden (id int PRIMARY KEY)")
    process = start(db, tmp_path, ordering)
    try:
        for table in ("a", "b"):
            wait_for(process, tmp_path, (tmp_path / f"copy.{table}").exists)
        db.execute("ALTER PUBLICATION levada_log ADD TABLE hidden")
        db.query("SELECT pg_create_logical_replication_slot('undisturbed', 'pgoutput')")
        with Traffic(db) as traffic:
            for turn in range(KILLS):
                db.execute(f"INSERT INTO b VALUES ({-1000 - turn})")  # type: ignore[arg-type]
                wait_for_line(process, tmp_path, f"'id': {-1000 - turn}")
                process.kill()
                process.wait()
                process = start(db, tmp_path, ordering)
            until(lambda: traffic.count >= 250)
        db.execute("BEGIN; INSERT INTO a (id) VALUES (-77); INSERT INTO b VALUES (-77);"
                   " INSERT INTO late VALUES (-77); COMMIT")  # fmt: skip
        wait_for_line(process, tmp_path, "public.a Full(values={'id': -77")
        wait_for_line(process, tmp_path, "public.b Full(values={'id': -77")
        wait_for_line(process, tmp_path, "public.late Full(values={'id': -77")
    finally:
        process.kill()
        process.wait()
    expected = undisturbed(db, "'id': -77")
    copied = Lsn.parse((tmp_path / "copy.late").read_text())
    known = {without_hidden(line) for t in expected for line in t}
    seen: set[str] = set()
    replayed = 0
    for lines in batches(tmp_path):
        check_bounds(lines)
        for line in map(without_hidden, lines):
            replayed += line in seen
            seen.add(line)
            assert kind(line) == "RelationEvent" or line in known, line
    assert replayed, "no batch came again"
    # Everything came, except transactions of the hidden table, and of the late one from before its copy.
    for transaction in expected:
        inner = [
            line
            for line in map(without_hidden, transaction[1:-1])
            if f"public.{HIDDEN} " not in line and not ("public.late " in line and place(line)[0] < copied)
        ]
        missing = [line for line in [transaction[0], *inner, transaction[-1]] if line not in seen]
        assert not missing if inner else len(missing) == 2, (inner, missing)
    truncates = [line for line in seen if kind(line) == TruncateEvent.__name__]
    assert truncates
    assert all("name='a'" in t and "name='b'" in t for t in truncates)
