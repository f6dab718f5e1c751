"""The session that holds the lock for which a transaction at the destination waited in vain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from levada import codes
from levada.errors import Yielded
from levada.postgres.lock_holders import lock_holder, name_holder
from levada.values import QualifiedTable


class TableInUse(Yielded):
    """Other sessions use a table that a transaction needs for itself."""

    def __init__(self, place: QualifiedTable) -> None:
        super().__init__(
            codes.DESTINATION_BUSY,
            f"another session uses {place}, and no other may while it is altered or emptied",
            hint="end its transaction, if this does not pass: SELECT pid, xact_start, query FROM pg_stat_activity"
            " ORDER BY xact_start",
        )
        self.place = place


@contextmanager
def holder_named(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Name the session that holds the lock in an error of a lock. The transaction of the block ends with the error."""
    try:
        yield
    except Yielded as error:
        if error.code == codes.DESTINATION_BUSY:
            with suppress(psycopg.Error):
                connection.rollback()
                _name_holder(error, connection)
        raise


def _name_holder(error: Yielded, connection: psycopg.Connection[Any]) -> None:
    place = error.place if isinstance(error, TableInUse) else None
    known = {} if place is None else {"schema": place.schema, "name": place.name}
    holder = lock_holder(connection, **known)
    name_holder(error, holder, "destination")
