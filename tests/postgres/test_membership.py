"""The tables of a publication over time: the evidence of a gap, and events that are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.database import Database

from levada.errors import NeedsOperator
from levada.postgres.membership import Membership, PublicationState, find_gap, read_publication_state
from levada.values import QualifiedTable, TableId


def tables(db: Database) -> dict[str, TableId]:
    """Return the tables of the test by name."""
    query: LiteralString = "SELECT relname, oid FROM pg_class WHERE relkind IN ('r', 'p') AND relname ~ '^(t|u|r|r1)$'"
    return {name: TableId(oid) for name, oid in db.query(query)}


def state(db: Database, publication: str = "p") -> PublicationState:
    """Read how the publication has the test's tables."""
    with db.connection.connect() as connection:
        return read_publication_state(connection, publication, list(tables(db).values()))


def gaps(before: PublicationState, after: PublicationState, names: dict[str, TableId]) -> dict[str, str]:
    """Return the code of each table's gap, by the table's name."""
    found = {name: find_gap(before.members.get(table), after, table) for name, table in names.items()}
    return {name: error.code for name, error in found.items() if error is not None}


def make_tables(db: Database) -> None:
    """Make two tables in one schema and a partitioned one, and nothing besides."""
    db.execute(
        "DROP PUBLICATION IF EXISTS p",
        "DROP SCHEMA IF EXISTS elsewhere CASCADE",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        "CREATE TABLE t (id int PRIMARY KEY, v int, w int)",
        "CREATE TABLE u (id int PRIMARY KEY, v int)",
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE SCHEMA elsewhere",
    )


@pytest.fixture
def source(db: Database) -> Database:
    """A database with these tables."""
    make_tables(db)
    return db


ALL: LiteralString = "CREATE PUBLICATION p FOR TABLE t, u"
CHANGED, AGAIN, LEFT = "publication_changed", "publication_membership_changed", "table_not_published"
FILTER = "row_filter_changed"


ATTACH: Sequence[LiteralString] = (
    "ALTER TABLE u DROP COLUMN v",
    "ALTER TABLE r ATTACH PARTITION u FOR VALUES FROM (10) TO (20)",
)


CASES: dict[str, tuple[LiteralString, Sequence[LiteralString], dict[str, str]]] = {
    "made again": (ALL, ["DROP PUBLICATION p", ALL], {"t": CHANGED, "u": CHANGED}),
    "table dropped and added": (
        ALL,
        ["ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t"],
        {"t": AGAIN},
    ),
    "table left": (ALL, ["ALTER PUBLICATION p DROP TABLE t"], {"t": LEFT}),
    "same members set": (ALL, ["ALTER PUBLICATION p SET TABLE t, u"], {}),
    "another table added": (ALL, ["ALTER PUBLICATION p ADD TABLE r"], {}),
    "filter set": (ALL, ["ALTER PUBLICATION p SET TABLE t WHERE (id > 1), u"], {"t": FILTER}),
    "filter changed": (
        "CREATE PUBLICATION p FOR TABLE t WHERE (id > 1), u",
        ["ALTER PUBLICATION p SET TABLE t WHERE (id > 0), u"],
        {"t": FILTER},
    ),
    "names changed": (
        "CREATE PUBLICATION p FOR TABLE t WHERE (id > 1), u",
        ["ALTER TABLE t RENAME id TO ident", "ALTER TABLE t RENAME TO tt", "ALTER TABLE tt RENAME TO t"],
        {},
    ),
    "column list grown": (
        "CREATE PUBLICATION p FOR TABLE t (id, v), u",
        ["ALTER PUBLICATION p SET TABLE t (id, v, w), u"],
        {"t": AGAIN},
    ),
    "column list shrunk": (
        "CREATE PUBLICATION p FOR TABLE t (id, v), u",
        ["ALTER PUBLICATION p SET TABLE t (id), u"],
        {"t": AGAIN},
    ),
    "operations off and on": (
        ALL,
        [
            "ALTER PUBLICATION p SET (publish = 'insert')",
            "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
        ],
        {"t": CHANGED, "u": CHANGED},
    ),
    "root": (ALL, ["ALTER PUBLICATION p SET (publish_via_partition_root = true)"], {"t": CHANGED, "u": CHANGED}),
    "schema of a member changed": (ALL, ["ALTER TABLE t SET SCHEMA elsewhere"], {}),
    "left a published schema": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        ["ALTER TABLE t SET SCHEMA elsewhere"],
        {"t": LEFT},
    ),
    "to another schema and back": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        ["ALTER TABLE t SET SCHEMA elsewhere", "ALTER TABLE elsewhere.t SET SCHEMA public"],
        {"t": AGAIN},
    ),
    "columns of a table in a schema": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        ["ALTER TABLE t ADD COLUMN x int", "ALTER TABLE t DROP COLUMN w", "VACUUM FULL t", "ANALYZE t"],
        {},
    ),
    "another owner": (
        ALL,
        ["ALTER PUBLICATION p OWNER TO pg_database_owner"],
        {"t": CHANGED, "u": CHANGED},
    ),
    "renamed in a published schema": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        ["ALTER TABLE t RENAME TO renamed", "ALTER TABLE renamed RENAME TO t"],
        {"t": AGAIN},
    ),
    "unlogged": ("CREATE PUBLICATION p FOR ALL TABLES", ["ALTER TABLE t SET UNLOGGED"], {"t": LEFT}),
    "schema replaced by tables": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        ["ALTER PUBLICATION p ADD TABLE t", "ALTER PUBLICATION p SET TABLE t, u, r"],
        {"t": AGAIN, "u": AGAIN, "r": AGAIN, "r1": AGAIN},
    ),
    "all tables": ("CREATE PUBLICATION p FOR ALL TABLES", ["VACUUM FULL pg_publication"], {}),
    "table dropped": ("CREATE PUBLICATION p FOR TABLE t", ["DROP TABLE t"], {}),
    "none": ("CREATE PUBLICATION p FOR TABLE t", ["DROP PUBLICATION p"], {"t": "publication_missing"}),
    "partition detached": ("CREATE PUBLICATION p FOR TABLE r", ["ALTER TABLE r DETACH PARTITION r1"], {"r1": LEFT}),
    "attached to a published table": (
        "CREATE PUBLICATION p FOR TABLE u, r WITH (publish_via_partition_root = true)",
        ATTACH,
        {"u": LEFT},
    ),
    "attached among all tables": (
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)",
        ATTACH,
        {"u": LEFT},
    ),
    "attached in a published schema": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)",
        ATTACH,
        {"u": LEFT},
    ),
    "attached to a table that is not published": (
        "CREATE PUBLICATION p FOR TABLE u WITH (publish_via_partition_root = true)",
        ATTACH,
        {},
    ),
    "attached and streamed as a table of its own": ("CREATE PUBLICATION p FOR TABLE u, r", ATTACH, {}),
    "partition detached and attached": (
        "CREATE PUBLICATION p FOR TABLE r",
        ["ALTER TABLE r DETACH PARTITION r1", "ALTER TABLE r ATTACH PARTITION r1 FOR VALUES FROM (0) TO (10)"],
        {"r1": AGAIN},
    ),
}


SINCE_15 = re.compile(r"TABLES IN SCHEMA|WHERE|TABLE t \(")
"""Statements with schemas, row filters or column lists of publications."""


def test_a_gap_is_seen_afterwards(versions: Database) -> None:
    """A gap that may have lost changes is found afterwards. A change that cannot have lost any is no gap."""
    found, wanted = {}, {}
    with versions.connect() as c:
        is_14 = c.info.server_version < 150_000
    for case, (publication, steps, expected) in CASES.items():
        if is_14 and SINCE_15.search("; ".join([publication, *steps])):
            continue
        make_tables(versions)
        versions.execute(publication)
        before = state(versions)
        published = {name: table for name, table in tables(versions).items() if table in before.members}
        versions.execute(*steps)
        found[case] = gaps(before, state(versions), published)
        wanted[case] = {name: code for name, code in expected.items() if name in published}
    assert found == wanted


def test_a_partition_that_is_streamed_as_its_root_has_not_left(source: Database) -> None:
    """Nothing adds it to the publication: it is in it, and its rows are in the stream."""
    source.execute("CREATE PUBLICATION p FOR TABLE u, r WITH (publish_via_partition_root = true)", *ATTACH)
    table, now = tables(source)["u"], state(source)
    assert not now.left(table)
    gap = find_gap(None, now, table)
    assert gap is not None
    assert gap.message == "table public.u was attached as a partition, so its changes are streamed as those of its root"
    assert "ALTER PUBLICATION" not in gap.hint


@pytest.mark.since(15)
def test_a_limit_that_a_schema_lifts_is_no_evidence(source: Database) -> None:
    """A table whose schema left the publication for a while was limited by its own filter meanwhile."""
    source.execute("CREATE PUBLICATION p FOR TABLE t WHERE (id > 5), TABLES IN SCHEMA public")
    names, before = tables(source), state(source)
    assert before.members[names["t"]].limit == ""
    source.execute(
        "ALTER PUBLICATION p DROP TABLES IN SCHEMA public", "ALTER PUBLICATION p ADD TABLES IN SCHEMA public"
    )
    assert gaps(before, state(source), {"t": names["t"]}) == {"t": AGAIN}


def test_hints_run(source: Database) -> None:
    """The statement in the hint of a table that left, and of a publication that is gone, brings the table back."""
    table = tables(source)["t"]
    for statement in ("CREATE PUBLICATION p FOR TABLE u", "DROP PUBLICATION p"):
        with source.connect() as connection:
            connection.execute(statement)
        gap = find_gap(None, state(source), table)
        assert isinstance(gap, NeedsOperator)
        hint, _, resync = gap.hint.partition("; then ")
        assert resync == "levada resync MANIFEST public.t"
        with source.connect() as connection:
            connection.execute(hint.encode())
        assert table in state(source).members


def test_hints_break_no_update(source: Database) -> None:
    """A table without a replica identity is given one before it is published again, so it can still be updated."""
    source.execute("ALTER TABLE t REPLICA IDENTITY NOTHING", "INSERT INTO t VALUES (1)")
    for statement in ("CREATE PUBLICATION p FOR TABLE u", "DROP PUBLICATION p"):
        source.execute(statement, "ALTER TABLE t REPLICA IDENTITY NOTHING")
        gap = find_gap(None, state(source), tables(source)["t"])
        assert gap is not None
        *statements, resync = gap.hint.split("; ")
        assert resync == "then levada resync MANIFEST public.t"
        source.execute(*statements, "UPDATE t SET id = id + 1")
        assert tables(source)["t"] in state(source).members


@pytest.mark.since(15)
def test_membership_survives_the_store(source: Database) -> None:
    """The store returns exactly what was written, limits included."""
    source.execute("CREATE PUBLICATION p FOR TABLE t (id, v) WHERE (id > 1)")
    membership = state(source).members[tables(source)["t"]]
    assert (membership.row_filter, membership.columns) == ("(id > 1)", (1, 2))
    assert Membership.from_text(membership.to_text()) == membership


def test_an_unknown_past_is_a_gap(source: Database) -> None:
    """A table of which nothing was recorded when it was copied may have missed changes."""
    source.execute(ALL)
    gap = find_gap(None, state(source), tables(source)["t"])
    assert gap is not None
    assert gap.code == CHANGED


def test_the_state_is_of_the_snapshot(source: Database) -> None:
    """In a snapshot the publication is what it was then, whatever was committed since."""
    source.execute(ALL)
    table = tables(source)["t"]
    with source.connection.connect() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        before = read_publication_state(connection, "p", [table])
        source.execute("ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t")
        assert read_publication_state(connection, "p", [table]) == before
    assert before.names == {table: QualifiedTable("public", "t")}
    assert state(source).members[table] != before.members[table]


def test_a_publication_dropped_meanwhile_does_not_exist(source: Database) -> None:
    """Publication and members are of one moment: no table is reported to have left a publication that is gone."""
    source.execute(ALL)
    table = tables(source)["t"]

    class Interrupted(psycopg.Connection[Any]):
        """A connection after whose first statement about the publication another session drops it."""

        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            done = super().execute(query, *arguments, **options)
            if "pg_publication p" in str(query):
                source.execute("DROP PUBLICATION IF EXISTS p")
            return done

    with Interrupted.connect(source.server.uri(source.name), autocommit=True) as connection:
        found = read_publication_state(connection, "p", [table])
    assert (found.identity, found.left(table)) == (None, True)
    gap = find_gap(None, found, table)
    assert gap is not None
    assert gap.code == "publication_missing"
