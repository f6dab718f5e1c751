"""VACUUM of tables from which rows were erased."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from psycopg import sql

from levada.errors import LevadaError
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.printable import listed
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)


def vacuum(server: PostgresConnection, tables: Sequence[QualifiedTable]) -> None:
    """Remove dead rows, and compute the statistics of columns again. A failure is logged and changes nothing.

    The server keeps a dead row after DELETE until VACUUM, and common values of columns in pg_statistic until ANALYZE.
    """
    doing = f"vacuuming {listed([str(table) for table in tables])}"
    names = sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)
    try:
        with source_errors(doing), server.connect(application="erase") as connection:
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(names))
    except LevadaError as error:
        _log.warning("%s failed, so dead rows stay: %s", doing, error.message)
