"""Each obstacle to a pipeline's run is one clear error of ``levada check``, with its remedy."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import yaml
from tests.rigs.command_line import PASSWORD, levada, log_in_as, manifest_of
from tests.rigs.database import Database, StartPostgres
from tests.runtime.foreign_package import install_package
from tests.servers.older import DEBIAN_15, postgres_15, refusing_setting
from tests.servers.standby import standby_of
from typer.testing import Result

from levada.cli.exit_codes import Exit
from levada.postgres.problems import Severity
from levada.postgres.publications import ensure_coverage
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.readiness import source_problems
from levada.spec import load_manifests
from levada.stores import PostgresStore
from levada.stores.phases import Ready
from levada.values import QualifiedTable, TableId


@pytest.fixture(scope="module")
def replica_level(start_postgres: StartPostgres) -> Iterator[Database]:
    """A database on a server whose WAL has nothing for logical decoding."""
    with start_postgres(settings={"wal_level": "replica"}) as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield database


def check(folder: Path, db: Database, **source: object) -> Result:
    """Run the command on a manifest of the database. Assert that no output has the password."""
    manifest = manifest_of(db)
    manifest["spec"]["source"] |= source
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(manifest))
    result = levada("check", path, "--secrets", folder / "secrets")
    assert PASSWORD not in result.output
    return result


def assert_told(result: Result, exit_code: Exit, code: str, *words: str) -> None:
    """The exit code, the error's code, and what to do."""
    assert result.exit_code == exit_code, result.output
    assert f"[{code}]" in result.output, result.output
    for word in words:
        assert word in " ".join(result.output.split()), result.output


def test_a_bad_manifest_is_told_by_field(folder: Path, db: Database) -> None:
    """The errors of a wrong key and of a wrong value have the path of each."""
    result = check(folder, db, prt=5432, heartbeatSeconds="often")
    assert_told(
        result, Exit.USAGE, "invalid_manifest", "spec.source.prt", "did you mean port", "spec.source.heartbeatSeconds"
    )


def test_a_locale_in_another_encoding(folder: Path, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files would have other names for Python than for Arrow and Java. The variable is named."""
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    assert_told(check(folder, db), Exit.PREFLIGHT, "locale_not_utf8", "export LC_ALL=C.UTF-8")


def test_cuts_of_a_destination_that_keeps_no_states(folder: Path, db: Database) -> None:
    """The check says it before a run fails with it."""
    manifest = manifest_of(db)
    place = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    place |= {"schema": "replica", "credentialsSecretRef": {"name": "shop-cdc"}}
    manifest["spec"] |= {"destination": {"postgres": place}, "cuts": {"everySeconds": 60}}
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(manifest))
    result = levada("check", path, "--secrets", folder / "secrets")
    assert_told(result, Exit.PREFLIGHT, "cuts_unsupported", "remove spec.cuts")


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_destination_that_is_the_source(folder: Path, db: Database, command: str) -> None:
    """Tables that would be replicated into themselves are refused before a run. Another schema is no problem."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    manifest = manifest_of(db)
    place = {"host": "localhost", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    for schema in ("{schema}", "replica"):
        settings = place | {"schema": schema, "credentialsSecretRef": {"name": "shop-cdc"}}
        manifest["spec"] |= {"destination": {"postgres": settings}}
        path = folder / "pipeline.yaml"
        path.write_text(yaml.safe_dump(manifest))
        result = levada(command, path, "--secrets", folder / "secrets")
        if schema == "replica":
            assert result.exit_code == Exit.OK, result.output
        else:
            words = ("public.items would be replicated into itself, and so would 1 more table",)
            assert_told(result, Exit.PREFLIGHT, "destination_is_source", *words)
        assert db.query("SELECT FROM pg_namespace WHERE nspname LIKE 'levada%%'") == [], "a check creates nothing"


@pytest.mark.sampled
@pytest.mark.parametrize("command", ["check", "plan", "run"])
def test_a_destination_whose_tables_are_selected(folder: Path, db: Database, command: str) -> None:
    """Tables that a run would create and select are refused before it. With their schema excluded, nothing is wrong."""
    more = ("--until", "caught-up") if command == "run" else ()
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    manifest = manifest_of(db)
    place = {"host": "localhost", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    place |= {"schema": "replica", "credentialsSecretRef": {"name": "shop-cdc"}}
    path = folder / "pipeline.yaml"
    tables = {"include": [{"schema": "*", "name": "*"}]}
    for exclude in ([], [{"schema": "replica", "name": "*"}]):
        manifest["spec"] |= {"destination": {"postgres": place}, "tables": tables | {"exclude": exclude}}
        path.write_text(yaml.safe_dump(manifest))
        result = levada(command, path, "--secrets", folder / "secrets", *more)
        if exclude:
            assert result.exit_code == Exit.OK, result.output
        else:
            assert not db.query("SELECT FROM pg_publication"), "a refused run leaves nothing at the source"
            words = ("selects replica.items, and 1 more table", "exclude the schema of the destination's tables")
            assert_told(result, Exit.PREFLIGHT, "destination_is_source", *words)


def test_a_publication_of_what_levada_writes(folder: Path, db: Database) -> None:
    """A store or a catalog in the source database must not be streamed. With it excluded, nothing is wrong."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE SCHEMA lake; CREATE TABLE lake.levada_tables (id int PRIMARY KEY)",
        "CREATE TABLE lake.ducklake_snapshot (id int PRIMARY KEY)",
        "CREATE PUBLICATION everything FOR ALL TABLES",
    )
    manifest = manifest_of(db)
    manifest["spec"]["source"] |= {"publication": {"name": "everything", "management": "External"}}
    path = folder / "pipeline.yaml"
    for exclude in ([], [{"schema": "lake", "name": "*"}]):
        manifest["spec"]["tables"] = {"include": [{"schema": "*", "name": "*"}], "exclude": exclude}
        path.write_text(yaml.safe_dump(manifest))
        result = levada("check", path, "--secrets", folder / "secrets")
        if exclude:
            assert result.exit_code == Exit.OK, result.output
        else:
            words = ("lake.ducklake_snapshot and 1 more table", "{schema: lake, name: ducklake_snapshot}")
            assert_told(result, Exit.PREFLIGHT, "written_tables_published", *words)


@pytest.mark.since(16)
def test_a_wrong_password(folder: Path, db: Database) -> None:
    """The login is refused, and the hint leads to the credentials."""
    with psycopg.connect(db.uri, autocommit=True) as c:
        c.execute("CREATE ROLE secret_wrong LOGIN PASSWORD 'right' REPLICATION")
    try:
        log_in_as(folder, "secret_wrong")
        assert_told(check(folder, db), Exit.PREFLIGHT, "source_auth_failed", "username and password")
    finally:
        db.execute("DROP ROLE secret_wrong")


def test_a_role_without_replication(folder: Path, db: Database) -> None:
    """The hint is the statement that grants it."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE ROLE plain_reader LOGIN", "GRANT SELECT ON t TO plain_reader"
    )
    try:
        log_in_as(folder, "plain_reader")
        assert_told(check(folder, db), Exit.PREFLIGHT, "replication_privilege_missing", "ALTER ROLE", "REPLICATION")
    finally:
        db.execute("DROP OWNED BY plain_reader", "DROP ROLE plain_reader")


def test_a_server_without_logical_wal(folder: Path, replica_level: Database) -> None:
    """The hint names the setting and the restart."""
    result = check(folder, replica_level)
    assert_told(result, Exit.PREFLIGHT, "wal_level_not_logical", "wal_level", "restart")


def test_a_server_older_than_14(folder: Path, db: Database) -> None:
    """PostgreSQL 13 refuses a setting of the session at login. That is no network problem, and no reason to retry."""
    with refusing_setting("idle_session_timeout") as port:
        result = check(folder, db, port=port)
    words = (f"127.0.0.1:{port}", "upgrade the source to PostgreSQL 14 or newer")
    assert_told(result, Exit.PREFLIGHT, "version_unsupported", *words)


@pytest.mark.nightly
@pytest.mark.usefixtures("start_postgres")
@pytest.mark.skipif(not DEBIAN_15.exists(), reason="needs Debian's package postgresql-15")
def test_a_standby_older_than_16(folder: Path) -> None:
    """It has no logical decoding. That is the only error, because the rest is that of another server."""
    with postgres_15() as primary, standby_of(primary) as standby:
        result = check(folder, Database(standby, "postgres"))
    words = ("a standby of PostgreSQL 15", "since version 16", "hint: set spec.source.host to the primary")
    assert_told(result, Exit.PREFLIGHT, "standby_unsupported", *words)
    assert result.output.count("error:") == 1


def test_a_publication_without_updates(folder: Path, db: Database) -> None:
    """A publication that omits operations loses changes silently. The error has the statement that adds them."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION half FOR TABLE t WITH (publish = 'insert, delete')"
    )
    result = check(folder, db, publication={"name": "half", "management": "External"})
    assert_told(result, Exit.PREFLIGHT, "publication_operations", "update", "ALTER PUBLICATION")


def test_an_unreachable_host(folder: Path, db: Database) -> None:
    """The error has the host and port that no server listens on."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    result = check(folder, db, port=port)
    assert_told(result, Exit.PREFLIGHT, "source_unreachable", f"127.0.0.1:{port}")


def test_a_store_in_a_database_that_does_not_exist(folder: Path, db: Database) -> None:
    """The message says that it is the store's server, and not the source. The hint has the field of the manifest."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    place = {"host": "127.0.0.1", "port": db.server.port, "database": "nowhere", "tls": {"mode": "Disable"}}
    result = check_store(folder, db, place)
    words = ("the store's server: connecting to", 'database "nowhere" does not exist')
    assert_told(result, Exit.PREFLIGHT, "store_unusable", *words, "check spec.store.postgres.connection.database")


def test_a_store_on_a_server_older_than_14(folder: Path, db: Database) -> None:
    """Its version is the problem, and not the network."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with refusing_setting("idle_session_timeout") as port:
        place = {"host": "127.0.0.1", "port": port, "database": "states", "tls": {"mode": "Disable"}}
        result = check_store(folder, db, place)
    assert_told(result, Exit.PREFLIGHT, "store_unusable", "upgrade the store's server to PostgreSQL 14 or newer")


def check_store(folder: Path, db: Database, place: dict[str, object]) -> Result:
    """Check a pipeline whose store is in another database."""
    store = {"postgres": {"connection": place | {"credentialsSecretRef": {"name": "shop-cdc"}}}}
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(manifest_of(db, store=store)))
    return levada("check", path, "--secrets", folder / "secrets")


def test_a_store_that_may_not_be_created(folder: Path, db: Database) -> None:
    """A role without the right to create the store's schema learns of it before a start, with the GRANT."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE ROLE replicates LOGIN REPLICATION",
        "GRANT SELECT ON t TO replicates",
        "CREATE PUBLICATION shop FOR TABLE t",
    )
    try:
        log_in_as(folder, "replicates")
        result = check(folder, db, publication={"name": "shop", "management": "External"})
        assert_told(result, Exit.PREFLIGHT, "store_privilege_missing", "GRANT CREATE ON DATABASE", "TO")
    finally:
        db.execute("DROP OWNED BY replicates", "DROP ROLE replicates")


def test_errors_of_one_table_are_warnings_once_tables_are_known(folder: Path, db: Database, role: str) -> None:
    """Before the first start they are errors. Later, a start streams the other tables, so the check lets it begin."""
    db.execute(
        f"ALTER ROLE {role} REPLICATION",
        f"GRANT CREATE ON DATABASE {db.name} TO {role}",
        "CREATE TABLE theirs (id int PRIMARY KEY)",
        "CREATE TABLE closed (id int PRIMARY KEY)",
        f"ALTER TABLE closed OWNER TO {role}",
        f"REVOKE SELECT ON closed FROM {role}",
    )
    log_in_as(folder, role)
    with replace(db.connection, user=role).connect() as connection:
        ensure_coverage(connection, f"levada_{db.name}", {QualifiedTable("public", "closed")}, manage=True)
    codes = ("publication_incomplete", "select_privilege_missing")
    for code in codes:
        assert_told(check(folder, db), Exit.PREFLIGHT, code, "error: ")
    [(closed,)] = db.query("SELECT 'closed'::regclass::oid")
    store = PostgresStore(replace(db.connection, user=role), db.name.replace("_", "-"))
    store.update_table_replication_states({TableId(closed): Ready()})
    store.close()
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"levada_{db.name}")
    for code in codes:
        assert_told(check(folder, db), Exit.OK, code, "warning: ")
    manifests = load_manifests((folder / "pipeline.yaml").read_text())
    config = pipeline_config(manifests, secrets=folder / "secrets")
    found = {p.code: p.severity for p in source_problems(manifests, config, folder / "secrets")}
    assert [found[code] for code in codes] == [Severity.WARNING, Severity.WARNING]


@pytest.mark.parametrize(
    ("attribute", "code", "message"),
    [
        (
            "Raising",
            "store_failed",
            "from_settings of entry point theirs = their_store:Raising of package their-package raised KeyError: 'url'",
        ),
        (
            "Absent",
            "store_broken",
            "entry point theirs = their_store:Absent of package their-package cannot be imported: AttributeError",
        ),
        (
            "Other",
            "store_broken",
            "entry point theirs = their_store:Other of package their-package is not a subclass of"
            " levada.stores.PipelineStore",
        ),
    ],
)
def test_a_store_of_another_package(
    folder: Path, db: Database, monkeypatch: pytest.MonkeyPatch, attribute: str, code: str, message: str
) -> None:
    """Whatever it does wrong, the error names the package and its entry point, and there is no traceback."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    install_package(monkeypatch, folder, "their_store", attribute, STORES, group="levada.stores")
    manifest = manifest_of(db, store={"custom": {"type": "theirs", "options": {}}})
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(manifest))
    result = levada("check", path, "--secrets", folder / "secrets")
    assert_told(result, Exit.PREFLIGHT, code, message, "author")


STORES = """
from levada.stores import PipelineStore

class Raising(PipelineStore):
    @classmethod
    def from_settings(cls, settings, context):
        raise KeyError("url")

class Other:
    pass
"""
