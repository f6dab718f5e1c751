"""Preflight finds every problem in one run, each with its remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.postgres.streams import open_stream, prepare
from tests.rigs.database import Database, StartPostgres, connection_to

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.preflight import PreflightRequest, find_problems, preflight
from levada.postgres.problems import Problem, Severity
from levada.postgres.slots import create_slot
from levada.postgres.table_checks import read_table_properties, reading_problems
from levada.postgres.unselected import NamedTables
from levada.schema.stored_types import ColumnChoice
from levada.spec.source import TableSelector
from levada.values import GeneratedColumns, QualifiedTable

REQUEST = PreflightRequest("s", "p", True, lambda table: True, 2)


def codes(problems: tuple[Problem, ...]) -> dict[str, Severity]:
    """Each code with its severity."""
    return {p.code: p.severity for p in problems}


def test_good_source_has_no_problem(versions: Database) -> None:
    """A source that is ready is silent, before and after slot and publication exist, and nothing is changed."""
    versions.execute("CREATE TABLE other (id int PRIMARY KEY)")
    assert preflight(versions.connection, REQUEST) == ()
    assert versions.query("SELECT 1 FROM pg_publication") == []
    assert versions.query("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    prepare(versions)
    assert preflight(versions.connection, REQUEST) == ()
    assert preflight(versions.connection, replace(REQUEST, managed=False)) == ()


def test_a_table_that_is_renamed_meanwhile_is_no_problem(db: Database) -> None:
    """It was in the list of the tables, and is no longer one that the publication needs."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    renames = iter(["ALTER TABLE b RENAME TO c"])

    def selects(table: QualifiedTable) -> bool:
        db.execute(*renames)
        return True

    assert preflight(db.connection, replace(REQUEST, selects=selects)) == ()


def test_unreachable_source_is_the_one_problem(db: Database) -> None:
    """A source that cannot be reached has one problem, with the code of the failed login."""
    (problem,) = preflight(replace(db.connection, port=1), REQUEST)
    assert (problem.severity, problem.code) == (Severity.ERROR, "source_unreachable")


def test_all_problems_come_at_once(db: Database, role: str) -> None:
    """Missing rights and objects, hidden rows and reserved names are reported together, errors first."""
    db.execute(
        "CREATE TABLE plain (id int PRIMARY KEY)",
        'CREATE TABLE "Odd" (_levada_op int PRIMARY KEY)',
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE keyless (id int)",
        "CREATE TABLE full_only (id int)",
        "ALTER TABLE full_only REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE plain, \"Odd\", hidden, keyless, full_only WITH (publish = 'insert, update')",
    )
    problems = preflight(replace(db.connection, user=role), replace(REQUEST, managed=False))
    found = codes(problems)
    assert found == {
        "replication_privilege_missing": Severity.ERROR,
        "select_privilege_missing": Severity.ERROR,
        "row_security": Severity.ERROR,
        "reserved_column_name": Severity.WARNING,
        "publication_operations": Severity.WARNING,
        "identity_missing": Severity.WARNING,
        "key_missing": Severity.WARNING,
        "ddl_trigger_unavailable": Severity.WARNING,
    }
    assert [p.severity for p in problems] == sorted((p.severity for p in problems), key=lambda s: s == Severity.WARNING)
    hints = "\n".join(p.hint for p in problems)
    assert 'ALTER TABLE "public"."Odd" RENAME COLUMN "_levada_op"' in hints
    assert f'GRANT SELECT ON "public"."plain" TO "{role}"' in hints
    assert all(p.hint for p in problems)
    choice = ColumnChoice(frozenset({"_levada_op"}))
    excluded = preflight(db.connection, replace(REQUEST, managed=False, choice=lambda table: choice))
    assert "reserved_column_name" not in codes(excluded)


def test_each_excluded_name_without_a_column_is_reported(db: Database) -> None:
    """A name that is misspelled, or that of a renamed column, excludes nothing. Generated columns have names too."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, ssn text, len int GENERATED ALWAYS AS (length(ssn)) STORED)",
        "CREATE TABLE others (id int PRIMARY KEY)",
    )
    excluded = {QualifiedTable("public", "people"): frozenset({"ssn", "len", "snn", "born"})}
    request = replace(REQUEST, choice=lambda table: ColumnChoice(excluded.get(table, frozenset())))
    (problem,) = preflight(db.connection, request)
    assert (problem.severity, problem.code) == (Severity.WARNING, "excluded_column_missing")
    assert problem.message == "columns.exclude of table public.people has born, snn, which is no column"
    db.execute("ALTER TABLE people RENAME ssn TO snn", "ALTER TABLE people ADD born date, ADD ssn text")
    assert preflight(db.connection, request) == ()


def test_publication_that_loses_changes_is_an_error(db: Database) -> None:
    """Without updates or deletes in the publication rows would be wrong."""
    prepare(db)
    db.execute("ALTER PUBLICATION p SET (publish = 'insert, truncate')")
    (problem,) = preflight(db.connection, REQUEST)
    assert (problem.severity, problem.code) == (Severity.ERROR, "publication_operations")
    assert "update, delete" in problem.message


def test_a_limit_of_connections_is_named(db: Database, role: str) -> None:
    """The role and the database each have one. A superuser has none."""
    prepare(db)
    db.execute(f"ALTER ROLE {role} CONNECTION LIMIT 9", f"ALTER DATABASE {db.name} CONNECTION LIMIT 8")  # type: ignore[arg-type]
    request = replace(REQUEST, copy_tables=2, copy_connections=4)
    hints = [
        problem.hint
        for problem in preflight(replace(db.connection, user=role), request)
        if problem.code == "too_many_connections" and problem.severity is Severity.WARNING
    ]
    assert [hint.partition(",")[0] for hint in hints] == [
        f'ALTER ROLE "{role}" CONNECTION LIMIT 18',
        f'ALTER DATABASE "{db.name}" CONNECTION LIMIT 18',
    ]
    assert "too_many_connections" not in codes(preflight(db.connection, request))


def test_missing_publication_is_an_error_where_it_is_not_ours_to_make(db: Database, role: str) -> None:
    """External: its SQL is the hint, without tables that it would harm. Managed: every reason against making it."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int)")
    (external,) = preflight(db.connection, replace(REQUEST, managed=False))
    assert external.code == "publication_missing"
    assert external.hint.startswith('CREATE PUBLICATION "p" FOR TABLE ONLY "public"."a" WITH')
    (harm,) = preflight(db.connection, REQUEST)
    assert (harm.severity, harm.code) == (Severity.WARNING, "identity_missing")
    assert "public.b is left out, because it has no replica identity" in harm.message
    assert 'ALTER TABLE "public"."b" REPLICA IDENTITY FULL' in harm.hint
    assert "exclude it in spec.tables" in harm.hint
    managed = [p for p in preflight(replace(db.connection, user=role), REQUEST) if p.code == "publication_missing"]
    assert len(managed) == 2
    # A table of another role alone keeps the publication from no other table.
    db.execute(
        f"GRANT CREATE ON DATABASE {db.name} TO {role}",
        f"ALTER TABLE a OWNER TO {role}",
        "ALTER TABLE b ADD PRIMARY KEY (id)",
    )
    [one] = [p for p in preflight(replace(db.connection, user=role), REQUEST) if p.code.startswith("publication_")]
    assert (one.code, one.spares_others) == ("publication_incomplete", True)
    assert "table public.b is owned by another role" in one.message


def test_empty_selection_is_an_error(db: Database) -> None:
    """A pipeline of nothing is a mistake."""
    prepare(db)
    assert "no_tables_selected" in codes(preflight(db.connection, replace(REQUEST, selects=lambda t: False)))


def test_each_name_that_selects_no_table_is_reported(db: Database) -> None:
    """The reason and what to do, also where another entry selects a table."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE VIEW totals AS SELECT 1 AS one",
    )
    names = ("orders", "ordrs", "Orders", "fast", "r1", "totals", "nothing_like_it")
    named = tuple(TableSelector(schema="public", name=name) for name in names)
    found = {
        p.message.removeprefix("spec.tables names public."): p.hint
        for p in preflight(db.connection, replace(REQUEST, named=NamedTables(named)))
        if p.code == "included_table_missing" and p.severity is Severity.WARNING
    }
    assert found == {
        "ordrs, which does not exist": "did you mean public.orders? Correct spec.tables",
        "Orders, which does not exist": "did you mean public.orders? Correct spec.tables",
        "fast, which is unlogged, so its changes are not in the WAL": 'ALTER TABLE "public"."fast" SET LOGGED;',
        "r1, which is a partition": "name its root, public.r, in spec.tables",
        "totals, which is a view, not a table": "remove it from spec.tables",
        "nothing_like_it, which does not exist": (
            "create the table, or correct spec.tables, whose names are case-sensitive"
        ),
    }
    (none,) = (
        p for p in preflight(db.connection, replace(REQUEST, selects=lambda t: False)) if p.code == "no_tables_selected"
    )
    assert none.hint == "create a table, or correct spec.tables. These can be replicated: public.orders, public.r"


def test_a_key_that_is_not_the_identity_is_the_remedy(db: Database) -> None:
    """A table with a primary key and REPLICA IDENTITY NOTHING needs no FULL identity."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY)", "ALTER TABLE a REPLICA IDENTITY NOTHING")
    (left_out,) = (p for p in preflight(db.connection, REQUEST) if p.code == "identity_missing")
    assert left_out.hint == 'run ALTER TABLE "public"."a" REPLICA IDENTITY DEFAULT, or exclude it in spec.tables'


def test_partitions_are_checked_one_by_one(db: Database, role: str) -> None:
    """A copy reads the partitions, so that a right on the root alone is not sufficient."""
    db.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
        f"GRANT SELECT ON r TO {role}",
        "ALTER TABLE r1 REPLICA IDENTITY NOTHING",
    )
    found = codes(preflight(replace(db.connection, user=role), replace(REQUEST, managed=False)))
    assert "select_privilege_missing" in found
    assert found["identity_missing"] is Severity.WARNING


def test_a_foreign_partition_is_named(db: Database) -> None:
    """It needs no replica identity, as none of its changes are streamed."""
    db.execute(
        "CREATE TABLE r (id int) PARTITION BY RANGE (id)",
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
        "CREATE FOREIGN TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10) SERVER elsewhere",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
        "ALTER TABLE r REPLICA IDENTITY FULL",
    )
    for managed in (True, False):
        found = codes(preflight(db.connection, replace(REQUEST, managed=managed)))
        assert found == {"partition_foreign": Severity.WARNING, "key_missing": Severity.WARNING}


def test_slot_of_somebody_else_is_an_error(db: Database, postgres: EmbeddedPostgres) -> None:
    """A slot that cannot serve is an error, one in use a warning with its PID."""
    prepare(db)
    db.execute("SELECT pg_create_physical_replication_slot('physical_one')")
    try:
        found = codes(preflight(db.connection, replace(REQUEST, slot="physical_one")))
        assert found == {"slot_foreign": Severity.ERROR}
    finally:
        db.execute("SELECT pg_drop_replication_slot('physical_one')")
    with open_stream(db):
        assert codes(preflight(db.connection, REQUEST)) == {"slot_active": Severity.WARNING}
        elsewhere = codes(preflight(connection_to(postgres), REQUEST))
        assert elsewhere["slot_foreign"] is Severity.ERROR
        assert "slot_active" not in elsewhere, "it names a PID to end, of another database's pipeline"


def test_room_for_the_stream_and_the_copies_is_counted(db: Database) -> None:
    """Too few for all copies is a warning, too few for one an error."""
    prepare(db)
    few = codes(preflight(db.connection, replace(REQUEST, copy_tables=500)))
    assert few == {"no_free_slot": Severity.WARNING, "no_free_wal_sender": Severity.WARNING}


@pytest.mark.since(18)
def test_server_that_cannot_replicate_is_told(start_postgres: StartPostgres) -> None:
    """The server's own settings are checked: WAL, room, retention and encoding."""
    settings = {
        "wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1", "max_slot_wal_keep_size": "100MB",
        "idle_replication_slot_timeout": "60s",
    }  # fmt: skip
    with start_postgres(settings=settings) as server:
        db = Database(server, "ascii")
        Database(server, "postgres").execute(
            "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'",
        )
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        found = codes(preflight(db.connection, REQUEST))
    assert found == {
        "wal_level_not_logical": Severity.ERROR,
        "encoding_sql_ascii": Severity.WARNING,
        "no_free_slot": Severity.ERROR,
        "no_free_wal_sender": Severity.ERROR,
        "slot_retention_small": Severity.WARNING,
        "slot_idle_timeout": Severity.WARNING,
    }


def test_an_old_version_is_the_one_problem(db: Database) -> None:
    """A server that speaks the protocol but reports PostgreSQL 13, as some products do, is refused by its version."""
    db.execute(
        "CREATE SCHEMA older",
        "CREATE FUNCTION older.current_setting(text) RETURNS text LANGUAGE sql RETURN"
        " CASE $1 WHEN 'server_version_num' THEN '130014' ELSE pg_catalog.current_setting($1) END",
    )
    with db.connect() as connection:
        connection.execute("SET search_path = older, pg_catalog")
        (problem,) = find_problems(connection, REQUEST)
    assert (problem.severity, problem.code) == (Severity.ERROR, "version_unsupported")
    assert problem.message == "the source is PostgreSQL 13, and Levada needs 14 or newer"


def test_lost_slot_is_a_warning_here(start_postgres: StartPostgres) -> None:
    """The pipeline's own policy applies to a lost slot, so that preflight does not prevent the start."""
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with start_postgres(settings=settings) as server:
        connection = connection_to(server)
        with connection.connect() as c:
            c.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
            create_slot(c, "s")
            for _ in range(4):
                c.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)), pg_switch_wal()")
            c.execute("CHECKPOINT")
        found = codes(preflight(connection, REQUEST))
    assert found == {"slot_lost": Severity.WARNING, "slot_retention_small": Severity.WARNING}


@pytest.mark.since(18)
def test_generated_columns_that_are_not_streamed_are_reported(db: Database) -> None:
    """If the manifest asks for generated columns, the check names those that PostgreSQL does not stream."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " half int GENERATED ALWAYS AS (id / 2) VIRTUAL)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    request = replace(REQUEST, managed=True, selects=lambda t: t.name == "t")
    assert "generated_columns_left_out" not in codes(preflight(db.connection, request))
    found = preflight(db.connection, replace(request, generated_columns=GeneratedColumns.REPLICATE))
    [left_out] = [p for p in found if p.code == "generated_columns_left_out"]
    assert left_out.severity is Severity.WARNING
    assert "public.t are left out (half)" in left_out.message


def test_a_table_that_was_just_dropped_lacks_no_privilege(db: Database) -> None:
    """Functions of privileges return NULL for it, while the snapshot of the query still shows it."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with db.connect() as conn, conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT FROM pg_class LIMIT 1")
        db.execute("DROP TABLE t")
        [found] = read_table_properties(conn, {QualifiedTable("public", "t")})
    assert list(reading_problems(found, frozenset(), "someone")) == []


def test_children_that_are_not_selected(db: Database) -> None:
    """A parent's query shows the rows of its inheritance children, so those that are left out are named."""
    db.execute(
        "CREATE SCHEMA chunks",
        "CREATE TABLE hyper (id int PRIMARY KEY)",
        "CREATE TABLE chunks.one (PRIMARY KEY (id)) INHERITS (hyper)",
        "CREATE TABLE two (PRIMARY KEY (id)) INHERITS (hyper)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE part PARTITION OF parts DEFAULT",
    )
    [problem] = preflight(db.connection, replace(REQUEST, selects=lambda t: t.schema == "public"))
    assert (problem.severity, problem.code) == (Severity.WARNING, "children_unselected")
    assert "chunks.one inherit from table public.hyper" in problem.message
    assert preflight(db.connection, REQUEST) == ()


def test_a_role_that_cannot_create_the_event_trigger(db: Database, role: str) -> None:
    """It is warned of what the pipeline lacks, unless the trigger is there. A superuser creates it."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    warned = "ddl_trigger_unavailable"
    assert codes(preflight(replace(db.connection, user=role), REQUEST))[warned] is Severity.WARNING
    assert warned not in codes(preflight(db.connection, REQUEST))
    with db.connect() as connection:
        assert install_ddl_trigger(connection)
    assert warned not in codes(preflight(replace(db.connection, user=role), REQUEST))
