"""Streams of a real PostgreSQL in small files, with the events that they must decode to.

Run ``python -m tests.pgoutput.capture_golden`` from the repository's root to capture them again. Then read the
differences.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from tests.pgoutput.source import SETTINGS, Versions, create_slot, stream

from levada.local.postgres import EmbeddedPostgres
from levada.pgoutput.decoder import Decoder
from levada.pgoutput.events import Event, Key, Partial, TruncateEvent, batch_events

FOLDER = Path(__file__).parent / "golden"
PREFIXES = ("app",)

SCENARIOS: dict[str, tuple[list[str], list[str]]] = {
    "rows": (
        ["CREATE TABLE t (id int PRIMARY KEY, name text, amount numeric(8,2), at timestamptz, tags text[])"],
        [
            "INSERT INTO t VALUES (1, 'a', 1.5, '2024-01-02 03:04:05.5+00', '{x,NULL,\"y z\"}'),"
            " (2, NULL, NULL, NULL, '{}')",
            "UPDATE t SET name = 'b' WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
            "INSERT INTO t VALUES (4, 'é', 'NaN', '-infinity', '{{1},{2}}'),"
            " (5, '', -0.01, '0044-03-15 BC', '{\"\\\\\\\"\"}')",
            "DELETE FROM t WHERE id < 4",
            "BEGIN; INSERT INTO t VALUES (6); ROLLBACK",
        ],
    ),
    "toast": (
        [
            "CREATE TABLE t (id int PRIMARY KEY, big text, n int)",
            "CREATE TABLE f (id int PRIMARY KEY, big text, n int)",
            "CREATE TABLE k (id text PRIMARY KEY, n int)",
            "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
            "ALTER TABLE f ALTER big SET STORAGE EXTERNAL",
            "ALTER TABLE k ALTER id SET STORAGE EXTERNAL",
            "ALTER TABLE f REPLICA IDENTITY FULL",
        ],
        [
            "INSERT INTO t VALUES (1, repeat('x', 2100), 0)",
            "INSERT INTO f VALUES (1, repeat('y', 2100), 0)",
            "INSERT INTO k VALUES (repeat('z', 2100), 0)",
            "UPDATE t SET n = 1; UPDATE f SET n = 1; UPDATE k SET n = 1",
            "UPDATE t SET id = 2",
            "DELETE FROM t; DELETE FROM f; DELETE FROM k",
        ],
    ),
    "identities": (
        [
            "CREATE TABLE i (a int, b text NOT NULL UNIQUE, c int)",
            "ALTER TABLE i REPLICA IDENTITY USING INDEX i_b_key",
            "CREATE TABLE f (a int, b text)",
            "ALTER TABLE f REPLICA IDENTITY FULL",
        ],
        [
            "INSERT INTO i VALUES (1, 'one', 1), (2, 'two', 2); INSERT INTO f VALUES (1, 'one'), (NULL, NULL)",
            "UPDATE i SET b = 'uno' WHERE a = 1; UPDATE i SET c = 0 WHERE a = 2; UPDATE f SET b = 'uno' WHERE a = 1",
            "DELETE FROM i; DELETE FROM f",
        ],
    ),
    "schema_change": (
        ["CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE other (id int PRIMARY KEY)"],
        [
            "INSERT INTO t VALUES (1, 1)",
            "BEGIN; INSERT INTO t VALUES (2, 2); INSERT INTO other VALUES (1); ALTER TABLE t ADD b text DEFAULT 'x';"
            " INSERT INTO t VALUES (3, 3, 'y'); ALTER TABLE t RENAME a TO z; ALTER TABLE t ALTER z TYPE bigint;"
            " INSERT INTO t VALUES (4, 4, 'z'); INSERT INTO other VALUES (2); COMMIT",
            "ALTER TABLE t DROP b; INSERT INTO t VALUES (5, 5)",
        ],
    ),
    "truncate": (
        [
            "CREATE TABLE p (id int PRIMARY KEY)",
            "CREATE TABLE c (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, p int REFERENCES p)",
        ],
        [
            "INSERT INTO p VALUES (1), (2); INSERT INTO c (p) VALUES (1)",
            "BEGIN; INSERT INTO p VALUES (3); TRUNCATE p CASCADE; INSERT INTO p VALUES (4); COMMIT",
            "TRUNCATE c RESTART IDENTITY",
        ],
    ),
    "messages": (
        ["CREATE TYPE mood AS ENUM ('glad')", "CREATE TABLE t (id int PRIMARY KEY, m mood)"],
        [
            "SELECT pg_logical_emit_message(false, 'app', 'outside')",
            "BEGIN; INSERT INTO t VALUES (1, 'glad'); SELECT pg_logical_emit_message(true, 'app', 'inside');"
            " SELECT pg_logical_emit_message(true, 'other', 'unheard'); INSERT INTO t VALUES (2, NULL); COMMIT",
            "SELECT pg_replication_origin_create('elsewhere')",
            "SELECT pg_replication_origin_session_setup('elsewhere')",
            "INSERT INTO t VALUES (3, NULL)",
        ],
    ),
}


def load(name: str) -> list[bytes]:
    """Read a captured stream."""
    return [bytes.fromhex(line) for line in (FOLDER / f"{name}.hex").read_text().splitlines()]


def expected(name: str) -> list[str]:
    """Read the events of a captured stream."""
    return (FOLDER / f"{name}.txt").read_text().splitlines()


def events(messages: Sequence[bytes]) -> list[str]:
    """Decode a stream in one slice, and print its events."""
    batch = Decoder(Versions(), message_prefixes=PREFIXES).decode(messages)
    return list(show(batch_events(batch)))


def show(found: Iterator[Event]) -> Iterator[str]:
    """Print events without what differs from one server to another: table ids, xids and times."""
    for event in found:
        place = f"{event.commit_lsn} {event.ordinal} {type(event).__name__}"
        table = f" {event.schema.name.name}" if hasattr(event, "schema") else ""
        rows = [f" {part}={_row(getattr(event, part))}" for part in ("old", "row") if hasattr(event, part)]
        columns = f" {[(c.name, c.type.kind.value) for c in event.schema.columns]}" if not rows and table else ""
        rest = f" of {len(event.tables)}" if isinstance(event, TruncateEvent) else ""
        rest += f" cascade={event.cascade} restart={event.restart_identity}" if rest else ""
        rest += f" {event.what}" if hasattr(event, "what") else ""
        rest += f" from {event.start_lsn}" if hasattr(event, "start_lsn") else ""
        rest += f" to {event.end_lsn}" if hasattr(event, "end_lsn") else ""
        yield place + table + columns + "".join(rows) + rest


def _row(row: Any) -> str:
    if row is None:
        return "None"
    values = {name: _short(value) for name, value in row.values.items()}
    unchanged = f" unchanged={list(row.unchanged)}" if isinstance(row, Partial) else ""
    told = f" unrepresentable={dict(row.unrepresentable)}" if row.unrepresentable else ""
    return f"{'Key' if isinstance(row, Key) else type(row).__name__}{values}{unchanged}{told}"


def _short(value: Any) -> str:
    return f"{value[0]}*{len(value)}" if isinstance(value, str) and len(value) > 1000 else str(value)


def capture(uri: str, before: Sequence[str], statements: Sequence[str]) -> list[bytes]:
    """Run statements on an empty database, and return the stream of the latter ones."""
    with psycopg.connect(uri, autocommit=True, options=SETTINGS) as conn:
        for statement in before:
            conn.execute(statement.encode())
        conn.execute("CREATE PUBLICATION p FOR ALL TABLES")
        create_slot(conn)
        with psycopg.connect(uri, autocommit=True, options=SETTINGS) as writer:
            for statement in statements:
                writer.execute(statement.encode())
        messages = stream(conn)
        conn.execute("SELECT pg_drop_replication_slot('s')")
    return messages


def main() -> None:
    """Capture every scenario again."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "data") as server:
        for name, (before, statements) in SCENARIOS.items():
            with psycopg.connect(server.uri(), autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {name}".encode())
            messages = capture(server.uri(name), before, statements)
            (FOLDER / f"{name}.hex").write_text("".join(f"{m.hex()}\n" for m in messages))
            (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in events(messages)))


if __name__ == "__main__":
    main()
