"""The modes that tables will have at the destination, from the source's catalog. The destination is not created."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import psycopg

from levada import codes
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.catalog import published_tables, read_table_descriptions
from levada.runtime.config import PipelineConfig
from levada.values import QualifiedTable, TableMode

_log = logging.getLogger(__name__)


def planned_modes(
    config: PipelineConfig, connection: psycopg.Connection[Any], names: Collection[QualifiedTable], *, upsert: bool
) -> Mapping[QualifiedTable, TableMode]:
    """Return the mode of each table: the configured one, or CHANGELOG if the table has no usable key.

    ``upsert`` is False if the destination has no other mode than CHANGELOG. The rule is that of
    `levada.destinations.Destination.effective_mode` in every destination of this package. If tables stay locked for a
    second, the modes are the configured ones.
    """
    modes = {name: config.table(name).mode if upsert else TableMode.CHANGELOG for name in names}
    upserted = [name for name, mode in modes.items() if mode is TableMode.UPSERT]
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            keyless = _keyless(config, connection, upserted)
    except LevadaError as error:
        _log.debug("the keys of the tables cannot be read: %s", error)
        return modes
    return {**modes, **dict.fromkeys(keyless, TableMode.CHANGELOG)}


def _keyless(
    config: PipelineConfig, connection: psycopg.Connection[Any], names: Collection[QualifiedTable]
) -> list[QualifiedTable]:
    listed = _column_lists(config, connection)
    found = read_table_descriptions(connection, names)
    return [
        name
        for name, table in found.items()
        if not table.schema(columns=listed.get(name), exclude=config.table(name).excluded_columns).key
    ]


def _column_lists(
    config: PipelineConfig, connection: psycopg.Connection[Any]
) -> Mapping[QualifiedTable, tuple[int, ...] | None]:
    try:
        return {table.name: table.column_attnums for table in published_tables(connection, config.publication.name)}
    except NeedsOperator as error:
        if error.code != codes.PUBLICATION_MISSING:
            raise
        return {}
