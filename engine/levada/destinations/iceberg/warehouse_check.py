"""Trials of the warehouse: a file is written there and removed, and a local file system is still mounted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from levada.destinations.iceberg.java import java_errors
from levada.errors import Transient

if TYPE_CHECKING:
    from levada.destinations.iceberg.java import JavaObject, Jvm


def try_warehouse(jvm: Jvm, properties: Mapping[str, str]) -> None:
    """Write a file to the warehouse of a catalog with these properties, and remove it.

    A REST catalog configures the file access of each table itself, so its warehouse is not tried.
    """
    warehouse, kind = properties.get("warehouse"), properties["type"]
    if warehouse is None or kind == "rest":
        return
    with java_errors(f"write to {warehouse}"):
        if "io-impl" in properties:
            _try_objects(jvm, properties, warehouse)
        elif kind in ("hadoop", "jdbc"):
            _try_folder(jvm, jvm.path(warehouse))


@dataclass(slots=True)
class MountedWarehouse:
    """The file system of a local warehouse, by the properties of its catalog.

    The folder below a file system that is not mounted is empty. Its tables are not gone.
    """

    properties: Mapping[str, str] = field(repr=False)
    _seen: int | None = None

    def note(self) -> None:
        """Remember the file system, which has a table."""
        self._seen = self._device()

    def check(self, what: str) -> None:
        """Raise Transient ``destination_unavailable`` if the folder is on another file system than at the last note."""
        device = self._device()
        if device is not None and self._seen is not None and device != self._seen:
            raise Transient(
                "destination_unavailable",
                f"{what}: the warehouse's folder is no longer on the file system that had the tables",
                hint="mount the lake's file system again. If it is another one for good, restart the engine",
            )

    def _device(self) -> int | None:
        folder = self.properties.get("warehouse", "").removeprefix("file://").removeprefix("file:")
        local = self.properties["type"] in ("hadoop", "jdbc") and "io-impl" not in self.properties
        try:
            return os.stat(folder).st_dev if local and folder.startswith("/") else None
        except OSError:
            return None


def _try_objects(jvm: Jvm, properties: Mapping[str, str], warehouse: str) -> None:
    io = jvm.file_io(properties)
    try:
        probe = f"{warehouse.rstrip('/')}/.levada-check-{uuid.uuid4().hex}"
        io.newOutputFile(probe).create().close()
        io.deleteFile(probe)
    finally:
        io.close()


def _try_folder(jvm: Jvm, folder: JavaObject) -> None:
    files, created, missing = folder.getFileSystem(jvm.hadoop_conf), [], folder
    while missing is not None and not files.exists(missing):
        created.append(missing)
        missing = missing.getParent()
    probe = jvm.path(folder, f".levada-check-{uuid.uuid4().hex}")
    try:
        files.create(probe).close()
        files.delete(probe, False)
    finally:
        for path in created:
            if files.exists(path):
                files.delete(path, False)
