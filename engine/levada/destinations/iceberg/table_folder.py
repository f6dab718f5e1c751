"""The folder of a table in a Hadoop catalog. An interrupted drop leaves files there that the catalog does not list."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName
from levada.destinations.iceberg.java import Jvm, java_errors
from levada.errors import DestinationChanged, NeedsOperator
from levada.locations import lies_below

_DROPPED: Final = "levada-dropped.json"
_HINT: Final = "version-hint.text"


class TableFolder:
    """The folder of one table, below the warehouse."""

    def __init__(self, jvm: Jvm, warehouse: str, name: TableName) -> None:
        location = "/".join((warehouse.rstrip("/"), *name.namespace, name.name))
        if not lies_below(location, warehouse):
            raise NeedsOperator(
                "destination_name_unusable",
                f"the folder of {name} would be outside of the warehouse {warehouse}",
                hint="set destinationTable in the table's TableSync",
            )
        self._name = name
        self._jvm = jvm
        with java_errors(f"look for {name}"):
            self._path = jvm.path(location)
            self._files = self._path.getFileSystem(jvm.hadoop_conf)

    def mark_dropped(self, owner: Mapping[str, str]) -> None:
        """Write the owner's properties to a file before the drop.

        A drop removes the metadata first, so after an interrupted drop only this file shows the owner.
        """
        with java_errors(f"drop {self._name}"):
            stream = self._files.create(self._jvm.path(self._path, _DROPPED), True)
            try:
                stream.write(json.dumps(dict(owner)).encode())
            finally:
                stream.close()

    def dropped(self) -> dict[str, str] | None:
        """Return the properties of the owner whose drop was interrupted, or None."""
        with java_errors(f"look for {self._name}"):
            path = self._jvm.path(self._path, _DROPPED)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                text = bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()
        try:
            read = json.loads(text)
        except ValueError:
            return None
        return read if isinstance(read, dict) else None

    def require_readable(self) -> None:
        """Raise AccessDenied ``destination_denied`` if the folder may not be read, so that its table seems missing.

        Iceberg takes a folder whose metadata it may not read for one without a table.
        """
        with suppress(DestinationChanged), java_errors(f"look for {self._name}"):
            self._files.listStatus(self._jvm.path(self._path, "metadata"))

    def has_lost_its_metadata(self) -> bool:
        """Return True if this is a table's folder without metadata files. No catalog can load or drop such a table."""
        with java_errors(f"look for {self._name}"):
            metadata = self._jvm.path(self._path, "metadata")
            there = self._files.exists(metadata)
            left = [entry.getPath().getName() for entry in self._files.listStatus(metadata)] if there else []
            if any(name.endswith(".metadata.json") for name in left):
                return False
            return _HINT in left or bool(self._files.exists(self._jvm.path(self._path, _DROPPED)))

    def remove(self) -> None:
        """Remove the folder with its content."""
        with java_errors(f"remove the remaining files of {self._name}"):
            self._files.delete(self._path, True)


@dataclass(frozen=True, slots=True)
class LocalFolders:
    """The folders of a Hadoop catalog's tables. ``root`` is None unless they are on this machine's file system."""

    root: Path | None

    @classmethod
    def of(cls, jvm: Jvm, properties: Mapping[str, str]) -> LocalFolders:
        """Return those of the catalog with these properties."""
        warehouse = properties.get("warehouse")
        if properties["type"] != "hadoop" or warehouse is None or "io-impl" in properties:
            return cls(None)
        with java_errors("open the catalog"):
            path = jvm.path(warehouse)
            local = path.getFileSystem(jvm.hadoop_conf).getUri().getScheme() == "file"
            return cls(Path(path.toUri().getPath()) if local else None)

    def lack(self, name: TableName) -> bool:
        """Return True if there is certainly no folder of this name.

        Iceberg's library finds that too, by exceptions that cost a hundred times as much.
        """
        if self.root is None:
            return False
        try:
            os.lstat(self.root.joinpath(*name.namespace, name.name))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False


def folders_of(jvm: Jvm, config: CatalogConfig, namespace: tuple[str, ...]) -> list[TableName]:
    """Return the names of a namespace's folders. One that may not be read may be a table that no catalog lists.

    Only a Hadoop catalog has its tables in such folders.
    """
    warehouse = config.properties.get("warehouse")
    if config.properties["type"] != "hadoop" or warehouse is None:
        return []
    with suppress(DestinationChanged), java_errors(f"list the folders of {'.'.join(namespace)}"):
        path = jvm.path("/".join((warehouse.rstrip("/"), *namespace)))
        entries = path.getFileSystem(jvm.hadoop_conf).listStatus(path)
        return [TableName(namespace, entry.getPath().getName()) for entry in entries if entry.isDirectory()]
    return []
