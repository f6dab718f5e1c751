"""A Hadoop catalog in a local folder, as a check reads it without a JVM: see `quick_catalog`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.quick_catalog import UnconfirmedError, read_properties, try_folder

_METADATA: Final = "metadata"
_HINT: Final = "version-hint.text"


@dataclass(frozen=True, slots=True)
class FolderCatalog:
    """Reads the folders and the metadata files of the tables, as the specification's "File System Tables" has them."""

    folder: Path

    def check(self) -> None:
        """Read the folders of the namespaces, and write and remove a file in the warehouse."""
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    # A catalog looks into each folder whether it is a table.
                    if entry.is_dir():
                        _listed(Path(entry.path) / _METADATA)
        except FileNotFoundError:
            # The warehouse was never written to.
            pass
        except OSError as error:
            raise UnconfirmedError from error
        try:
            try_folder(self.folder)
        except OSError as error:
            raise UnconfirmedError from error

    def properties(self, name: TableName) -> Mapping[str, str] | None:
        """Return the properties of the newest version. A folder without one is not certain to be free."""
        place = self.folder.joinpath(*name.namespace, name.name)
        try:
            if self._is_free(place):
                return None
            return read_properties(_newest(place / _METADATA))
        except (OSError, ValueError) as error:
            raise UnconfirmedError from error

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _is_free(self, place: Path) -> bool:
        """Return True if nothing is there, and if no folder above it is a table's."""
        above, part = self.folder, place.relative_to(self.folder)
        if ".." in part.parts:
            raise UnconfirmedError("a name is a step out of its folder")
        for level in part.parts[:-1]:
            above = above / level
            if _listed(above / _METADATA):
                raise UnconfirmedError("a table has this folder")
        try:
            os.lstat(place)
        except FileNotFoundError:
            return True
        return False


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _newest(metadata: Path) -> Path:
    """Return the file of the newest version. The hint may be older, because a writer replaces it after its commit."""
    version = int((metadata / _HINT).read_text())
    while (metadata / f"v{version + 1}.metadata.json").exists():
        version += 1
    return metadata / f"v{version}.metadata.json"
