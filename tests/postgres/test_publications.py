"""Coverage: what a publication lacks, whether that can be closed, and closing it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest
from tests.rigs.database import Database

from levada.capture.requirements import table_not_published
from levada.errors import NeedsOperator
from levada.postgres.catalog import published_tables
from levada.postgres.identity_remedies import publish_all_hint
from levada.postgres.publication_owners import mark_publication, read_publication_owner
from levada.postgres.publications import (
    drop_publication,
    ensure_coverage,
    extend_publication,
    inspect_coverage,
    leave_out_unidentified,
    read_publication,
)
from levada.values import PipelineOwner, QualifiedTable

A, B, C = (QualifiedTable("public", name) for name in "abc")


@pytest.fixture
def tables(versions: Database) -> Database:
    """Three tables with keys."""
    versions.execute(*[f"CREATE TABLE {t} (id int PRIMARY KEY, v text)" for t in "abc"])
    return versions


def test_a_listed_table_that_is_dropped_meanwhile(tables: Database) -> None:
    """The others are added, and the report does not have it as missing."""
    drops = iter(["DROP TABLE b"])
    with tables.connection.connect() as c:
        before = inspect_coverage(c, "p", {A, B, C}, listed=True)
        after = extend_publication(c, "p", before, check=lambda: tables.execute(*drops), listed=True)
        assert (before.missing, after.satisfied, after.missing) == ((A, B, C), True, ())
        assert [t.name for t in published_tables(c, "p")] == [A, C]
        assert inspect_coverage(c, "p", {A, B}).blockers == ("table public.b does not exist",)
        assert inspect_coverage(c, "p", {A, B}, listed=True).satisfied


def test_gap_is_found_and_closed(tables: Database) -> None:
    """The report has the state before the change. Afterwards nothing is missing, and a second run changes nothing."""
    with tables.connection.connect() as c:
        before = inspect_coverage(c, "p", {B, A})
        assert (before.satisfied, before.present, before.missing) == (False, (), (A, B))
        assert (before.manageable, before.blockers) == (True, ())
        assert before.remediation == (
            'CREATE PUBLICATION "p" FOR TABLE ONLY "public"."a", ONLY "public"."b"'
            " WITH (publish_via_partition_root = true);",
        )
        assert read_publication(c, "p") is None
        assert ensure_coverage(c, "p", {A, B}, manage=True) == before
        grown = inspect_coverage(c, "p", {A, B, C})
        assert (grown.present, grown.missing) == ((A, B), (C,))
        assert grown.remediation == ('ALTER PUBLICATION "p" ADD TABLE ONLY "public"."c";',)
        assert extend_publication(c, "p", grown) == inspect_coverage(c, "p", {A, B, C}) != grown
        covered = ensure_coverage(c, "p", {A, C}, manage=True)
        assert (covered.satisfied, covered.missing, covered.remediation) == (True, (), ())
        assert [t.name for t in published_tables(c, "p")] == [A, B, C]
        assert drop_publication(c, "p")
        assert not drop_publication(c, "p")


def test_nothing_is_changed_that_is_not_ours_to_change(tables: Database) -> None:
    """With external management the report has the SQL that closes the gap."""
    tables.execute("CREATE PUBLICATION p FOR TABLE a")
    with tables.connection.connect() as c:
        report = ensure_coverage(c, "p", {A, B}, manage=False)
        assert [t.name for t in published_tables(c, "p")] == [A]
    assert not report.satisfied
    assert report.remediation == ('ALTER PUBLICATION "p" ADD TABLE ONLY "public"."b";',)


def test_every_blocker_is_told_at_once(db: Database, role: str) -> None:
    """Rights, missing tables, and tables that would be harmed are all named, and nothing is done."""
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int)",
        "CREATE UNLOGGED TABLE c (id int PRIMARY KEY)",
        f"REVOKE CREATE ON DATABASE {db.name} FROM PUBLIC",
    )
    nowhere = QualifiedTable("other", "x")
    connection = replace(db.connection, user=role)
    with connection.connect() as c:
        report = ensure_coverage(c, "p", {A, B, C, nowhere}, manage=True)
        assert read_publication(c, "p") is None
    assert report.unidentified == (B,)
    assert '"b"' not in "".join(report.remediation)
    assert "public.b has no replica identity" in "".join(report.blockers)
    told = "\n".join(report.blockers)
    assert not report.manageable
    for part in (
        "no CREATE privilege",
        "public.a is owned by another",
        "public.c is not a permanent table",
        "other.x does not exist",
    ):
        assert part in told
    assert report.blocked == (nowhere, A, B, C)
    db.execute("CREATE PUBLICATION p")
    with connection.connect() as c:
        assert f"role {role} does not own publication p" in inspect_coverage(c, "p", {A}).blockers


def test_table_whose_updates_would_fail_is_not_published(versions: Database) -> None:
    """A table, or a partition, without identity is left out and keeps no other table out, until it has one."""
    versions.execute(
        "CREATE TABLE a (id int)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE c1 PARTITION OF c FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE c1 REPLICA IDENTITY NOTHING",
        "CREATE PUBLICATION inserts WITH (publish = 'insert')",
    )
    with versions.connection.connect() as c:
        assert not inspect_coverage(c, "p", {A, B, C}).manageable
        required, left_out = leave_out_unidentified(c, "p", {A, B, C})
        assert (required, left_out) == ({B}, (A, C))
        assert ensure_coverage(c, "p", required, manage=True).manageable
        assert [t.name for t in published_tables(c, "p")] == [B]
        versions.execute("UPDATE a SET id = 1", "UPDATE c SET id = 1")
        assert leave_out_unidentified(c, "inserts", {A}) == (set(), (A,)), "it may publish updates later"
        versions.execute("ALTER PUBLICATION inserts ADD TABLE a")
        assert inspect_coverage(c, "inserts", {A}).refusing == (), "PostgreSQL refuses nothing of it there"
        identify, _, publish = publish_all_hint(c, "inserts").partition("; ")
        assert identify == 'ALTER TABLE "public"."a" REPLICA IDENTITY FULL'
        assert publish == "ALTER PUBLICATION \"inserts\" SET (publish = 'insert, update, delete, truncate')"
        versions.execute("ALTER TABLE a REPLICA IDENTITY FULL", "ALTER TABLE c1 REPLICA IDENTITY DEFAULT")
        assert leave_out_unidentified(c, "p", {A, B, C}) == ({A, B, C}, ())


def test_tables_that_can_be_added_are(tables: Database) -> None:
    """A table of another owner, and one that does not exist, keep no other table out of the publication."""
    tables.execute("DROP ROLE IF EXISTS adder", "CREATE ROLE adder LOGIN")
    try:
        tables.execute(f"GRANT CREATE ON DATABASE {tables.name} TO adder", "ALTER TABLE a OWNER TO adder")
        tables.execute("ALTER TABLE c OWNER TO adder")
        with replace(tables.connection, user="adder").connect() as c:
            assert not inspect_coverage(c, "p", {B}).manageable
            assert ensure_coverage(c, "p", {B}, manage=True).blocked == (B,)
            assert read_publication(c, "p") is None, "there is nothing to put into it"
            assert ensure_coverage(c, "p", {A, B}, manage=True).blocked == (B,)
            ensure_coverage(c, "p", {A, B, C, QualifiedTable("public", "nowhere")}, manage=True)
            assert [t.name for t in published_tables(c, "p")] == [A, C]
    finally:
        tables.execute("DROP OWNED BY adder CASCADE", "DROP ROLE adder")


@pytest.mark.parametrize(
    ("columns", "identity"),
    [
        ("id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY", "DEFAULT"),
        ("id int GENERATED ALWAYS AS (n * 2) STORED NOT NULL, UNIQUE (id)", "USING INDEX a_id_key"),
        ("id int GENERATED ALWAYS AS (n * 2) STORED, m int DEFAULT 1, PRIMARY KEY (m, id)", "DEFAULT"),
    ],
)
def test_keys_with_generated_columns_are_not_published(
    versions: Database, columns: LiteralString, identity: LiteralString
) -> None:
    """Versions before 18 would stream them without these columns. FULL is a remedy there."""
    versions.execute(f"CREATE TABLE a (n int, {columns})", f"ALTER TABLE a REPLICA IDENTITY {identity}")
    with versions.connection.connect() as c:
        assert leave_out_unidentified(c, "p", {A}) == (set(), (A,))
        if c.info.server_version < 180_000:
            versions.execute("ALTER TABLE a REPLICA IDENTITY FULL")
            assert leave_out_unidentified(c, "p", {A}) == ({A}, ())


@pytest.mark.since(18)
@pytest.mark.parametrize(
    "columns",
    [
        "id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY",
        "id int GENERATED ALWAYS AS (n * 2) STORED",
        "id int GENERATED ALWAYS AS (n * 2) VIRTUAL",
    ],
)
def test_identities_with_generated_columns_are_not_published(db: Database, columns: LiteralString) -> None:
    """From version 18 on, PostgreSQL refuses UPDATEs if the identity has a generated column. FULL has all columns.

    Another generated column is no reason to leave a table out, nor is one that the key's index only includes.
    """
    db.execute(
        f"CREATE TABLE a (n int, {columns})",
        "CREATE TABLE b (id int, n int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id) INCLUDE (n))",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO b VALUES (1)",
    )
    if "KEY" not in columns:
        db.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    with db.connection.connect() as c:
        assert leave_out_unidentified(c, "p", {A, B}) == ({B}, (A,))
        db.execute("CREATE PUBLICATION p FOR TABLE a, b")
        with pytest.raises(psycopg.Error, match="cannot update table"):
            db.execute("UPDATE a SET n = 2")
        db.execute("UPDATE b SET id = 2")
        assert inspect_coverage(c, "p", {A, B}).refusing == (A,)
        db.execute(
            "DROP PUBLICATION p",
            "ALTER TABLE a DROP CONSTRAINT IF EXISTS a_pkey",
            "ALTER TABLE a ADD k int PRIMARY KEY DEFAULT 1",
        )
        db.execute("ALTER TABLE a REPLICA IDENTITY DEFAULT")
        assert leave_out_unidentified(c, "p", {A, B}) == ({A, B}, ())


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE a REPLICA IDENTITY NOTHING",),
        ("ALTER TABLE a DROP CONSTRAINT a_pkey",),
        (
            "ALTER TABLE a ADD n int NOT NULL DEFAULT 1", "CREATE UNIQUE INDEX a_n ON a (n)",
            "ALTER TABLE a REPLICA IDENTITY USING INDEX a_n", "DROP INDEX a_n",
        ),
    ],
)  # fmt: skip
def test_tables_that_refuse_updates_are_named(versions: Database, statements: tuple[LiteralString, ...]) -> None:
    """PostgreSQL refuses UPDATE and DELETE of a published table that loses its identity, however it is lost."""
    versions.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "CREATE PUBLICATION p FOR TABLE a, b",
        "CREATE PUBLICATION inserts FOR TABLE a WITH (publish = 'insert')",
    )
    with versions.connection.connect() as c:
        assert inspect_coverage(c, "p", {A, B}).refusing == ()
        versions.execute(*statements)
        for statement in ("UPDATE a SET id = 2", "DELETE FROM a"):
            with pytest.raises(psycopg.Error, match="does not have a replica identity"):
                versions.execute(statement)
        assert inspect_coverage(c, "p", {A, B}).refusing == (A,)
        assert inspect_coverage(c, "inserts", {A}).refusing == ()
        versions.execute("ALTER TABLE a REPLICA IDENTITY FULL", "UPDATE a SET id = 2")
        assert inspect_coverage(c, "p", {A, B}).refusing == ()


def test_hints_break_no_update(db: Database) -> None:
    """A hinted CREATE or ALTER PUBLICATION runs as printed, and every table can still be updated afterwards.

    It ends with a semicolon.
    """
    db.execute("CREATE TABLE a (id int)", "CREATE TABLE b (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with db.connection.connect() as c, pytest.raises(NeedsOperator) as missing:
        published_tables(c, "p")
    db.execute(missing.value.hint, "UPDATE a SET id = 2", "DROP PUBLICATION p", "CREATE PUBLICATION p")
    with db.connection.connect() as c:
        lacking = table_not_published(c, "p", [A, B])
    assert missing.value.hint.endswith(";")
    assert lacking.hint.endswith(";")
    db.execute(*lacking.hint.split("; "), "UPDATE a SET id = 3")
    with db.connection.connect() as c:
        assert [t.name for t in published_tables(c, "p")] == [A, B]


def test_a_publication_of_a_standby_is_not_marked(db: Database) -> None:
    """Nothing can be written there, and a standby may be a source. Its primary's publication has the mark, if any."""
    db.execute("CREATE PUBLICATION p", f"ALTER DATABASE {db.name} SET default_transaction_read_only = on")
    owner = PipelineOwner("uid-1", "a/shop")
    with db.connection.connect() as c:
        mark_publication(c, "p", owner)
        assert read_publication_owner(c, "p") is None
        c.execute("SET default_transaction_read_only = off")
        mark_publication(c, "p", owner)
        assert read_publication_owner(c, "p") == owner


@pytest.mark.since(15)
def test_limits_of_the_stream_are_noted(tables: Database) -> None:
    """The report has the limits of the stream: filters, column lists and unpublished operations."""
    tables.execute(
        "CREATE PUBLICATION p FOR TABLE a WHERE (id > 3), b (id) WITH (publish = 'insert, delete')",
    )
    with tables.connection.connect() as c:
        notes = "\n".join(inspect_coverage(c, "p", {A, B}).notes)
    for part in (
        "does not publish update",
        "does not publish truncate",
        "public.a is streamed where (id > 3)",
        "public.b is streamed with a column list",
    ):
        assert part in notes
    assert "insert\n" not in notes


def test_partitioned_tables_are_covered_however_they_are_published(versions: Database) -> None:
    """A root is covered by its partitions and a partition by its root, so neither is ever added again."""
    versions.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE empty (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE PUBLICATION whole FOR TABLE r WITH (publish_via_partition_root)",
        "CREATE PUBLICATION parts FOR TABLE r, empty",
        "CREATE PUBLICATION leaf FOR TABLE r1",
    )
    r, r1, empty = (QualifiedTable("public", name) for name in ("r", "r1", "empty"))
    with versions.connection.connect() as c:
        whole = inspect_coverage(c, "whole", {r, r1})
        parts = inspect_coverage(c, "parts", {r, r1, empty})
        leaf = inspect_coverage(c, "leaf", {r, r1})
    assert whole.satisfied
    assert "public.r1 is streamed as its root public.r" in whole.notes
    assert any("TRUNCATE" in n for n in whole.notes)
    assert parts.satisfied
    assert "public.r is streamed as its partitions: publish_via_partition_root is off" in parts.notes
    assert leaf.satisfied


def test_publications_of_all_tables_cover(versions: Database) -> None:
    """A publication without a list covers the tables that it streams. A table that it cannot stream cannot be added."""
    versions.execute(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE UNLOGGED TABLE b (id int)", "CREATE PUBLICATION p FOR ALL TABLES"
    )
    with versions.connection.connect() as c:
        assert inspect_coverage(c, "p", {A}).satisfied
        report = inspect_coverage(c, "p", {A, B})
    assert (report.present, report.missing, report.manageable) == ((A,), (B,), False)


def test_concurrent_creators_end_with_one_publication(tables: Database) -> None:
    """Pipelines that start simultaneously close the gap together, and none of them fails."""
    failures: list[BaseException] = []
    ready = threading.Barrier(4)

    def work(required: set[QualifiedTable]) -> None:
        try:
            with tables.connection.connect() as c:
                ready.wait()
                ensure_coverage(c, "p", required, manage=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[wanted]) for wanted in ({A, B}, {B, C}, {A, B, C}, {C})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with tables.connection.connect() as c:
        assert inspect_coverage(c, "p", {A, B, C}).satisfied
