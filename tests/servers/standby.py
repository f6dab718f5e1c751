"""A hot standby of an embedded PostgreSQL, with logical decoding."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from levada.local.postgres import EmbeddedPostgres


@contextmanager
def standby_of(
    primary: EmbeddedPostgres, settings: Mapping[str, str] | None = None, loopback: str = ""
) -> Iterator[EmbeddedPostgres]:
    """Run a standby that streams from ``primary``, in a temporary folder that is removed afterwards.

    With ``loopback`` it listens at that address, at the port of the primary, as another member of a cluster does.
    """
    if not (primary.bin / "pg_basebackup").exists():
        pytest.skip("the packages of this version have no pg_basebackup")
    with tempfile.TemporaryDirectory(prefix="levada-standby-") as folder:
        feedback = {"hot_standby_feedback": "on", **(settings or {})}
        place = {"loopback": loopback, "port": primary.port} if loopback else {}
        standby = EmbeddedPostgres(Path(folder) / "data", programs=primary.bin, settings=feedback, **place)
        standby.data.mkdir(mode=0o700)
        standby._open_to_system_user()
        standby._run("pg_basebackup", "-D", standby.data, "-d", primary.uri(), "--write-recovery-conf", "-c", "fast")
        with standby:
            yield standby


@contextmanager
def logged_snapshots(primary: EmbeddedPostgres) -> Iterator[None]:
    """Let the primary log its running transactions all the time. A standby creates no slot before it has read them."""
    ended = threading.Event()

    def log() -> None:
        with psycopg.connect(primary.uri(), autocommit=True) as connection:
            while not ended.wait(0.2):
                connection.execute("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
