"""Lake tables that cannot be read for a while. Iceberg tries for more than a minute before it gives up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.destinations.orders import ORDERS, copy
from tests.rigs.database import Database
from tests.rigs.lake import Lake, jdbc

from levada.errors import NeedsOperator
from levada.values import QualifiedTable, TableId

__all__ = ["jdbc"]


def test_tables_that_cannot_be_read_now_are_not_missing(
    jdbc: Lake, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A search that could not read some tables reads each once, and its error is that of all until it is repeated."""
    tables = [replace(ORDERS, id=TableId(90 + n), name=QualifiedTable("public", f"t{n}")) for n in range(4)]
    for table in tables:
        copy(jdbc, jdbc.destination(), table)
    swap = "UPDATE iceberg_tables SET metadata_location = replace(metadata_location, %s, %s) WHERE table_name <> 't3'"
    with db.connect() as connection:
        connection.execute(swap, ["file:", "nowhere:"])
    destination = jdbc.destination()
    for table in tables[:3]:
        with pytest.raises(NeedsOperator) as caught:
            destination.applied(table.id)
        assert caught.value.code == "destination_rejected"
    assert destination.applied(tables[3].id) == jdbc.mark(1000)
    assert sum("cannot be loaded" in message for message in caplog.messages) == 3
    with db.connect() as connection:
        connection.execute(swap, ["nowhere:", "file:"])
    destination._known.read_again_s = 0.0
    for table in tables:
        assert destination.applied(table.id) == jdbc.mark(1000)
