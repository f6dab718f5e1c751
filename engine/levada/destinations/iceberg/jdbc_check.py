"""A read-only check of a JDBC catalog. Opening such a catalog normally would create its tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from levada.destinations.iceberg.java import java_errors
from levada.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from levada.destinations.iceberg.java import JavaObject, Jvm

UNCHANGED: Final = {"jdbc.init-catalog-tables": "false", "jdbc.schema-version": "V0"}
"""Properties with which a catalog neither creates its tables nor adds columns to those of an earlier version."""

_PREFIX: Final = "jdbc."
_MAY_CREATE: Final = (
    "SELECT current_user, current_schema(), coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
)


def has_tables(jvm: Jvm, properties: Mapping[str, str]) -> bool:
    """Return True if the catalog's tables exist, and False if the first start creates them.

    Raise AccessDenied ``destination_denied`` if they are missing and the role may not create them. Only PostgreSQL is
    checked for that.
    """
    uri = properties["uri"]
    with java_errors("open the catalog"), _connected(jvm, properties) as connection:
        if connection.getMetaData().getColumns(None, None, "iceberg_tables", None).next():
            return True
        if not uri.startswith("jdbc:postgresql:"):
            return False
        answer = connection.createStatement().executeQuery(_MAY_CREATE)
        answer.next()
        role, schema, may_create = answer.getString(1), answer.getString(2), answer.getBoolean(3)
    schema = schema or "public"
    if not may_create:
        raise AccessDenied(
            "destination_denied",
            f"role {role} may not create the catalog's tables in schema {schema} of {uri.partition('?')[0]}",
            hint=f'GRANT USAGE, CREATE ON SCHEMA "{schema}" TO "{role}"',
        )
    return False


@contextmanager
def _connected(jvm: Jvm, properties: Mapping[str, str]) -> Iterator[JavaObject]:
    settings = {k.removeprefix(_PREFIX): v for k, v in properties.items() if k.startswith(_PREFIX)}
    connection = jvm.connect_jdbc(properties["uri"], settings)
    try:
        yield connection
    finally:
        connection.close()
