"""Connections to PostgreSQL as a destination: logins, poolers, lost answers and servers that are away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, LiteralString

import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.postgres.replica import ORDERS, Replica, apply, copy

from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.connections import server_of
from levada.destinations.postgres.settings import Settings
from levada.errors import AccessDenied, LoginFailed, Transient
from levada.schema import ColumnType, Kind, TableTarget
from levada.testing import column, table
from levada.values import TableMode


@pytest.mark.since(16)  # pg_hba.conf has patterns of roles
def test_a_wrong_password_is_retried_and_a_missing_server_is_transient(replica: Replica, tmp_path: Path) -> None:
    """The class of the error is the retry policy, and the message never has the password."""
    replica.db.execute("CREATE ROLE secret_writer LOGIN PASSWORD 'right'")
    try:
        (tmp_path / "username").write_text("secret_writer")
        (tmp_path / "password").write_text("wrong")
        destination = replica.destination(credentials=tmp_path)
        with pytest.raises(LoginFailed) as caught:
            destination.startup()
        assert caught.value.code == "destination_auth_failed"
        (tmp_path / "password").write_text("right")
        with pytest.raises(AccessDenied) as refused:
            destination.startup()
        assert refused.value.code == "destination_privilege_missing"
        assert refused.value.message.startswith("opening the destination at 127.0.0.1:")
        grant(replica, refused.value.hint)
        destination.startup()
        copy(replica, destination)
    finally:
        replica.db.execute("DROP OWNED BY secret_writer CASCADE", "DROP ROLE secret_writer")
    with pytest.raises(Transient) as away:
        replica.destination({"port": 1}).startup()
    assert away.value.code == "destination_unreachable"


def grant(replica: Replica, hint: str) -> None:
    """Execute the statements of a hint as a superuser."""
    statements = hint.removeprefix(f"in database {replica.db.name}: ")
    with replica.db.connect() as connection:
        connection.execute(statements.encode())


@pytest.mark.parametrize(
    "lost",
    [
        "REVOKE ALL ON SCHEMA levada FROM secret_writer",
        "REVOKE ALL ON levada.destination_tables FROM secret_writer",
        "REVOKE ALL ON SCHEMA levada FROM secret_writer; REVOKE ALL ON ALL TABLES IN SCHEMA levada FROM secret_writer",
        "REVOKE ALL ON SCHEMA shop_public FROM secret_writer",
    ],
)
def test_lost_privileges_have_the_grants_that_restore_them(
    replica: Replica, tmp_path: Path, lost: LiteralString
) -> None:
    """The hint of lost privileges names the database, the schema and the role, and helps when it is executed."""
    replica.db.execute(
        "CREATE ROLE secret_writer LOGIN PASSWORD 'any'", f"GRANT CREATE ON DATABASE {replica.db.name} TO secret_writer"
    )
    try:
        (tmp_path / "username").write_text("secret_writer")
        (tmp_path / "password").write_text("any")
        copy(replica, replica.destination(credentials=tmp_path))
        replica.db.execute(lost)
        destination = replica.destination(credentials=tmp_path)
        with pytest.raises(AccessDenied) as refused:
            copy(replica, destination, epoch=2)
        assert refused.value.code == "destination_privilege_missing"
        assert "…" not in refused.value.hint
        assert "secret_writer" in refused.value.hint
        grant(replica, refused.value.hint)
        again = replica.destination(credentials=tmp_path)
        again.startup()
        copy(replica, again, epoch=3)
    finally:
        replica.db.execute("DROP OWNED BY secret_writer CASCADE", "DROP ROLE secret_writer")


def test_a_connection_that_ends_is_opened_again(replica: Replica) -> None:
    """After the server ended the connections, a batch fails as Transient at most once, and then applies."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'levada:%%'")
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    try:
        destination.write_events(batch, replica.mark(batch.until))
    except Transient:
        destination.write_events(batch, replica.mark(batch.until))
    assert list(replica.items()) == [1, 2, 3, 4]


def test_check_writes_nothing(replica: Replica) -> None:
    """The calls of `levada check` leave an empty database as it is."""
    destination = replica.destination(only_checks=True)
    destination.startup()
    destination.check()
    assert replica.db.query("SELECT count(*) FROM pg_namespace WHERE nspname IN ('levada', 'shop_public')") == [(0,)]
    destination.shutdown()


def test_settings_of_roles_and_poolers_do_not_change_values(replica: Replica) -> None:
    """A pooler that ignores the connection's options, and defaults of the database, leave every value as it is."""
    for setting in ("timezone = 'Asia/Tokyo'", "array_nulls = off", "intervalstyle = sql_standard"):
        replica.db.execute(f"ALTER DATABASE {replica.db.name} SET {setting}")
    texts = ColumnType(Kind.ARRAY, element=ColumnType(Kind.TEXT))
    tags = replace(column(4, "tags", Kind.TEXT), type=texts, type_name="text[]", type_oid=1009)
    spans = replace(column(3, "span", Kind.TEXT), type_name="interval", type_oid=1186)
    schema = table(column(1, "id", Kind.INT8), column(2, "at", Kind.TIMESTAMPTZ), spans, tags)
    row = {"id": 1, "at": datetime(2020, 1, 1, tzinfo=UTC), "span": "-1 days +02:03:00", "tags": [None, "a"]}
    settings = Settings.model_validate(replica.settings())
    pooler = replace(server_of(settings, None), session_options="")
    destination = PostgresDestination(pooler, settings, replica.context)
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, [row]), replica.mark(1000))
    stream = Stream(schema)
    stream.insert(**{**row, "id": 2})
    apply(replica, destination, stream)
    query = f"SELECT at, extract(epoch FROM span), tags FROM shop_public.{schema.name.name}"
    assert replica.db.query(query) == [(row["at"], Decimal(-79_020), row["tags"])] * 2


def test_a_lost_answer_to_a_commit_changes_nothing_twice(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of a shadow copy whose commit was not answered come again, and are not written again."""
    destination = replica.destination()
    target = TableTarget.of(ORDERS, TableMode.CHANGELOG)
    stream = copy(replica, destination, mode=TableMode.CHANGELOG)
    assert destination.copy_replacement(target, MemoryRows(ORDERS), replica.mark(1000))
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    answered = destination._connections.transaction

    @contextmanager
    def lost(doing: str) -> Iterator[Any]:
        with answered(doing) as connection:
            yield connection
        raise Transient("destination_unreachable", "the answer was lost")

    calls: list[Callable[[], bool]] = [
        lambda: destination.write_replacement_events(batch, replica.mark(batch.until)),
        lambda: destination.swap_replacement(ORDERS.id, replica.mark(batch.until)),
    ]
    for call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(destination._connections, "transaction", lost)
            with pytest.raises(Transient):
                call()
        again = call()
    assert again is False, "the resync starts again, because there is no shadow copy any more"
    assert [r["id"] for r in replica.rows()] == [4]
