"""Dumps of a source that has Levada's publication and event triggers, restored into another database."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.managed_publication import manage, published

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.seal import SEAL_SCHEMA


@pytest.fixture
def copy(db: Database, admin: Database) -> Iterator[Database]:
    """Another empty database of the test."""
    name = f"{db.name}_copy"
    admin.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # a name
    made = Database(db.server, name)
    yield made
    made.close()
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]  # a name


def program(server: EmbeddedPostgres, name: str, *arguments: object) -> str:
    """Run a program of the server's own version to its end."""
    if not (server.bin / name).exists():
        pytest.skip(f"the packages of this version have no {name}")
    done = subprocess.run([server.bin / name, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def dump(db: Database, tmp_path: Path) -> Path:
    """The dump of a database with a published table and the event triggers, and of a slot that reads it."""
    db.execute("CREATE TABLE media (id int PRIMARY KEY, v text)", "INSERT INTO media VALUES (1, 'a')")
    manage(db, "media")
    db.execute("ALTER PUBLICATION p RENAME TO levada_p")
    with db.connection.connect() as c:
        assert install_ddl_trigger(c)
    program(db.server, "pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", db.uri)
    return tmp_path / "dump"


def test_a_restored_copy_by_a_superuser(db: Database, dump: Path, copy: Database) -> None:
    """The event triggers keep UPDATEs there working, and announce nothing to the slot of the source."""
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"slot_{db.name}")
    program(db.server, "pg_restore", "--exit-on-error", "-d", copy.uri, dump)
    assert published(copy) == {"media"}
    copy.execute("ALTER TABLE media DROP CONSTRAINT media_pkey", "UPDATE media SET v = 'b'")
    assert published(copy) == set()
    assert published(db) == {"media"}
    changes = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'levada_p', 'messages', 'true')"
    )
    assert db.query(changes, f"slot_{db.name}") == []


def test_a_restored_copy_by_another_role(db: Database, dump: Path, copy: Database, role: str) -> None:
    """The list that the documentation leaves out restores the tables without an error, and nothing of Levada's."""
    copy.execute(f"GRANT CREATE ON DATABASE {copy.name} TO {role}; GRANT ALL ON SCHEMA public TO {role}")  # type: ignore[arg-type]  # names
    entries = program(db.server, "pg_restore", "--list", dump).splitlines()
    listed = dump.with_suffix(".list")
    listed.write_text("\n".join(line for line in entries if "levada" not in line))
    uri = db.server.uri(copy.name, role)
    program(db.server, "pg_restore", "--exit-on-error", "--no-owner", f"--use-list={listed}", "-d", uri, dump)
    assert published(copy) == set()
    assert copy.query("SELECT FROM pg_event_trigger") == []
    assert copy.query("SELECT FROM pg_namespace WHERE nspname = %s", SEAL_SCHEMA) == []
    copy.execute("ALTER TABLE media DROP CONSTRAINT media_pkey", "UPDATE media SET v = 'b'")
    copy.execute(f"DROP OWNED BY {role}")  # type: ignore[arg-type]  # a name
