"""A destination that needs no Spark."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from tests.cluster.kubectl import eventually
from tests.cluster.node.place import TABLES, Place

REPLICA: Final = "replica"


COLUMNS: Final = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"


def replica() -> dict[str, Any]:
    """Return the changes by which the shop is replicated into another database, with the pods' defaults."""
    target = {
        "host": "shop-db",
        "database": REPLICA,
        "credentialsSecretRef": {"name": "shop-cdc"},
        "tls": {"mode": "Disable"},
    }
    return {"destination": {"iceberg": None, "postgres": target}, "staging": None, "driver": None}


def rows(uri: str, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return a table's rows as PostgreSQL prints them."""
    listed = ", ".join(f'"{column}"::text' for column in columns)
    with psycopg.connect(uri) as connection:
        return sorted(connection.execute(f"SELECT {listed} FROM {table}".encode()).fetchall(), key=repr)


def differences(place: Place) -> list[str]:
    """Return the tables that differ from the replica's."""
    found = []
    with place.connect() as connection:
        columns = {t: sorted(c for (c,) in connection.execute(COLUMNS, [t]).fetchall()) for t in TABLES}
    for table in TABLES:
        source, target = place.server.uri("shop"), place.server.uri(REPLICA)
        try:
            equal = rows(source, table, columns[table]) == rows(target, table, columns[table])
        except psycopg.errors.UndefinedTable:
            equal = False
        found += [] if equal else [table]
    return found


def equal(place: Place) -> None:
    """Wait until nothing differs. Traffic must have stopped."""
    try:
        eventually(lambda: not differences(place))
    except AssertionError:
        place.print_state()
        raise
