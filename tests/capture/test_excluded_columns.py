"""Excluded columns are those of the attnums that were excluded, whatever is renamed while rows are streamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.capture import PUBLICATION, Capture
from tests.rigs.database import Database

from levada.errors import LevadaError
from levada.postgres.catalog import read_table_schema
from levada.schema import ReplicatedTableSchema
from levada.schema.stored_types import ColumnChoice

SEC = frozenset({"sec"})
SWAP = ("ALTER TABLE a RENAME sec TO t", "ALTER TABLE a RENAME pub TO sec", "ALTER TABLE a RENAME t TO pub")


@pytest.fixture(params=[True, False], ids=["messages", "catalog"])
def capture(db: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Capture:
    """Of a table whose column ``sec`` is excluded, with the source's own word on each ALTER TABLE, and without."""
    capture = Capture(db, tmp_path / "staging", ddl_messages=request.param)
    capture.excluded_columns = lambda table: SEC
    db.execute("CREATE TABLE a (id int PRIMARY KEY, sec text, pub text)")
    capture.prepare()
    return capture


def run(capture: Capture, *batches: tuple[str, ...]) -> list[LevadaError]:
    """Run each batch of statements as one transaction, after a first row. Return the errors of the table."""
    capture.db.execute("INSERT INTO a VALUES (1, 'secret', 'p1')")
    with capture.running():
        capture.catch_up()
        for statements in batches:
            with capture.db.connect() as connection, connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
            capture.catch_up()
    assert capture.error is None
    return [error for _, error in capture.failures]


def staged(capture: Capture) -> list[tuple[str, ...]]:
    """The columns of each version that is staged, in order."""
    return [tuple(r.schema.arrow.names) for m in capture.log.list() for r in m.relations]


def values(capture: Capture) -> list[tuple[object, ...]]:
    """The rows that are staged, without their metadata."""
    return [tuple(v for k, v in row.items() if not k.startswith("_levada_")) for row in capture.rows("a")]


def newest(capture: Capture) -> ReplicatedTableSchema:
    """The newest version of the table."""
    return capture.store.get_table_schemas()[-1]


def excluded(version: ReplicatedTableSchema) -> list[tuple[int, str]]:
    """The excluded columns of a version."""
    return [(c.attnum, c.name) for c in version.excluded]


@pytest.mark.parametrize(
    ("statements", "renamed"),
    [
        (("ALTER TABLE a RENAME sec TO sec2", "UPDATE a SET pub = 'x'"), ("sec", "sec2")),
        ((*SWAP, "UPDATE a SET sec = 'x'"), ("sec", "pub")),
        (("ALTER TABLE a DROP sec", "ALTER TABLE a RENAME pub TO sec", "UPDATE a SET sec = 'x'"), ("pub", "sec")),
    ],
    ids=["renamed", "swapped", "replicated"],
)
def test_a_rename_across_the_exclusion_parks_the_table(
    capture: Capture, statements: tuple[str, ...], renamed: tuple[str, str]
) -> None:
    """The table fails once, with both names and what to change. No later row of it is staged."""
    [error] = run(capture, statements, ("INSERT INTO a (id) VALUES (2)",))
    # Each statement of an exchange is announced, and the first one renames the column to t.
    old, new = ("sec", "t") if capture.ddl_messages and statements[0] == SWAP[0] else renamed
    assert error.code == "excluded_column_renamed"
    assert f"{old} was renamed to {new}" in error.message
    assert "columns.exclude" in error.hint
    assert values(capture) == [(1, "p1")]
    assert not any("sec2" in columns for columns in staged(capture))


def test_a_rename_that_is_undone(capture: Capture) -> None:
    """It parks the table if it is announced. Otherwise the rows in between have the columns that their attnums say."""
    errors = run(
        capture,
        (
            "ALTER TABLE a RENAME sec TO away",
            "INSERT INTO a (id, away, pub) VALUES (2, 'secret', 'p2')",
            "ALTER TABLE a RENAME away TO sec",
        ),
        ("INSERT INTO a VALUES (3, 'secret', 'p3')",),
    )
    assert len(errors) == capture.ddl_messages
    assert values(capture) == ([(1, "p1")] if capture.ddl_messages else [(1, "p1"), (2, "p2"), (3, "p3")])
    assert set(staged(capture)) == {("id", "pub")}


def test_a_value_written_under_the_excluded_name_is_not_lost(capture: Capture) -> None:
    """Two columns exchange their names and back within a transaction. The row in between parks the table."""
    errors = run(
        capture,
        (
            *("ALTER TABLE a RENAME pub TO t", "ALTER TABLE a RENAME sec TO pub2", "ALTER TABLE a RENAME t TO sec"),
            "UPDATE a SET sec = 'newp' WHERE id = 1",
            *("ALTER TABLE a RENAME sec TO pub", "ALTER TABLE a RENAME pub2 TO sec"),
        ),
        ("INSERT INTO a VALUES (3, 'secret', 'p3')",),
    )
    assert [error.code for error in errors] == ["excluded_column_renamed"]
    assert values(capture) == [(1, "p1")]


def test_an_excluded_column_may_be_dropped_and_added_again(capture: Capture) -> None:
    """The table goes on without it, and the new column is excluded and known by its own attnum."""
    assert excluded_after(capture, "ALTER TABLE a DROP sec") == []
    assert excluded_after(capture, "ALTER TABLE a ADD sec text DEFAULT 'secret'") == [(4, "sec")]
    assert capture.failures == []
    [error] = run_more(capture, "ALTER TABLE a RENAME sec TO sec2", "INSERT INTO a (id) VALUES (99)")
    assert error.code == "excluded_column_renamed"
    assert set(staged(capture)) == {("id", "pub")}


def excluded_after(capture: Capture, statement: str) -> list[tuple[int, str]]:
    """Return the excluded columns of the newest version after a statement and a row."""
    assert run_more(capture, statement, "INSERT INTO a (id) SELECT count(*) + 1 FROM a") == []
    return excluded(newest(capture))


def run_more(capture: Capture, *statements: str) -> list[LevadaError]:
    """Run statements, each in its own transaction."""
    if not capture.log.list():
        assert run(capture) == []
    with capture.running():
        for statement in statements:
            with capture.db.connect() as connection:
                connection.execute(statement.encode())
            capture.catch_up()
    assert capture.error is None
    return [error for _, error in capture.failures]


def test_the_catalog_may_be_ahead_of_the_rename(capture: Capture) -> None:
    """The renamed column is dropped by the time the stream is read. Its values between are not staged."""
    assert run(capture) == []
    capture.db.execute(
        "ALTER TABLE a RENAME sec TO sec2",
        "INSERT INTO a VALUES (2, 'secret', 'p2')",
        "ALTER TABLE a DROP sec2",
    )
    [error] = run_more(capture, "INSERT INTO a VALUES (3, 'p3')")
    assert error.code == "excluded_column_renamed"
    assert set(staged(capture)) == {("id", "pub")}


def test_other_excluded_names_apply_to_rows_from_before_the_rename(capture: Capture) -> None:
    """They are set before the stream reaches the rename. The column is excluded under both names."""
    assert run(capture) == []
    with capture.running() as worker:
        session = worker.position.sessions + 1
        worker.choose_columns(capture.table("a"), ColumnChoice(frozenset({"sec2"})))
        capture.db.execute(
            "INSERT INTO a VALUES (2, 'secret', 'p2')",
            "ALTER TABLE a RENAME sec TO sec2",
            "INSERT INTO a VALUES (3, 'secret', 'p3')",
        )
        worker.reopen()
        capture.wait(lambda position: position.sessions >= session)
        capture.db.execute("INSERT INTO a VALUES (4, 'secret', 'p4')")
        capture.catch_up()
    assert not any("sec2" in columns for columns in staged(capture))
    assert excluded(newest(capture))[0][0] == 2


def test_a_column_list_may_take_the_place_of_the_exclusion(capture: Capture) -> None:
    """The publication no longer has the excluded column. The table goes on."""
    [(version,)] = capture.db.query("SELECT current_setting('server_version_num')::int / 10000")
    if version < 15:
        pytest.skip("column lists are of PostgreSQL 15")
    with capture.db.connect() as connection:
        connection.execute(f"DROP PUBLICATION {PUBLICATION}".encode())
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE a".encode())
    assert run(capture) == []
    more = f"ALTER PUBLICATION {PUBLICATION} SET TABLE a (id, pub)"
    assert run_more(capture, more, "INSERT INTO a VALUES (2, 'secret', 'p2')") == []
    assert values(capture) == [(1, "p1"), (2, "p2")]


def test_a_copy_has_the_excluded_columns_of_its_table(db: Database) -> None:
    """Those that the publication has, by the names of the manifest."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, sec text, pub text, more text)")
    with db.connect() as connection:
        [(table,)] = db.query("SELECT 'a'::regclass::oid")
        names = frozenset({"sec", "more", "none"})
        version = read_table_schema(connection, table, columns=(1, 2, 3), exclude=names)
    assert excluded(version) == [(2, "sec")]
    assert version.excluded_columns == names
    assert version.arrow.names == ["id", "pub"]
