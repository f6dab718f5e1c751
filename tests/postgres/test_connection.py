"""Connections: who logs in, with what settings, and what a refusal is called."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.rigs.database import Database

from levada import values
from levada.cli.manifests import forget_variables
from levada.copy.range_reader import snapshot_session
from levada.errors import LevadaError, LoginFailed, NeedsOperator, SlotLost, StatementRefused, Transient
from levada.postgres.connection import PostgresConnection, clamp_application_name
from levada.postgres.failures import source_error, source_errors
from levada.postgres.slots import export_snapshot


def test_an_empty_username_is_no_other_role(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq would take the role of the environment for it. A byte order mark is no part of a name."""
    monkeypatch.setenv("PGUSER", "postgres")
    connection = replace(db.connection, user=None, credentials=credentials(tmp_path, "", ""))
    with pytest.raises(LoginFailed, match=r"key username of Secret .* is empty") as refused:
        connection.connect()
    assert refused.value.code == "credentials_unreadable"
    credentials(tmp_path, "\ufeffpostgres\r\n", "")
    connection.connect().close()


def credentials(folder: Path, username: str, password: str) -> Path:
    """A folder as a mounted Secret looks."""
    folder.mkdir(exist_ok=True)
    (folder / "username").write_text(username)
    (folder / "password").write_text(password + "\n")
    return folder


@pytest.fixture
def secret_role(db: Database) -> str:
    """A role that has to show its password."""
    db.execute("DROP ROLE IF EXISTS secret_reader", "CREATE ROLE secret_reader LOGIN REPLICATION PASSWORD 'first'")
    return "secret_reader"


def both_ways(connection: PostgresConnection) -> list[LevadaError]:
    """Return the exceptions that an SQL and a replication login raise."""
    errors = []
    for connect in (connection.connect, connection.connect_replication):
        with pytest.raises(LevadaError) as raised:
            connect()
        errors.append(raised.value)
    return errors


@pytest.mark.since(16)
def test_a_password_in_python(db: Database, secret_role: str) -> None:
    """It logs in both ways, and is in no representation of the connection. A Secret's folder comes first."""
    connection = replace(db.connection, user=secret_role, password="first")
    connection.connect().close()
    connection.connect_replication().finish()
    assert "first" not in f"{connection!r} {connection}"
    assert pickle.loads(pickle.dumps(connection)) == connection
    assert [type(e) for e in both_ways(replace(connection, password="second"))] == [LoginFailed, LoginFailed]


@pytest.mark.parametrize("kind", [k for k in vars(values).values() if isinstance(k, type) and issubclass(k, int)])
def test_lists_of_numbers_with_a_name(db: Database, kind: type[int]) -> None:
    """Each class of numbers has a type in SQL that holds all of them, in any order, as text and in binary."""
    numbers = [kind(4_000_000_000), kind(40_000), kind(7)]
    with db.connection.connect() as connection:
        for placeholder in ("%t", "%b"):
            for listed in (numbers, numbers[::-1]):
                answer = connection.execute(f"SELECT {placeholder}::oid[]", [listed]).fetchone()  # type: ignore[arg-type]  # one of two
                assert answer == ([*map(int, listed)],)
                found = connection.execute(f"SELECT 40000::oid = ANY ({placeholder})", [listed]).fetchone()  # type: ignore[arg-type]  # as above
                assert found == (True,)


def test_several_hosts(db: Database) -> None:
    """The next one is tried if a host has no address, does not answer, or is not the server that is wanted."""
    cluster = replace(db.connection, host="nowhere.invalid", other_hosts=("127.0.0.2", "127.0.0.1"))
    for wanted in ("any", "primary", "read-write"):
        connection = replace(cluster, session_attrs=wanted)
        with connection.connect() as c:
            assert c.info.host == "127.0.0.1"
        connection.connect_replication().finish()
    for error in both_ways(replace(cluster, session_attrs="standby")):
        assert error.code == "source_unreachable"
        assert "server is not in hot standby mode" in error.message
    assert cluster.where.startswith("nowhere.invalid,127.0.0.2,127.0.0.1:")


def test_the_environment_changes_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of libpq lead to no other server, database or TLS, whatever a user has set for psql."""
    others = {
        "PGHOST": "192.0.2.1",
        "PGHOSTADDR": "192.0.2.1",
        "PGPORT": "1",
        "PGDATABASE": "other",
        "PGSSLMODE": "verify-full",
        "PGSSLCERT": "/none",
        "PGSSLKEY": "/none",
        "PGSSLROOTCERT": "/none",
        "PGOPTIONS": "-c search_path=evil -c intervalstyle=sql_standard",
        "PGTARGETSESSIONATTRS": "standby",
        "PGREQUIREAUTH": "scram-sha-256",
        "PGLOADBALANCEHOSTS": "random",
        "PGGSSENCMODE": "require",
        "PGCHANNELBINDING": "require",
        "PGCLIENTENCODING": "LATIN1",
        "PGAPPNAME": "psql",
        "PGCONNECT_TIMEOUT": "1",
    }
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    with db.connection.connect(application="x") as c:
        assert c.info.dbname == db.name
        settings = [c.execute(f"SHOW {s}").fetchone() for s in ("search_path", "intervalstyle", "application_name")]  # type: ignore[arg-type]  # one of three
        assert settings == [("pg_catalog",), ("postgres",), ("levada:x",)]
    db.connection.connect_replication().finish()


@pytest.mark.parametrize(("variable", "value"), [("PGTZ", "Asia/Tokyo"), ("PGDATESTYLE", "German")])
def test_a_variable_that_libpq_sends_last(
    db: Database, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """Values would be read in another form, so the login fails in a program. The command line forgets the variable."""
    monkeypatch.setenv(variable, value)
    for error in both_ways(db.connection):
        assert error.code == "session_settings_overridden"
        assert f"unset {variable}" in error.hint
    monkeypatch.setenv("PGSERVICE", "nowhere")
    forget_variables()
    db.connection.connect().close()
    db.connection.connect_replication().finish()


def test_session_settings_do_not_depend_on_the_role(db: Database) -> None:
    """Text is the same whatever the database's defaults are, and an application's time limits do not hold."""
    db.execute(
        f"ALTER DATABASE {db.name} SET timezone = 'Asia/Tokyo'",
        f"ALTER DATABASE {db.name} SET datestyle = 'German'",
        f"ALTER DATABASE {db.name} SET bytea_output = 'escape'",
        f"ALTER DATABASE {db.name} SET statement_timeout = 1",
    )
    with db.connection.connect(application="copy") as c:
        row = c.execute(
            "SELECT now()::text ~ '^\\d{4}-.*\\+00$', '\\x00'::bytea::text, current_setting('statement_timeout'),"
            " 0.1::float8 + 0.2::float8, current_setting('application_name'), '1 day 2 hours'::interval::text,"
            " current_setting('client_encoding')"
        ).fetchone()
    assert row == (True, "\\x00", "0", 0.30000000000000004, "levada:copy", "1 day 02:00:00", "UTF8")
    pg = db.connection.connect_replication()
    assert pg.exec_(b"SHOW timezone").get_value(0, 0) == b"UTC"
    pg.finish()


@pytest.mark.since(17)
def test_a_limit_of_transactions_ends_no_copy_and_no_stream(db: Database) -> None:
    """A database's transaction_timeout for applications does not count, nor for a snapshot that is exported."""
    db.execute(f"ALTER DATABASE {db.name} SET transaction_timeout = '300ms'")
    with export_snapshot(db.connection, "levada_shop_copy_000000a001") as snapshot:
        time.sleep(0.5)
        with snapshot_session(db.connection, snapshot, "copy") as connection:
            time.sleep(0.5)
            assert connection.execute("SELECT current_setting('transaction_timeout')").fetchone() == ("0",)


def test_names_mean_the_servers_own(db: Database, role: str) -> None:
    """A function that a role has put into the search path of the database is not called."""
    db.execute(
        f"GRANT CREATE ON SCHEMA public TO {role}",
        f"SET ROLE {role}; CREATE FUNCTION public.length(text) RETURNS int LANGUAGE sql AS 'SELECT 7'; RESET ROLE",
        f"ALTER DATABASE {db.name} SET search_path = public, pg_catalog",
    )
    assert db.query("SELECT length('a')") == [(7,)]
    with db.connection.connect() as c:
        assert c.execute("SELECT length('a'), current_setting('lock_timeout')").fetchone() == (1, "1s")


@pytest.mark.since(16)
def test_password_is_read_at_each_connect(db: Database, secret_role: str, tmp_path: Path) -> None:
    """A rotated password needs no new object, no line break in the file, and is in no pickle."""
    connection = replace(db.connection, user=None, credentials=credentials(tmp_path / "c", secret_role, "first"))
    connection.connect().close()
    db.execute(f"ALTER ROLE {secret_role} PASSWORD 'second'")
    assert [e.code for e in both_ways(connection)] == ["source_auth_failed"] * 2
    credentials(tmp_path / "c", secret_role, "second")
    connection.connect().close()
    connection.connect_replication().finish()
    assert b"second" not in pickle.dumps(connection)
    assert pickle.loads(pickle.dumps(connection)) == connection


@pytest.mark.since(16)
def test_refused_logins_need_a_person(db: Database, secret_role: str, tmp_path: Path) -> None:
    """The errors of a wrong or missing password, of an unknown role and of an unknown database differ.

    None has the password.
    """
    wrong = replace(db.connection, user=None, credentials=credentials(tmp_path / "c", secret_role, "hunter2"))
    cases = {
        "source_auth_failed": [
            wrong,
            replace(db.connection, user="nobody_here"),
            replace(db.connection, user=secret_role),
        ],
        "source_database_missing": [replace(db.connection, database="nowhere")],
        "source_tls_failed": [replace(db.connection, sslmode=m) for m in ("require", "verify-full")],
        "credentials_unreadable": [replace(db.connection, credentials=tmp_path / "absent")],
    }
    for code, connections in cases.items():
        for connection in connections:
            for error in both_ways(connection):
                assert (type(error), error.code) == (LoginFailed, code), error
                assert "hunter2" not in str(error)
                assert error.hint


def test_unreachable_host_is_transient(db: Database) -> None:
    """A refused connection and an unknown host name are retried."""
    for connection in (replace(db.connection, port=1), replace(db.connection, host="nowhere.invalid")):
        for error in both_ways(connection):
            assert (type(error), error.code) == (Transient, "source_unreachable")
            assert connection.where in error.message


def test_role_without_replication_is_told_what_it_lacks(db: Database, role: str) -> None:
    """A walsender is refused with the right that is missing, not as a failed login."""
    with pytest.raises(NeedsOperator) as raised:
        replace(db.connection, user=role).connect_replication()
    assert raised.value.code == "replication_privilege_missing"


def test_hidden_rows_are_an_error(db: Database, role: str) -> None:
    """If a policy hides rows from the role, reading fails, and does not return fewer rows."""
    db.execute(
        "CREATE TABLE t (id int)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        f"GRANT SELECT ON t TO {role}",
    )
    with replace(db.connection, user=role).connect() as c, pytest.raises(NeedsOperator) as raised, source_errors("x"):
        c.execute("SELECT * FROM public.t")
    assert raised.value.code == "row_security"
    # Of a statement, not of the login.
    assert raised.value.hint.startswith(f'ALTER ROLE "{role}" BYPASSRLS')


def test_statement_failures_have_stable_codes(db: Database) -> None:
    """Time-outs are transient, missing objects are not, and DETAIL with its row values is not repeated."""
    cases = {
        "statement_timeout": "SELECT pg_sleep(10)",
        "table_missing": "SELECT * FROM nowhere",
        "object_exists": "INSERT INTO public.t VALUES ('sensitive')",
        "value_refused": "SELECT 'sensitive'::int",
    }
    with db.connection.connect() as c:
        c.execute("CREATE TABLE public.t (secret text PRIMARY KEY)")
        c.execute("INSERT INTO public.t VALUES ('sensitive')")
        c.execute("SET statement_timeout = 50")
        for code, statement in cases.items():
            with pytest.raises(LevadaError) as raised, source_errors("testing"):
                c.execute(statement)
            assert raised.value.code == code
            assert isinstance(raised.value, Transient) == (code == "statement_timeout")
            assert "sensitive" not in str(raised.value)


def test_ended_backend_is_transient(db: Database) -> None:
    """A connection that the server ended, or that broke, raises Transient, so that it is made again."""
    with db.connection.connect() as c:
        db.query("SELECT pg_terminate_backend(%s)", c.info.backend_pid)
        with pytest.raises(Transient) as raised, source_errors("reading"):
            c.execute("SELECT 1")
        assert raised.value.code in ("source_stopping", "source_unreachable")
        with pytest.raises(Transient) as raised, source_errors("reading"):
            c.execute("SELECT 1")
        assert raised.value.code == "source_unreachable"


@pytest.mark.parametrize(
    ("state", "message", "kind", "code"),
    [
        ("57P03", "the database system is starting up", Transient, "source_starting"),
        (None, "connection failed: FATAL:  the database system is shutting down", Transient, "source_starting"),
        (None, "FATAL:  sorry, too many clients already", Transient, "too_many_connections"),
        (None, 'no pg_hba.conf entry for host "10.0.0.1", user "x"', LoginFailed, "source_access_denied"),
        (None, 'FATAL:  permission denied for database "shop"', LoginFailed, "source_access_denied"),
        (None, 'FATAL:  database "shop" is not currently accepting connections', LoginFailed, "source_access_denied"),
        (None, 'FATAL:  database "shop" does not exist', LoginFailed, "source_database_missing"),
        (None, 'FATAL:  too many connections for role "shop"', Transient, "too_many_connections"),
        (None, "FATAL:  permission denied to start WAL sender", LoginFailed, "replication_privilege_missing"),
        (
            None,
            'connection to server at "h" failed: FATAL:  no library',
            LoginFailed,
            "source_access_denied",
        ),
        ("53300", "number of requested standby connections exceeds max_wal_senders", Transient, "no_free_wal_sender"),
        ("53600", "a resource of a later version", Transient, "source_out_of_resources"),
        ("57P04", "terminating connection because the database was dropped", Transient, "source_stopping"),
        ("55000", "logical decoding cannot be used while in recovery", Transient, "source_standby"),
        ("55000", 'cannot use replication slot "s" for logical decoding', Transient, "source_standby"),
        ("25006", "cannot execute pg_logical_emit_message() during recovery", Transient, "source_standby"),
        (
            "55000",
            'logical decoding on standby requires "wal_level" >= "logical" on the primary',
            Transient,
            "wal_level_not_logical",
        ),
        ("42501", "permission denied for database shop", StatementRefused, "insufficient_privilege"),
        ("55006", 'replication slot "s" is active for PID 42', Transient, "slot_active"),
        ("53400", "all replication slots are in use", Transient, "no_free_slot"),
        ("55000", 'can no longer access replication slot "s"', SlotLost, "slot_lost"),
        ("55000", 'can no longer get changes from replication slot "s"', SlotLost, "slot_lost"),
        ("42704", 'replication slot "s" does not exist', SlotLost, "slot_missing"),
        ("42704", 'publication "p" does not exist', SlotLost, "publication_missing"),
        ("42501", "permission denied for table t", StatementRefused, "insufficient_privilege"),
        ("25006", "cannot execute INSERT in a read-only transaction", Transient, "source_read_only"),
        ("25P03", "terminating connection due to idle-in-transaction timeout", Transient, "session_timeout"),
        ("40001", "could not serialize access due to concurrent update", Transient, "serialization_conflict"),
        ("42703", 'column "c" does not exist', StatementRefused, "column_missing"),
        ("42704", 'type "t" does not exist', StatementRefused, "object_missing"),
        ("53100", "could not extend file: No space left on device", Transient, "source_out_of_resources"),
        ("XX000", "cache lookup failed for relation 16384", Transient, "catalog_changed"),
        ("XX000", "could not find record while sending logically-decoded data", Transient, "source_internal_error"),
        ("XX000", 'could not map filenode "base/5/16384" to relation OID', Transient, "database_moved"),
        ("XX000", 'could not map filenumber "base/5/16384" to relation OID', Transient, "database_moved"),
        ("XX001", "invalid page in block 0", StatementRefused, "source_error"),
        ("58P01", 'could not open file "base/5/16384"', StatementRefused, "source_error"),
        ("58030", 'could not read file "base/5/16384"', Transient, "source_internal_error"),
        ("08P01", "query_wait_timeout", Transient, "source_unreachable"),
    ],
)
def test_table_of_failures(state: str | None, message: str, kind: type[LevadaError], code: str) -> None:
    """PostgreSQL's errors are grouped by who can resolve them, with a stable code."""
    error = source_error("testing", state, message)
    assert (type(error), error.code) == (kind, code)
    assert message in error.message


def test_application_name_keeps_its_end(db: Database) -> None:
    """A name that is too long loses its middle, never a part of a character, and the server takes it whole."""
    assert clamp_application_name("levada", "") == "levada"
    name = clamp_application_name("é" * 60, "levada_shop")
    assert name.endswith("é:levada_shop")
    assert len(name.encode()) <= 63
    with replace(db.connection, application_name="é" * 60).connect(application="lag") as c:
        assert c.execute("SHOW application_name").fetchone() is not None


def test_tls_settings_reach_libpq(tmp_path: Path) -> None:
    """Modes and roots are libpq's own words."""
    connection = PostgresConnection("h", 5432, "d", sslmode="verify-ca", sslrootcert=tmp_path / "ca.crt")
    settings = conninfo_to_dict(connection.conninfo(replication=True))
    assert settings["sslmode"] == "verify-ca"
    assert settings["sslrootcert"] == str(tmp_path / "ca.crt")
    assert settings["replication"] == "database"
    assert settings["keepalives_idle"] == "30"
