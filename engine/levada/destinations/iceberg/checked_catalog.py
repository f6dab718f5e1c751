"""The catalog of a check. Python answers what it can confirm, and Iceberg's library in a JVM all the rest."""

from __future__ import annotations

import logging

from levada.destinations.context import DestinationContext
from levada.destinations.iceberg.catalog import IcebergCatalog
from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName
from levada.destinations.iceberg.quick_catalog import QuickCatalog, UnconfirmedError, local_folder
from levada.destinations.iceberg.quick_folder import FolderCatalog
from levada.destinations.iceberg.quick_jdbc import PostgresCatalog
from levada.destinations.iceberg.quick_rest import RestCatalog
from levada.schema import ReplicatedTableSchema

_log = logging.getLogger(__name__)


class CheckedCatalog:
    """Has the methods of `IcebergCatalog` that a check calls, with the same errors.

    A start of the JVM takes several CPU seconds. After the first answer that Python cannot confirm, all questions go to
    ``catalog``.
    """

    def __init__(self, config: CatalogConfig, context: DestinationContext, catalog: IcebergCatalog) -> None:
        self._catalog = catalog
        plain = context.jvm is not None and context.jvm.is_plain
        self._quick = quick_catalog(config) if plain else None
        self._checked = False

    def open(self) -> None:
        """Open the catalog. Raise the errors of `IcebergCatalog.open`."""
        try:
            if self._quick is not None:
                self._quick.check()
                self._checked = True
                return
        except UnconfirmedError as error:
            self._give_up(error)
        self._catalog.open()

    def check(self) -> None:
        """Check what `IcebergCatalog.check` does, unless `open` has."""
        if self._quick is None or not self._checked:
            self._catalog.check()

    def check_free(self, name: TableName, schema: ReplicatedTableSchema) -> None:
        """Raise the errors of `IcebergCatalog.check_free`."""
        try:
            kept = None if self._quick is None else self._quick.properties(name)
        except UnconfirmedError as error:
            self._give_up(error)
        if self._quick is None:
            self._catalog.check_free(name, schema)
        elif kept is not None:
            self._catalog.owner.require_replaceable(name, kept, schema)

    def close(self) -> None:
        """Close the catalog and the connections."""
        self._close_quick()
        self._catalog.close()

    def _close_quick(self) -> None:
        if self._quick is not None:
            self._quick.close()
            self._quick = None

    def _give_up(self, error: UnconfirmedError) -> None:
        _log.debug("Iceberg's library is asked: %s", error.__cause__ or error)
        self._close_quick()


def quick_catalog(config: CatalogConfig) -> QuickCatalog | None:
    """Return the catalog as Python reads it, or None for one that only Iceberg's library can read."""
    match config.properties["type"]:
        case "hadoop" if config.properties.keys() <= {"type", "warehouse"}:
            folder = local_folder(config.properties["warehouse"])
            return None if folder is None else FolderCatalog(folder)
        case "jdbc":
            return PostgresCatalog.of(config)
        case "rest":
            return RestCatalog.of(config)
    return None
