"""A catalog as Python reads it, for a check that needs no JVM.

It only confirms what a run finds as well. Where something is missing, damaged or refused, or where Iceberg's library
might find something else, it raises `UnconfirmedError`. The check then asks that library, in a JVM, so that every error
is the one that a run meets.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from levada.destinations.iceberg.catalog_config import TableName

_METADATA: Final = ("format-version", "table-uuid", "location", "current-schema-id", "schemas")
"""Fields that the metadata of every table has."""


class UnconfirmedError(Exception):
    """Python does not find that all is well. It is not known what a run would find."""


class QuickCatalog(Protocol):
    """The questions of a check about a catalog. Each method raises UnconfirmedError if the answer is not certain."""

    def check(self) -> None:
        """Read the catalog's namespaces, and write and remove a file in the warehouse."""
        ...

    def properties(self, name: TableName) -> Mapping[str, str] | None:
        """Return the properties of the table that has this name, of any owner. Return None if a copy can take it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def local_folder(warehouse: str) -> Path | None:
    """Return the folder of a warehouse, or None if it is not on a local file system."""
    path = warehouse.removeprefix("file://") if warehouse.startswith("file:///") else warehouse.removeprefix("file:")
    return Path(path) if path.startswith("/") and not path.startswith("//") else None


def try_folder(folder: Path) -> None:
    """Write a file into the folder and remove it, with the folders that had to be created. Raise OSError."""
    created, missing = [], folder
    while not _is_there(missing):
        created.append(missing)
        missing = missing.parent
    probe = folder / f".levada-check-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("xb") as file:
            file.write(b"levada")
        probe.unlink()
    finally:
        for path in created:
            with suppress(OSError):
                path.rmdir()


def _is_there(path: Path) -> bool:
    """Return True if there is something of this name. Unlike `Path.exists`, raise OSError if that is not known."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def read_properties(file: Path) -> Mapping[str, str]:
    """Return the properties in a metadata file of a table. Raise OSError or UnconfirmedError."""
    return properties_of(file.read_bytes())


def properties_of(metadata: bytes | Any) -> Mapping[str, str]:
    """Return the properties of a table's metadata, as JSON or parsed. Raise UnconfirmedError if it is incomplete."""
    try:
        read = json.loads(metadata) if isinstance(metadata, bytes) else metadata
        properties = read.get("properties", {})
        if all(read.get(name) is not None for name in _METADATA) and all(map(_is_text, properties.items())):
            return {str(key): str(value) for key, value in properties.items()}
    except (ValueError, AttributeError) as error:
        raise UnconfirmedError from error
    raise UnconfirmedError("this is no metadata of a table")


def _is_text(item: tuple[object, object]) -> bool:
    return isinstance(item[1], str)
