"""Roles as administrators make them: names that need quotes, settings, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from psycopg import sql
from tests.rigs.command_line import log_in_as, manifest, on, replicated, run
from tests.rigs.database import Database
from tests.rigs.manifests import table_sync

from levada.cli.exit_codes import Exit
from levada.errors import LevadaError

__all__ = ["manifest"]

ODD = """svc@proj.iam "A" b's"""
"""A name that needs quotes for each reason there is."""


def alter(db: Database, statement: str, *names: str) -> None:
    """Run a statement with quoted names."""
    with db.connect() as admin:
        admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]  # only names vary


@pytest.fixture
def odd(db: Database, manifest: Path) -> Iterator[str]:
    """The pipeline's role, which is no superuser."""
    alter(db, "CREATE ROLE {} LOGIN REPLICATION", ODD)
    alter(db, "GRANT CREATE ON DATABASE {} TO {}", db.name, ODD)
    for table in ("orders", "items"):
        alter(db, "ALTER TABLE {} OWNER TO {}", table, ODD)
    log_in_as(manifest.parent, ODD)
    yield ODD
    alter(db, "DROP OWNED BY {}", ODD)
    alter(db, "DROP ROLE {}", ODD)


def test_a_role_whose_name_needs_quotes(db: Database, manifest: Path, odd: str) -> None:
    """It may be the role of the source, of the store and of the destination."""
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    db.execute("INSERT INTO orders VALUES (1)")
    for number in (2, 3):
        checked = on(manifest, "check")
        assert checked.exit_code == Exit.OK, checked.output
        run(manifest)
        db.execute(f"INSERT INTO orders VALUES ({number})")  # type: ignore[arg-type]  # a number
    run(manifest)
    assert db.query("SELECT id FROM replica.orders ORDER BY 1") == [(1,), (2,), (3,)]


def test_a_role_that_may_read_some_columns(db: Database, manifest: Path, odd: str) -> None:
    """The hint of `check` grants the others, of each partition too. Copy and comparison read no excluded one."""
    db.execute(
        "ALTER TABLE orders ADD COLUMN v text, ADD COLUMN secret text",
        "ALTER TABLE orders OWNER TO postgres",
        "DROP TABLE items",
        "CREATE TABLE items (id int PRIMARY KEY, secret text) PARTITION BY RANGE (id)",
        "CREATE TABLE items_low PARTITION OF items FOR VALUES FROM (0) TO (10)",
        f"CREATE PUBLICATION levada_{db.name} FOR TABLE orders, items WITH (publish_via_partition_root)",
        "INSERT INTO orders VALUES (1, 'a', 'x')",
        "INSERT INTO items VALUES (1, 'x')",
    )
    alter(db, "GRANT SELECT (id) ON orders TO {}", odd)
    pipeline = replicated(db, store={"postgres": {}})
    pipeline["spec"]["source"]["publication"] = {"name": f"levada_{db.name}", "management": "External"}
    documents = [pipeline, *(table_sync(t, columns={"exclude": ["secret"]}) for t in ("orders", "items"))]
    for document in documents[1:]:
        document["spec"]["pipelineRef"]["name"] = pipeline["metadata"]["name"]
    manifest.write_text(yaml.safe_dump_all(documents))
    checked = on(manifest, "check", "-o", "json")
    assert checked.exit_code == Exit.PREFLIGHT, checked.output
    problems = json.loads(checked.stdout)["problems"]
    missing = [p for p in problems if p["code"] == "select_privilege_missing"]
    assert [p["message"].partition("privilege on ")[2] for p in missing] == [
        "columns ctid, id, tableoid, xmin of table public.items",
        "columns ctid, tableoid, v, xmin of table public.orders",
    ]
    for problem in missing:
        db.execute(problem["hint"])
    run(manifest)
    db.execute("INSERT INTO orders VALUES (2, 'b', 'y')", "UPDATE items SET id = 2")
    run(manifest)
    assert db.query("TABLE replica.orders") == [(1, "a"), (2, "b")]
    assert db.query("TABLE replica.items") == [(2,)]
    verified = on(manifest, "verify")
    assert (verified.exit_code, verified.output.count("equal")) == (Exit.OK, 2), verified.output


SETTINGS = {
    "array_nulls": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "check_function_bodies": "off",
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "DateStyle": "German",
    "default_table_access_method": "other",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "escape_string_warning": "on",
    "extra_float_digits": "-15",
    "idle_in_transaction_session_timeout": "'1ms'",
    "idle_session_timeout": "'1ms'",
    "IntervalStyle": "sql_standard",
    "lc_messages": "'C'",
    "lock_timeout": "'1ms'",
    "plpgsql.variable_conflict": "use_column",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "search_path": "evil, pg_catalog",
    "session_replication_role": "replica",
    "standard_conforming_strings": "off",
    "statement_timeout": "'1ms'",
    "synchronous_commit": "off",
    "TimeZone": "'Asia/Kolkata'",
    "transform_null_equals": "on",
    "work_mem": "'64kB'",
    "xmlbinary": "hex",
}
"""Settings that administrators give a role or a database, each far from the default."""


@pytest.mark.nightly
def test_settings_of_the_role(db: Database, manifest: Path, odd: str) -> None:
    """They are for applications, and change neither what Levada reads nor how long it may take."""
    db.execute(
        "CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler",
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.current_database() RETURNS name LANGUAGE sql AS 'SELECT 1/0'",
        "CREATE TABLE kinds (id int PRIMARY KEY, at timestamptz, day date, i interval, b bytea, f float8, t text)",
        r"INSERT INTO kinds VALUES (1, '2026-03-04 05:06:07Z', '2026-03-04', '1 mon -2 days', '\x00ff', 0.1, 'ä\')",
    )
    alter(db, "GRANT USAGE ON SCHEMA evil TO {}", odd)
    alter(db, "ALTER TABLE kinds OWNER TO {}", odd)
    for name, value in SETTINGS.items():
        alter(db, f"ALTER ROLE {{}} SET {name} = {value}", odd)
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    checked = on(manifest, "check")
    assert checked.exit_code == Exit.OK, checked.output
    run(manifest)
    db.execute("INSERT INTO kinds SELECT 2, at, day, i, b, f, t FROM kinds")
    run(manifest)
    assert len(rows := db.query("SELECT * FROM replica.kinds ORDER BY 1")) == 2
    assert rows == db.query("SELECT * FROM kinds ORDER BY 1")


@pytest.mark.parametrize("whose", ["ROLE", "DATABASE"])
def test_what_an_administrator_forbids(db: Database, manifest: Path, odd: str, whose: str) -> None:
    """A hint names the setting or the limit, and its owner: the role or the database."""
    name = odd if whose == "ROLE" else db.name
    quoted = sql.Identifier(name).as_string(None)
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    alter(db, f"ALTER {whose} {{}} SET default_transaction_read_only = on", name)
    found = " ".join(on(manifest, "check").output.split())
    assert "[store_read_only]" in found, found
    assert f"default_transaction_read_only of {whose.lower()} {name} is on" in found
    assert f"ALTER {whose} {quoted} RESET default_transaction_read_only" in found
    with db.connect(options="-c default_transaction_read_only=off") as admin:
        admin.execute(f"ALTER {whose} {quoted} RESET default_transaction_read_only")  # type: ignore[arg-type]  # a name
        admin.execute(f"ALTER {whose} {quoted} CONNECTION LIMIT 0")  # type: ignore[arg-type]  # a name
    found = " ".join(on(manifest, "check").output.split())
    assert "[too_many_connections]" in found, found
    assert f"ALTER {whose} {quoted} CONNECTION LIMIT -1" in found


def test_sessions_that_continue_as_another_role(db: Database, manifest: Path, odd: str) -> None:
    """The rights are those of the other role, and a hint names the setting, which a login has kept from its owner."""
    alter(db, "CREATE ROLE team")
    alter(db, "GRANT team TO {}", odd)
    alter(db, "ALTER ROLE {} SET role = team", odd)
    alter(db, "ALTER ROLE {} SET default_transaction_read_only = on", odd)
    quoted = sql.Identifier(odd).as_string(None)
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    try:
        found = " ".join(on(manifest, "check").output.split())
    finally:
        alter(db, "DROP OWNED BY team")
        alter(db, "DROP ROLE team")
    assert f"continue as that one because of the setting role of role {odd}" in found, found
    assert f'ALTER ROLE "team" REPLICATION, or ALTER ROLE {quoted} RESET role' in found
    assert f"ALTER ROLE {quoted} RESET default_transaction_read_only" in found


def test_a_role_that_may_not_replicate(db: Database, manifest: Path, odd: str) -> None:
    """The hint of a running engine names the role, and so does that of a check."""
    alter(db, "ALTER ROLE {} NOREPLICATION", odd)
    reset = sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(odd)).as_string(None)
    assert reset in " ".join(on(manifest, "check").output.split())
    with pytest.raises(LevadaError) as raised:
        replace(db.connection, user=odd).connect_replication()
    assert raised.value.code == "replication_privilege_missing"
    assert raised.value.hint == reset


def test_an_event_trigger_that_needs_the_search_path(db: Database, manifest: Path) -> None:
    """An application's function that fails in Levada's session is named, and the hint lets it find its objects."""
    db.execute(
        "CREATE TABLE audit (id serial PRIMARY KEY, tag text)",
        "CREATE FUNCTION audit_ddl() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO audit (tag) VALUES (tg_tag); END $$",
        "CREATE EVENT TRIGGER audit_ddl ON ddl_command_end EXECUTE FUNCTION audit_ddl()",
    )
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    failed = on(manifest, "run", "--until", "caught-up")
    assert failed.exit_code != Exit.OK, failed.output
    found = " ".join(failed.output.split())
    assert "in function public.audit_ddl() of the server" in found
    assert "ALTER FUNCTION public.audit_ddl() SET search_path = …" in found
    db.execute("ALTER FUNCTION public.audit_ddl() SET search_path = public")
    run(manifest)
    assert db.query("SELECT id FROM replica.audit ORDER BY 1")


EVIL = """
CREATE FUNCTION evil_now() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config('role', 'none', false);
    EXECUTE $c$ COPY (SELECT 1) TO PROGRAM 'touch FILE' $c$;
    RETURN 1;
EXCEPTION WHEN insufficient_privilege THEN RETURN 1; END $$;
CREATE FUNCTION evil(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.evil_now() + $1; END $$;
CREATE INDEX evil ON orders ((id + evil(1)));
"""
"""An index whose function does what a superuser may do, wherever its table is read, also in a read-only transaction."""


def test_functions_of_owners_who_are_not_trusted(db: Database, manifest: Path, odd: str) -> None:
    """They run with the rights of who reads the table, so a check warns a superuser. A role by its hint spares them."""
    reader, done = f"reader_{db.name}", Path(f"/tmp/levada-{db.name}")
    alter(db, "GRANT CREATE ON SCHEMA public TO {}", odd)
    with db.connect() as owner:
        owner.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(odd)))
        owner.execute("INSERT INTO orders VALUES (1)")
        owner.execute(EVIL.replace("FILE", str(done)))  # type: ignore[arg-type]  # a constant
    log_in_as(manifest.parent, "postgres")
    manifest.write_text(yaml.safe_dump(replicated(db)))
    checked = " ".join(on(manifest, "check").output.split())
    assert f"role postgres is a superuser, and reads tables of roles that are none ({odd})" in checked, checked
    assert db.query("SELECT id FROM orders WHERE id = 1") == [(1,)]
    assert done.exists()
    done.unlink()
    create, grant = (part.strip() for part in checked.partition("docs/security.md: ")[2].split(";")[:2])
    try:
        for statement in (create, grant):
            db.execute(statement.replace("levada", reader))  # type: ignore[arg-type]  # of the hint
        db.execute("CREATE PUBLICATION theirs FOR TABLE orders, items")
        spared = replicated(db, "spared")
        spared["spec"]["source"] |= {"publication": {"name": "theirs", "management": "External"}, "ddlTrigger": "None"}
        manifest.write_text(yaml.safe_dump(spared))
        alter(db, "GRANT CREATE ON DATABASE {} TO {}", db.name, reader)
        log_in_as(manifest.parent, reader)
        assert "role_superuser" not in on(manifest, "check").output
        run(manifest)
        assert not done.exists()
        assert db.query("SELECT id FROM spared.orders") == [(1,)]
    finally:
        done.unlink(missing_ok=True)
        alter(db, "DROP OWNED BY {}", reader)
        alter(db, "DROP ROLE {}", reader)
