"""A JDBC catalog in PostgreSQL with a local warehouse, as a check reads it without a JVM: see `quick_catalog`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName
from levada.destinations.iceberg.quick_catalog import UnconfirmedError, local_folder, read_properties, try_folder

if TYPE_CHECKING:
    import psycopg

_URI: Final = re.compile(r"jdbc:postgresql://([A-Za-z0-9.-]+)(?::(\d+))?/([A-Za-z0-9_]+)")
"""The addresses that both drivers read alike: one host, and no parameters."""
_KNOWN: Final = frozenset(
    {
        *("type", "uri", "warehouse", "jdbc.user", "jdbc.password"),
        *("jdbc.connectTimeout", "jdbc.socketTimeout", "jdbc.schema-version"),
    }
)
_TABLES: Final = """
SELECT relname, pg_table_is_visible(oid) FROM pg_class
WHERE relname IN ('iceberg_tables', 'iceberg_namespace_properties') AND relkind IN ('r', 'p', 'v')
"""
_MAY_CREATE: Final = "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
_NAMESPACES: Final = """
SELECT table_namespace FROM iceberg_tables WHERE catalog_name = %(catalog)s
UNION SELECT namespace FROM iceberg_namespace_properties WHERE catalog_name = %(catalog)s
"""
_LOCATION: Final = """
SELECT metadata_location FROM iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s
"""


@dataclass(slots=True)
class PostgresCatalog:
    """Reads the catalog's rows by SQL, and the metadata files of the tables from the folder."""

    name: str
    folder: Path
    _conninfo: Mapping[str, Any] = field(repr=False)
    _connection: psycopg.Connection[Any] | None = None

    @classmethod
    def of(cls, config: CatalogConfig) -> Self | None:
        """Return the catalog, or None if it has settings that only its own driver knows for sure."""
        given = config.properties
        folder, address = local_folder(given.get("warehouse", "")), _URI.fullmatch(given["uri"])
        # Variables such as PGPASSWORD would be this driver's alone.
        ours_alone = any(name.startswith("PG") for name in os.environ)
        if folder is None or address is None or not given.keys() <= _KNOWN or "jdbc.user" not in given or ours_alone:
            return None
        conninfo = {
            "host": address[1],
            "port": address[2] or "5432",
            "dbname": address[3],
            "user": given["jdbc.user"],
            "password": given.get("jdbc.password", ""),
            # Its own driver would not read the usual file in the same way. This one is none.
            "passfile": f"{os.devnull}/none",
            "connect_timeout": 10,
            "options": "-c statement_timeout=60s -c default_transaction_read_only=on",
        }
        return cls(config.name, folder, conninfo)

    def check(self) -> None:
        """Read the namespaces, or that the role may create the catalog's tables, and try the warehouse."""
        with self._connected() as connection:
            if not _is_new(connection):
                connection.execute(_NAMESPACES, {"catalog": self.name}).fetchall()
            try_folder(self.folder)

    def properties(self, name: TableName) -> Mapping[str, str] | None:
        """Return the properties of the version that the catalog names."""
        with self._connected() as connection:
            if _is_new(connection):
                return None
            row = connection.execute(_LOCATION, [self.name, ".".join(name.namespace), name.name]).fetchone()
            if row is None:
                return None
            file = local_folder(str(row[0]))
            if file is None:
                raise UnconfirmedError("the metadata is elsewhere")
            return read_properties(file)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        import psycopg

        try:
            if self._connection is None:
                self._connection = psycopg.connect(**self._conninfo, autocommit=True)
            yield self._connection
        except (psycopg.Error, OSError) as error:
            raise UnconfirmedError from error


def _is_new(connection: psycopg.Connection[Any]) -> bool:
    """Return True if the first start creates the catalog's tables, and may do so."""
    found = connection.execute(_TABLES).fetchall()
    if {name for name, visible in found if visible} == {"iceberg_tables", "iceberg_namespace_properties"}:
        return False
    if found:
        raise UnconfirmedError("only some of the catalog's tables can be seen")
    if connection.execute(_MAY_CREATE).fetchone() != (True,):
        raise UnconfirmedError("the catalog's tables cannot be created")
    return True
