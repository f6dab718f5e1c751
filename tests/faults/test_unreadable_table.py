"""A lake table that cannot be read for a while. Iceberg tries for minutes before it gives up."""

from __future__ import annotations

import pytest
from tests.conftest import Database
from tests.destinations.conftest import Lake, jdbc
from tests.destinations.orders import ORDERS, copy

from levada.errors import NeedsOperator

__all__ = ["jdbc"]


def test_a_table_that_cannot_be_read_now_is_not_missing(jdbc: Lake, db: Database) -> None:
    """The search for the pipeline's tables could not read one: that error, until it can be read again."""
    copy(jdbc, jdbc.destination())
    swap = "UPDATE iceberg_tables SET metadata_location = replace(metadata_location, %s, %s)"
    with db.connect() as connection:
        connection.execute(swap, ["file:", "nowhere:"])
    destination = jdbc.destination()
    with pytest.raises(NeedsOperator) as caught:
        destination.applied(ORDERS.id)
    assert caught.value.code == "destination_rejected"
    with db.connect() as connection:
        connection.execute(swap, ["nowhere:", "file:"])
    assert destination.applied(ORDERS.id) == jdbc.mark(1000)
