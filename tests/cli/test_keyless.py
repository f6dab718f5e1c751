"""Tables without a key that are appended, through the commands. The manifest and the SQL are those of keyless.md."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "keyless.md"
VISITS = "SELECT id, page FROM replica.visits ORDER BY id, page"

OPERATIONS = "SELECT _levada_op, id FROM replica.visits ORDER BY _levada_commit_lsn DESC, _levada_ordinal DESC"


def block(language: str) -> str:
    """Return the page's only block in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def visits(manifest: Path, db: Database) -> Path:
    """A manifest of a table without a key, of one that is partitioned, and of two with keys."""
    db.execute(
        "CREATE TABLE visits (id int, page text)",
        "INSERT INTO visits SELECT i, 'copied' FROM generate_series(1, 3) i",
        "CREATE TABLE parts (id int, day date) PARTITION BY RANGE (day)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "INSERT INTO parts VALUES (1, '2026-01-02')",
    )
    return manifest


def write(path: Path, db: Database, keyless: str = "Append", **spec: Any) -> None:
    """Write the manifest of the page, with this treatment of tables without a key."""
    tables = yaml.safe_load(block("yaml"))["spec"]["tables"] | {"keyless": keyless}
    path.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}}, tables=tables, **spec)))


def table_of(manifest: Path, name: str) -> dict[str, Any]:
    """Return the table's part of `levada status`, empty if it is not replicated."""
    tables = json.loads(on(manifest, "status", "-o", "json").output)["tables"]
    return next((dict(table) for table in tables if table["name"] == name), {})


def members(db: Database, suffix: str = "") -> list[str]:
    """Return the tables of the pipeline's publication with this suffix."""
    name = f"levada_{db.name}{suffix}"
    return [t for (t,) in db.query("SELECT tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1", name)]


@contextmanager
def statements_that_succeed(db: Database) -> Iterator[None]:
    """UPDATE and DELETE the table again and again, and fail if one of them is refused."""
    over, refused = threading.Event(), list[str]()

    def change() -> None:
        with db.connect() as connection:
            while not over.is_set():
                try:
                    connection.execute("UPDATE visits SET page = 'changed' WHERE id = -1")
                    connection.execute("DELETE FROM visits WHERE id = -1")
                except psycopg.errors.ObjectNotInPrerequisiteState as error:
                    refused.append(str(error))
                over.wait(0.005)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert refused == []


def test_no_statement_is_refused_at_any_moment(visits: Path, db: Database) -> None:
    """Before the start, in the copy, in the stream, around DDL in one and two transactions, stopped, and after the end.

    The table moves between the publications, and its rows are those of the source each time.
    """
    write(visits, db, deletionPolicy={"publication": "Delete"})
    source = "SELECT id, page FROM visits ORDER BY id, page"
    with statements_that_succeed(db):
        assert "visits" in on(visits, "plan").output
        assert "[identity_missing]" not in on(visits, "check").output
        run(visits)
        assert (members(db), members(db, "_append")) == (["items", "orders"], ["parts", "visits"])
        db.execute(
            "INSERT INTO visits VALUES (4, 'streamed'), (4, 'streamed')", "INSERT INTO parts VALUES (2, '2026-01-03')"
        )
        run(visits)
        assert db.query(VISITS) == db.query(source)
        assert db.query("SELECT id FROM replica.parts ORDER BY id") == [(1,), (2,)]
        assert table_of(visits, "visits")["phase"] == "Ready"
        db.execute("DELETE FROM visits WHERE id = 4", "ALTER TABLE visits ADD PRIMARY KEY (id)")
        run(visits)
        assert members(db, "_append") == ["parts"]
        db.execute("UPDATE visits SET page = 'keyed' WHERE id = 1", "DELETE FROM visits WHERE id = 2")
        run(visits)
        assert db.query(VISITS) == db.query(source)
        with db.connect() as connection, connection.transaction():
            connection.execute("ALTER TABLE visits DROP CONSTRAINT visits_pkey")
            connection.execute("ALTER TABLE visits ADD PRIMARY KEY (id)")
        db.execute("ALTER TABLE visits DROP CONSTRAINT visits_pkey", "INSERT INTO visits VALUES (5, 'again')")
        run(visits)
        assert members(db, "_append") == ["parts", "visits"]
        assert db.query(VISITS) == db.query(source)
        db.execute("TRUNCATE visits", "INSERT INTO visits VALUES (6, 'later')")
        run(visits)
        assert db.query(f"{OPERATIONS} LIMIT 2") == [("I", 6), ("T", None)]
        assert on(visits, "cleanup", "--yes").exit_code == Exit.OK
    assert db.query("SELECT pubname FROM pg_publication") == []


@pytest.mark.nightly
def test_it_is_turned_on_and_off_later(visits: Path, db: Database) -> None:
    """The tables are copied once the slot can be read with the new publication, and stay when they are left out."""
    write(visits, db, "LeaveOut")
    run(visits)
    assert table_of(visits, "visits") == {}
    assert members(db, "_append") == []
    write(visits, db)
    run(visits)
    db.execute("INSERT INTO visits VALUES (7, 'streamed')")
    run(visits)
    assert db.query(VISITS) == db.query("SELECT id, page FROM visits ORDER BY id, page")
    write(visits, db, "LeaveOut")
    run(visits)
    assert table_of(visits, "visits") == {}
    assert members(db, "_append") == []
    assert db.query("SELECT count(*) FROM replica.visits") == [(4,)]


@pytest.mark.nightly
def test_the_other_way_with_an_external_publication(visits: Path, db: Database) -> None:
    """The manifest is refused with the other way, by which the table is streamed."""
    db.execute("CREATE PUBLICATION own FOR TABLE visits")
    source = replicated(db)["spec"]["source"] | {"publication": {"name": "own", "management": "External"}}
    write(visits, db, source=source)
    refused = on(visits, "check")
    assert refused.exit_code == Exit.USAGE
    assert "spec.tables.keyless" in refused.output
    db.execute(block("sql"))
    write(visits, db, "LeaveOut", source=source)
    run(visits)
    db.execute("UPDATE visits SET page = 'changed' WHERE id = 1")
    run(visits)
    assert db.query("SELECT page FROM replica.visits WHERE page = 'changed'") != []
