"""Row filters of a managed publication: what PostgreSQL accepts, and that no statement of an application fails."""

from __future__ import annotations

import psycopg
import pytest
from tests.rigs.database import Database

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.catalog import published_tables, read_table_ids
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.managed_filters import filter_problem, read_members, set_filter
from levada.postgres.publication_owners import mark_publication
from levada.postgres.publications import ensure_coverage, inspect_coverage
from levada.postgres.withdrawals import unidentified_members
from levada.values import PipelineOwner, QualifiedTable, TableId

T = QualifiedTable("public", "t")


REFUSED = (
    "nothing = 1",
    "id >",
    "id",
    "",
    "v > 1",
    "id = (SELECT 1)",
    "random() > 0.5",
    "xmin::text = '1'",
    "pg_read_file('/etc/passwd') = ''",
    "evil(id)",
    "true), TABLE ONLY secret WHERE (true",
    "true), TABLE secret (id",
    "true), TABLES IN SCHEMA public, TABLE secret WHERE (true",
    "true); DROP TABLE secret; --",
    "true); SELECT (true",
    "true /*",
    "id = $1",
    "\u0001",
)
"""Filters that PostgreSQL refuses, and texts that would do something else."""


@pytest.fixture
def db(versions: Database) -> Database:
    """A table with a key, the publication of another one, and the trigger."""
    if versions.query("SELECT current_setting('server_version_num')::int < 150000") == [(True,)]:
        pytest.skip("row filters exist since version 15")
    versions.execute(
        "CREATE TABLE t (id int, status text, v int, PRIMARY KEY (id, status))",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE secret (id int PRIMARY KEY)",
    )
    with versions.connection.connect() as c:
        ensure_coverage(c, "p", {QualifiedTable("public", "other")}, manage=True)
        mark_publication(c, "p", PipelineOwner("local-1", "shop"))
        install_ddl_trigger(c)
    return versions


def members(db: Database) -> dict[str, str | None]:
    """Return the members of the publication with their filters."""
    return dict(
        db.query("SELECT prrelid::regclass::text, pg_get_expr(prqual, prrelid) FROM pg_publication_rel ORDER BY 1")
    )


def table(c: psycopg.Connection[object], name: QualifiedTable = T) -> tuple[TableId, QualifiedTable]:
    """Return the table with its OID."""
    return read_table_ids(c, [name])[name], name


def filtered(db: Database, where: str | None) -> int:
    """Set the filter of ``t``."""
    with db.connection.connect() as c:
        return set_filter(c, "p", table(c), where, check=lambda: None, lock_timeout_s=1)


def problem(db: Database, where: str) -> LevadaError | None:
    """Return what a start would say of the filter."""
    with db.connection.connect() as c:
        return filter_problem(c, "p", table(c), where)


def test_a_filter_is_set_changed_and_removed(db: Database) -> None:
    """Each time the table has another membership, and no other table changes."""
    before = members(db)
    assert problem(db, "status <> 'draft' -- not yet") is None
    assert members(db) == before, "the check changes nothing"
    first = filtered(db, "status <> 'draft' -- not yet")
    assert members(db) == {"other": None, "t": "(status <> 'draft'::text)"}
    second = filtered(db, "id > 1 AND status IN ('a', 'b%s')")
    assert members(db)["t"] == "((id > 1) AND (status = ANY (ARRAY['a'::text, 'b%s'::text])))"
    third = filtered(db, None)
    assert members(db) == {"other": None, "t": None}
    assert len({first, second, third}) == 3
    with db.connection.connect() as c:
        assert read_members(c, "p")[table(c)[0]] == third
    db.execute("UPDATE t SET v = 1", "DELETE FROM t")


def test_what_postgres_refuses_is_refused(db: Database) -> None:
    """The check and the change say so alike, and leave the table, the publication and all others as they are."""
    db.execute(
        "CREATE FUNCTION evil(int) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN CREATE TABLE owned (id int); RETURN true; END $$"
    )
    filtered(db, "id > 1")
    before = members(db)
    for where in REFUSED:
        found = problem(db, where)
        assert isinstance(found, NeedsOperator), where
        assert found.code == codes.ROW_FILTER_REFUSED
        with pytest.raises(NeedsOperator) as caught:
            filtered(db, where)
        assert str(caught.value) == str(found)
        assert members(db) == before, where
    assert db.query("SELECT to_regclass('secret') IS NOT NULL, to_regclass('owned')") == [(True, None)]


def test_any_column_under_full(db: Database) -> None:
    """The whole old row is in the WAL then."""
    assert "v, which the replica identity" in str(problem(db, "v > 1"))
    db.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert problem(db, "v > 1") is None
    filtered(db, "v > 1")
    db.execute("INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET v = 2", "DELETE FROM t")


def test_every_partition_has_to_identify_by_the_columns(db: Database) -> None:
    """A partition with another key than its root's is found, also where its columns have other numbers."""
    db.execute(
        "CREATE TABLE root (id int, kind int, PRIMARY KEY (id, kind)) PARTITION BY LIST (id)",
        "CREATE TABLE leaf (gone int, kind int NOT NULL, id int NOT NULL)",
        "ALTER TABLE leaf DROP gone",
        "ALTER TABLE root ATTACH PARTITION leaf DEFAULT",
    )
    root = QualifiedTable("public", "root")
    with db.connection.connect() as c:
        assert filter_problem(c, "p", table(c, root), "kind = 1") is None
        db.execute("CREATE UNIQUE INDEX by_id ON leaf (id)", "ALTER TABLE leaf REPLICA IDENTITY USING INDEX by_id")
        assert "kind, which the replica identity" in str(filter_problem(c, "p", table(c, root), "kind = 1"))


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX by_id",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
    ],
)
@pytest.mark.parametrize("trigger", [True, False])
def test_a_table_whose_identity_loses_the_column_is_taken_out(db: Database, statement: str, *, trigger: bool) -> None:
    """Its UPDATEs work in the same transaction, and without the trigger it is found. One with all columns stays."""
    db.execute("CREATE UNIQUE INDEX by_id ON t (id)", "CREATE UNIQUE INDEX by_both ON t (status, id)")
    filtered(db, "status <> 'draft'")
    db.execute("INSERT INTO t VALUES (1, 'a', 1)", "ALTER TABLE t REPLICA IDENTITY USING INDEX by_both")
    assert "t" in members(db)
    if not trigger:
        db.execute("DROP EVENT TRIGGER levada_ddl", "DROP EVENT TRIGGER levada_ddl_drop")
    with db.connect() as c, c.transaction():
        c.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
        c.execute(statement.encode())
        if trigger:
            c.execute("UPDATE t SET v = 2")
    with db.connection.connect() as c:
        assert unidentified_members(c, "p") == (() if trigger else (T,))
    assert members(db) == {"other": None} | ({} if trigger else {"t": "(status <> 'draft'::text)"})


def test_a_new_partition_gets_the_full_identity_of_its_root(db: Database) -> None:
    """Its own key may lack the column of the filter."""
    db.execute(
        "CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY LIST (id)",
        "ALTER TABLE root REPLICA IDENTITY FULL",
    )
    with db.connection.connect() as c:
        root = table(c, QualifiedTable("public", "root"))
        set_filter(c, "p", root, "v > 1", check=lambda: None, lock_timeout_s=1)
    with db.connect() as c, c.transaction():
        c.execute("CREATE TABLE leaf PARTITION OF root DEFAULT")
        c.execute("INSERT INTO root VALUES (1, 1)")
        c.execute("UPDATE root SET v = 2")
    assert members(db)["root"] == "(v > 1)"


def test_a_locked_table_is_waited_for_briefly(db: Database) -> None:
    """The check says nothing of it, and the change is tried again later."""
    with db.connect() as c, c.transaction():
        c.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert problem(db, "nothing = 1") is None
        with db.connection.connect() as other, pytest.raises(Transient) as caught:
            set_filter(other, "p", (TableId(0), T), "id > 1", check=lambda: None, lock_timeout_s=0.01)
        assert caught.value.code == "lock_timeout"


def test_an_identity_lost_in_a_transaction_that_reads_an_older_catalog(db: Database) -> None:
    """The filters are newer than its first statement. Its UPDATEs work, also those of a partition."""
    db.execute(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY LIST (id)",
        "CREATE TABLE leaf PARTITION OF root DEFAULT",
        "CREATE UNIQUE INDEX by_both ON leaf (id, v)",
        "ALTER TABLE leaf ALTER v SET NOT NULL",
        "ALTER TABLE leaf REPLICA IDENTITY USING INDEX by_both",
    )
    with db.connect() as c:
        c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM other")
        filtered(db, "v > 0")
        with db.connection.connect() as engine:
            root = table(engine, QualifiedTable("public", "root"))
            set_filter(engine, "p", root, "v > 0", check=lambda: None, lock_timeout_s=1)
        c.execute(
            "ALTER TABLE t REPLICA IDENTITY DEFAULT; UPDATE t SET v = 2; DROP INDEX by_both; UPDATE root SET v = 2"
        )
        c.execute("COMMIT")
    assert members(db) == {"other": None}


def test_a_schema_in_the_publication_makes_a_filter_void(db: Database) -> None:
    """PostgreSQL streams all rows then. So the catalog shows no filter, and one is refused."""
    db.execute("CREATE SCHEMA side", "CREATE TABLE side.kept (id int PRIMARY KEY)")
    kept = QualifiedTable("side", "kept")
    filtered(db, "id > 1")
    db.execute(
        "ALTER PUBLICATION p ADD TABLE side.kept WHERE (id > 1)", "ALTER PUBLICATION p ADD TABLES IN SCHEMA public"
    )
    with db.connection.connect() as c:
        assert {t.name: t.row_filter for t in published_tables(c, "p") if t.name in (T, kept)} == {
            T: None,
            kept: "(id > 1)",
        }
        assert inspect_coverage(c, "p", {T, kept}).notes == ("side.kept is streamed where (id > 1)",)
        assert filter_problem(c, "p", table(c, kept), "id > 2") is None
    found = problem(db, "id > 1")
    assert isinstance(found, NeedsOperator)
    assert found.code == codes.ROW_FILTER_REFUSED
    db.execute(found.hint.encode())  # type: ignore[arg-type]  # a statement for the operator
    assert problem(db, "id > 1") is None


def test_a_publication_of_all_tables_has_no_filters(db: Database) -> None:
    """The check and the change say so alike."""
    db.execute("DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES")
    found = problem(db, "id > 1")
    assert isinstance(found, NeedsOperator)
    assert (found.code, "FOR ALL TABLES" in found.message) == (codes.ROW_FILTER_REFUSED, True)
    with pytest.raises(NeedsOperator, match="FOR ALL TABLES"):
        filtered(db, "id > 1")
