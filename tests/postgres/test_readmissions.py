"""Tables that lose their replica identity and have one again in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.rigs.database import Database
from tests.rigs.managed_publication import manage, published

from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.membership import Membership, find_gap, read_publication_state
from levada.values import TableId

DROP = "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey;"
ADD = "ALTER TABLE {t} ADD PRIMARY KEY (id);"
_UPDATE = "UPDATE {t} SET v = 'b';"

HARMLESS = {
    "": DROP + ADD,
    "written_before": _UPDATE + DROP + ADD,
    "counted_before": "COMMIT;" + _UPDATE + "BEGIN;" + DROP + ADD,
    "by_index": "CREATE UNIQUE INDEX {t}_u ON {t} (id);" + DROP + "ALTER TABLE {t} ADD PRIMARY KEY USING INDEX {t}_u;",
    "column_added": DROP + "ALTER TABLE {t} ADD w int DEFAULT 1;" + ADD,
    "written_after": DROP + ADD + _UPDATE,
    "several_times": "SAVEPOINT s;" + DROP + ADD + "ROLLBACK TO s;" + DROP + ADD + DROP + ADD,
    "nothing": "ALTER TABLE {t} REPLICA IDENTITY NOTHING; ALTER TABLE {t} REPLICA IDENTITY DEFAULT;",
    "same_index": "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_pkey;" + DROP + ADD
    + "ALTER TABLE {t} REPLICA IDENTITY DEFAULT;",
    "root": DROP + ADD,
    "root_of_one": "ALTER TABLE {t}_1 REPLICA IDENTITY NOTHING; ALTER TABLE {t}_1 REPLICA IDENTITY DEFAULT;",
}  # fmt: skip
"""Transactions after which a table is published, and nothing of it is missing."""

WRITTEN = {
    "inserted": DROP + "INSERT INTO {t} VALUES (2, 'b');" + ADD,
    "updated": DROP + _UPDATE + ADD,
    "deleted": DROP + "DELETE FROM {t};" + ADD,
    "truncated": DROP + "TRUNCATE {t};" + ADD,
    "copied": DROP + "COPY {t} FROM PROGRAM 'printf ''2\\tb\n''';" + ADD,
    "savepoint": DROP + "SAVEPOINT s; DELETE FROM {t}; RELEASE s;" + ADD,
    "uncounted": DROP + "SET track_counts = off;" + _UPDATE + ADD,
    "rewritten": DROP + "ALTER TABLE {t} ALTER v TYPE text USING upper(v);" + ADD,
    "clustered": "CLUSTER {t} USING {t}_pkey;" + DROP + "TRUNCATE {t};" + ADD,
    "same_count": "TRUNCATE {t}; INSERT INTO {t} VALUES (2, 'b');" + DROP
    + "TRUNCATE {t}; INSERT INTO {t} VALUES (1, 'b');" + ADD,
    "root_deleted": DROP + "DELETE FROM {t};" + ADD,
    "root_truncated": DROP + "TRUNCATE {t}_1;" + ADD,
    "root_detached": DROP + "ALTER TABLE {t} DETACH PARTITION {t}_1;" + ADD,
    "root_attached": DROP + "ALTER TABLE {t} ATTACH PARTITION {t}_aside DEFAULT;" + ADD,
    "later": DROP + "COMMIT; BEGIN;" + ADD,
    "forged": "SET levada_ddl.withdrawn = 'yes';" + DROP + "COMMIT; BEGIN;" + ADD,
}  # fmt: skip
"""Transactions after which it may be missing, whatever wrote the rows, also where TRUNCATE keeps the table's file."""


@pytest.fixture
def managed(versions: Database) -> Database:
    """A database with the trigger, without a table."""
    with versions.connection.connect() as c:
        assert install_ddl_trigger(c)
    return versions


def made(db: Database, cases: Mapping[str, str]) -> dict[str, Membership | None]:
    """Publish a table of a row for each case, and let each have its statements in a transaction.

    Return the memberships before that.
    """
    names = [f"t_{case}" for case in cases]
    with db.connect() as c:
        for t in names:
            below = f" PARTITION BY LIST (id); CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN (1)"
            c.execute(f"CREATE TABLE {t} (id int PRIMARY KEY, v text) {below if 'root' in t else ''}".encode())
            c.execute(f"CREATE TABLE {t}_aside (id int PRIMARY KEY, v text)".encode())
            c.execute(f"INSERT INTO {t} VALUES (1, 'a')".encode())
    manage(db, *names)
    kept = memberships(db, names)
    for case, t in zip(cases, names, strict=True):
        with db.connect() as c:
            for statement in f"BEGIN;{cases[case]}COMMIT".format(t=t).split(";"):
                c.execute(statement.encode())
    return kept


def memberships(db: Database, names: list[str]) -> dict[str, Membership | None]:
    """Return the membership of each table."""
    ids = {t: TableId(db.query("SELECT %s::regclass::oid::bigint", t)[0][0]) for t in names}
    with db.connection.connect() as c:
        members = read_publication_state(c, "p", list(ids.values())).members
    return {t: members.get(table) for t, table in ids.items()}


def continued(db: Database, kept: Mapping[str, Membership | None]) -> set[str]:
    """Return the tables of which nothing is missing in the stream since they had these memberships."""
    ids = {t: TableId(db.query("SELECT %s::regclass::oid::bigint", t)[0][0]) for t in kept}
    with db.connection.connect() as c:
        state = read_publication_state(c, "p", list(ids.values()))
    return {t for t, table in ids.items() if find_gap(kept[t], state, table) is None}


@pytest.mark.sampled
def test_nothing_is_missing_if_nothing_was_written_meanwhile(managed: Database) -> None:
    """The transaction publishes the table again, and its new membership stands for the former one."""
    kept = made(managed, HARMLESS)
    assert published(managed) == kept.keys()
    assert continued(managed, kept) == kept.keys()
    managed.execute("UPDATE t_ SET v = 'c'")


def test_what_was_written_meanwhile_is_missing(managed: Database) -> None:
    """The table is not added by the transaction, and a later membership stands for nothing."""
    kept = made(managed, WRITTEN)
    assert published(managed) == set()
    manage(managed, *kept)
    assert continued(managed, kept) == set()


def test_a_record_that_fails_or_is_gone_costs_a_copy(managed: Database) -> None:
    """As after a crash, which empties the unlogged table. No statement fails."""
    kept = made(managed, {"": DROP + ADD, "unrecorded": "DROP TABLE levada_ddl.withdrawn;" + DROP + ADD + _UPDATE})
    assert published(managed) == {"t_"}
    assert continued(managed, kept) == set()


@pytest.mark.since(15)
def test_a_row_filter_is_not_written_again(db: Database) -> None:
    """A table with a filter or a column list, which Levada did not write, is left out."""
    with db.connection.connect() as c:
        assert install_ddl_trigger(c)
    made(db, {"": "ALTER PUBLICATION p SET TABLE {t} WHERE (id > 0);" + DROP + ADD})
    assert published(db) == set()
