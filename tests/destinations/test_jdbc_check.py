"""The check of a JDBC catalog finds what a start would meet, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rigs.database import Database
from tests.rigs.lake import Lake

from levada.errors import NeedsOperator

TABLES = "SELECT relname FROM pg_class WHERE relname ~ '^iceberg' AND relkind = 'r' ORDER BY 1"


def check(lake: Lake) -> None:
    """Open and check the destination as `levada check` does."""
    destination = lake.destination(only_checks=True)
    try:
        destination.startup()
        destination.check()
    finally:
        destination.shutdown()


def test_a_check_creates_no_tables(jdbc: Lake, db: Database) -> None:
    """The catalog's tables are created by a start. A check before it and after it leaves the database as it is."""
    check(jdbc)
    assert db.query(TABLES) == []
    started = jdbc.destination()
    started.startup()
    started.shutdown()
    assert db.query(TABLES) == [("iceberg_namespace_properties",), ("iceberg_tables",)]
    db.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    check(jdbc)
    assert db.query("SELECT FROM pg_attribute WHERE attname = 'iceberg_type'") == []


def test_a_role_that_may_not_create_them_is_reported(jdbc: Lake, db: Database, role: str) -> None:
    """The hint is the statement with which a start succeeds."""
    db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    catalog = {**jdbc.manifest["catalog"], "properties": {"jdbc.user": role}}
    lake = replace(jdbc, manifest={**jdbc.manifest, "catalog": catalog})
    with pytest.raises(NeedsOperator) as raised:
        check(lake)
    assert raised.value.code == "destination_denied"
    with db.connect() as admin:
        admin.execute(raised.value.hint)
    check(lake)
    started = lake.destination()
    started.startup()
    started.shutdown()
    assert len(db.query(TABLES)) == 2


def test_a_refused_login_is_no_catalog_that_is_away(jdbc: Lake) -> None:
    """The message is the server's, also through Iceberg's own exception at a start."""
    catalog = {**jdbc.manifest["catalog"], "properties": {"jdbc.user": "nobody"}}
    lake = replace(jdbc, manifest={**jdbc.manifest, "catalog": catalog})
    for start in (check, lambda lake: lake.destination().startup()):
        with pytest.raises(NeedsOperator) as raised:
            start(lake)
        assert raised.value.code == "destination_denied"
        assert 'role "nobody" does not exist' in raised.value.message
        assert "credentialsSecretRef" in raised.value.hint
