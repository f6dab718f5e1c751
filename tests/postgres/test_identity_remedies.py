"""Replica identities with a generated column, which PostgreSQL 18 refuses."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from tests.rigs.database import Database

from levada.capture.requirements import table_not_published
from levada.postgres.identity_remedies import publish_all_hint
from levada.postgres.membership import find_gap, read_publication_state
from levada.postgres.preflight import PreflightRequest, preflight
from levada.postgres.problems import Severity
from levada.postgres.publications import inspect_coverage
from levada.values import QualifiedTable, TableId

A = QualifiedTable("public", "a")
REQUEST = PreflightRequest("s", "p", True, lambda table: True, 2)
UNMANAGED = replace(REQUEST, managed=False)

KEYS = {
    "full": ("id int", "ALTER TABLE {} REPLICA IDENTITY FULL"),
    "in_key": ("id int, PRIMARY KEY (id, twice)", ""),
    "unused_key": ("id int PRIMARY KEY", "ALTER TABLE {} REPLICA IDENTITY FULL"),
}


def test_a_generated_column_in_the_identity(versions: Database) -> None:
    """The hint works: before an upgrade to 18 on older versions, and at once on 18. FULL is never one."""
    for name, (key, then) in KEYS.items():
        with versions.connect() as c:
            c.execute(f'CREATE TABLE "{name}" (n int, twice int GENERATED ALWAYS AS (n * 2) STORED, {key})')  # type: ignore[arg-type]
            if then:
                c.execute(then.format(f'"{name}"'))  # type: ignore[arg-type]  # a name
            c.execute(f'INSERT INTO "{name}" (n, id) VALUES (1, 1)')  # type: ignore[arg-type]  # a name
    with versions.connect() as c:
        is_18 = c.info.server_version >= 180_000
        if not is_18:
            c.execute("CREATE PUBLICATION p FOR TABLE full_, in_key, unused_key".replace("full_", '"full"'))
    code = "identity_missing" if is_18 else "upgrade_refuses_updates"
    hints = [p.hint for p in preflight(versions.connection, REQUEST) if p.code == code]
    assert len(hints) == 3, hints
    assert not [h for h in hints if "IDENTITY FULL" in h]
    default = 'ALTER TABLE "public"."{}" REPLICA IDENTITY DEFAULT'
    for name in KEYS:
        [hint] = [h for h in hints if default.format(name) in h]
        assert ("add a primary key without twice" in hint) == (name != "unused_key")
    with versions.connect() as c:
        c.execute("ALTER TABLE in_key DROP CONSTRAINT in_key_pkey, ADD PRIMARY KEY (id)")
        c.execute('ALTER TABLE "full" ADD PRIMARY KEY (id)')
        for name in KEYS:
            c.execute(default.format(name))  # type: ignore[arg-type]  # a name
        if is_18:
            c.execute('CREATE PUBLICATION p FOR TABLE "full", in_key, unused_key')
        for name in KEYS:
            c.execute(f'UPDATE "{name}" SET n = 2')  # type: ignore[arg-type]  # a name
    assert not [p for p in preflight(versions.connection, REQUEST) if p.code in (code, "identity_missing")]


def test_a_generated_key_in_a_publication_of_the_users(versions: Database) -> None:
    """The check says what happens to it: PostgreSQL 18 refuses its UPDATEs, older ones stream them without the key."""
    versions.execute(
        "CREATE TABLE t (n int, id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    refuses = False
    try:
        versions.execute("UPDATE t SET n = 2")
    except psycopg.Error:
        refuses = True
    with versions.connection.connect() as c:
        assert bool(inspect_coverage(c, "p", {QualifiedTable("public", "t")}).refusing) == refuses
    [found] = [p for p in preflight(versions.connection, UNMANAGED) if p.code == "identity_missing"]
    assert ("PostgreSQL rejects its UPDATEs" in found.message, "it is not copied" in found.message) == (
        refuses,
        not refuses,
    )


@pytest.mark.since(18)
def test_no_hint_publishes_a_generated_column_by_full(db: Database) -> None:
    """PostgreSQL 18 would refuse the updates of the table then, so each hint asks for a key first."""
    db.execute(
        "CREATE TABLE a (id int, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE a REPLICA IDENTITY FULL",
        "INSERT INTO a VALUES (1)",
        "CREATE PUBLICATION p",
        "CREATE PUBLICATION inserts FOR TABLE a WITH (publish = 'insert')",
    )
    with db.connect() as c:
        table = TableId(c.execute("SELECT 'a'::regclass::oid").fetchall()[0][0])
        gap = find_gap(None, read_publication_state(c, "p", [table]), table)
        assert gap is not None
        hints = [gap.hint, table_not_published(c, "p", [A]).hint, publish_all_hint(c, "inserts")]
        assert [hint for hint in hints if "IDENTITY FULL" in hint] == []
        first = 'add a primary key without twice and run ALTER TABLE "public"."a" REPLICA IDENTITY DEFAULT'
        assert [hint.startswith(first) for hint in hints] == [True, True, True]
        c.execute("ALTER PUBLICATION p ADD TABLE a")
    found = {p.code for p in preflight(db.connection, UNMANAGED)}
    assert found == {"identity_missing"}


def test_a_locked_partition_is_not_waited_for(versions: Database) -> None:
    """The check names the lock as a warning, for a published table and for one that is left out."""
    with versions.connect() as holder:
        for name, key in (("kept", "PRIMARY KEY"), ("bare", "")):
            holder.execute(f"CREATE TABLE {name} (id int {key}) PARTITION BY RANGE (id)".encode())
            holder.execute(f"CREATE TABLE {name}_low PARTITION OF {name} FOR VALUES FROM (0) TO (9)".encode())
        holder.execute("CREATE PUBLICATION p FOR TABLE kept WITH (publish_via_partition_root)")
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE kept_low, bare_low IN ACCESS EXCLUSIVE MODE")
        problems = preflight(versions.connection, REQUEST)
    assert {p.code for p in problems} == {"identity_missing", "table_locked"}
    assert all(p.severity is Severity.WARNING for p in problems)
