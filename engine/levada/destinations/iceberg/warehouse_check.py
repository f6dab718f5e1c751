"""A trial of the warehouse: a file is written there and removed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from levada.destinations.iceberg.java import java_errors

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
