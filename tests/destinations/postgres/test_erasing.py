"""The places at a PostgreSQL server that an erasure leaves to others."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database

from levada.destinations.postgres.erasing import places
from levada.values import QualifiedTable


@pytest.mark.parametrize("name", ["plain", "My Table", 'a"b', "select", "x.y"])
def test_the_named_command_is_sql(db: Database, name: str) -> None:
    """It can be run as it is printed, whatever the table's name."""
    table = QualifiedTable("My Schema", name)
    db.execute('CREATE SCHEMA "My Schema"', f"CREATE TABLE {table.sql} (id int)")  # type: ignore[arg-type]  # quoted
    [command] = [left.until for left in places(table) if "VACUUM" in left.until]
    with db.connect() as connection:
        connection.execute(command)  # type: ignore[call-overload]  # that of the report
