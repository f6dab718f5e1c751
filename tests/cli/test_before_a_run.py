"""`levada check` reports what a run would meet, and no command that works on tables is the first run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg import sql
from tests.rigs.command_line import log_in_as, manifest, on, publish, replicated, run
from tests.rigs.database import Database, StartPostgres
from tests.servers.postgres import older_options
from tests.servers.standby import standby_of

from levada.cli.exit_codes import Exit

__all__ = ["manifest"]


def checked(manifest: Path, exit_code: Exit = Exit.PREFLIGHT) -> str:
    """Return what a check prints, without its line breaks."""
    result = on(manifest, "check")
    assert result.exit_code == exit_code, result.output
    return " ".join(result.output.split())


def test_a_transaction_that_holds_up_the_slot(db: Database, manifest: Path, role: str) -> None:
    """The session is named, also to a role that may not see since when its transaction is open."""
    with db.connect() as admin:
        admin.execute(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(*map(sql.Identifier, (db.name, role))))
        for table in ("orders", "items"):
            admin.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(*map(sql.Identifier, (table, role))))
    log_in_as(manifest.parent, role)
    manifest.write_text(yaml.safe_dump(replicated(db)))
    with db.connect() as opened, opened.transaction():
        pid = opened.info.backend_pid
        opened.execute("INSERT INTO orders VALUES (1)")
        found = checked(manifest, Exit.OK)
    assert f"waits for PID {pid} of role postgres" in found
    assert "[slot_creation_waits]" in found


def left_at(db: Database) -> tuple[list[Any], ...]:
    """Return the slots, the publications, the event triggers and the schemas of a database."""
    return (
        db.query("SELECT slot_name FROM pg_replication_slots WHERE database = %s ORDER BY 1", db.name),
        db.query("SELECT pubname FROM pg_publication ORDER BY 1"),
        db.query("SELECT evtname FROM pg_event_trigger ORDER BY 1"),
        db.query("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1"),
    )


TABLE_COMMANDS = (("verify",), ("cut", "november"), ("cut", "november", "--drop"), ("erase", "orders", "1", "--yes"))


@pytest.mark.parametrize("words", TABLE_COMMANDS, ids=" ".join)
def test_a_command_that_is_no_first_run(db: Database, manifest: Path, words: tuple[str, ...]) -> None:
    """Before the first run, and after a cleanup that keeps the publication, nothing is created at the source."""
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    before = left_at(db)
    refused = on(manifest, *words)
    assert refused.exit_code == Exit.FAILED, refused.output
    assert "[publication_missing]" in refused.output or "[pipeline_never_ran]" in refused.output, refused.output
    assert left_at(db) == before
    publish(db)
    cleaned = left_at(db)
    refused = on(manifest, *words)
    assert refused.exit_code == Exit.FAILED, refused.output
    assert "[pipeline_never_ran]" in refused.output, refused.output
    assert "hint: levada run" in refused.output
    assert left_at(db) == cleaned


@pytest.mark.nightly
def test_a_lost_slot(db: Database, manifest: Path) -> None:
    """It is an error once tables depend on it, as it is for a run."""
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    run(manifest)
    db.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for number in range(6):
            db.execute(f"INSERT INTO items VALUES ({number})", "SELECT pg_switch_wal()")  # type: ignore[arg-type]
        db.execute("CHECKPOINT")
    finally:
        db.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    [(status,)] = db.query("SELECT wal_status FROM pg_replication_slots WHERE database = %s", db.name)
    assert status == "lost"
    assert checked(manifest).count("[slot_lost]") == 1
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.PREFLIGHT, done.output
    assert "[slot_lost]" in done.output


def test_a_slot_that_another_consumer_moved(db: Database, manifest: Path) -> None:
    """It is an error of a check, as it is of a run, or a warning if a run copies all tables again by itself."""
    spec = replicated(db, store={"postgres": {}})
    manifest.write_text(yaml.safe_dump(spec))
    run(manifest)
    assert "[slot_lost]" not in checked(manifest, Exit.OK)
    db.execute("INSERT INTO items VALUES (1)")
    db.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", f"levada_{db.name}")
    found = checked(manifest)
    assert "another consumer advanced or recreated it" in found
    assert found.count("error:") == found.count("[slot_lost]") == 1
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.PREFLIGHT, done.output
    spec["spec"]["source"]["slot"] = {"onLost": "Resync"}
    manifest.write_text(yaml.safe_dump(spec))
    found = checked(manifest, Exit.OK)
    assert (found.count("error:"), found.count("[slot_lost]")) == (0, 1)
    run(manifest)


def test_a_publication_that_was_away_for_a_while(start_postgres: StartPostgres, tmp_path: Path) -> None:
    """Before version 18 the slot cannot be read any more. A resync of all tables ends that, as the hint says.

    This holds for one that was renamed and renamed back, and for one that was dropped.
    """
    with start_postgres(**older_options()) as server:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        log_in_as(tmp_path, "postgres")
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
        run(path)
        db.execute(
            "ALTER PUBLICATION levada_postgres RENAME TO other",
            "INSERT INTO orders VALUES (1)",
            "ALTER PUBLICATION other RENAME TO levada_postgres",
        )
        done = on(path, "run", "--until", "caught-up")
        assert "[publication_missing]" in done.output
        assert on(path, "resync", "--all").exit_code == Exit.OK
        run(path)
        assert db.query("SELECT id FROM replica.orders") == [(1,)]
        checked(path, Exit.OK)
        db.execute("DROP PUBLICATION levada_postgres", "INSERT INTO orders VALUES (2)")
        done = on(path, "run", "--until", "caught-up")
        assert "[slot_lost]" in done.output
        # The failed start has dropped the publication that it created.
        assert on(path, "resync", "--all").exit_code == Exit.OK
        run(path)
        assert len(db.query("SELECT id FROM replica.orders")) == 2
        db.close()


def test_a_standby_that_the_address_leads_to_for_a_while(start_postgres: StartPostgres, tmp_path: Path) -> None:
    """A run waits for its end, and no table needs another copy, so a check reports the standby alone."""
    with start_postgres() as primary:
        db = Database(primary, "postgres")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        log_in_as(tmp_path, "postgres")
        path = tmp_path / "pipeline.yaml"
        spec = replicated(db, store={"postgres": {}})
        path.write_text(yaml.safe_dump(spec))
        run(path)
        with standby_of(primary) as standby:
            spec["spec"]["source"]["port"] = standby.port
            path.write_text(yaml.safe_dump(spec))
            found = checked(path)
    assert found.count("[source_standby]") == 1, found
    assert "[slot_" not in found


@pytest.mark.parametrize("there", ["CREATE TABLE replica.orders (id int)", "CREATE VIEW replica.orders AS SELECT 1"])
def test_a_place_that_is_not_levadas(db: Database, manifest: Path, there: str) -> None:
    """A table that Levada did not create is not replaced, and a check says so."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    db.execute("CREATE SCHEMA replica")
    with db.connect() as c:
        c.execute(there)  # type: ignore[arg-type]  # one of two
    found = checked(manifest)
    assert "replica.orders exists at the destination and was not created by Levada" in found, found


@pytest.mark.parametrize("schema_exists", [True, False])
def test_a_role_of_the_destination_without_create(
    db: Database, manifest: Path, role: str, *, schema_exists: bool
) -> None:
    """The schema of the state is not enough: the tables are created in another one. The hint is the GRANT."""
    document = replicated(db)
    document["spec"]["destination"]["postgres"]["credentialsSecretRef"] = {"name": "target"}
    manifest.write_text(yaml.safe_dump(document))
    target = manifest.parent / "secrets" / "target"
    target.mkdir()
    for key in ("username", "password"):
        (target / key).write_text(role)
    with db.connect() as admin:
        admin.execute(sql.SQL("CREATE SCHEMA levada AUTHORIZATION {}").format(sql.Identifier(role)))
        if schema_exists:
            admin.execute("CREATE SCHEMA replica")
        found = checked(manifest)
        assert "[destination_privilege_missing]" in found
        what = 'SCHEMA "replica"' if schema_exists else f'DATABASE "{db.name}"'
        grant = re.findall(rf"hint: in database {db.name}: (GRANT [A-Z, ]+ ON {what} TO \"{role}\")", found)[0]
        admin.execute(grant)
    assert "[destination_privilege_missing]" not in on(manifest, "check").output
