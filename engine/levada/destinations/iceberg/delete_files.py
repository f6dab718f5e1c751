"""The delete files of an Iceberg table, converted from Iceberg's Java objects and to its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.java import JavaObject, Jvm, each
from levada.destinations.iceberg.partitioning import FilePartition


@dataclass(frozen=True, slots=True)
class PlannedDeletes:
    """The deletes of a data file: its deletion vector, or the position-delete files that may apply to it."""

    files: frozenset[str] = frozenset()
    vector: DeletionVector | None = None


@dataclass(frozen=True, slots=True)
class NewDeletes:
    """The deletes of a commit: position-delete files, or deletion vectors that take the place of ``replaced``."""

    files: Sequence[WrittenFile] = ()
    vectors: Sequence[DeletionVector] = ()
    replaced: Sequence[DeletionVector] = ()


@dataclass(slots=True)
class DeleteFiles:
    """All delete files of a snapshot: deletion vectors by data file, and position-delete files in Iceberg's JSON."""

    vectors: dict[str, DeletionVector] = field(default_factory=dict)
    by_position: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, jvm: Jvm, table: JavaObject) -> Self:
        """Read the delete manifests of the table's current snapshot."""
        found, snapshot = cls(), table.currentSnapshot()
        if snapshot is None:
            return found
        io, specs = table.io(), table.specs()
        for manifest in snapshot.deleteManifests(io):
            reader = jvm.iceberg.ManifestFiles.readDeleteManifest(manifest, io, specs)
            try:
                spec = specs.get(manifest.partitionSpecId())
                for file in each(reader):
                    if str(file.format()) == "PUFFIN":
                        vector = read_vector(jvm, file, spec)
                        found.vectors[vector.data_file] = vector
                    elif str(file.content()) == "POSITION_DELETES":
                        found.by_position.append(json.loads(jvm.iceberg.ContentFileParser.toJson(file, spec)))
            finally:
                reader.close()
        return found


def read_vector(jvm: Jvm, file: JavaObject, spec: JavaObject) -> DeletionVector:
    """Return the deletion vector of a Java ``DeleteFile`` of this spec, with a single call into the JVM."""
    return vector_of(json.loads(jvm.iceberg.ContentFileParser.toJson(file, spec)))


def planned_deletes(found: Sequence[Mapping[str, Any]]) -> PlannedDeletes:
    """Return the deletes of a data file from its delete files in Iceberg's JSON."""
    vectors = [vector_of(f) for f in found if _is_vector(f)]
    files = frozenset(f["file-path"] for f in found if not _is_vector(f))
    return PlannedDeletes(files, vectors[0] if vectors else None)


def _is_vector(found: Mapping[str, Any]) -> bool:
    return str(found["file-format"]).lower() == "puffin"


def vector_of(found: Mapping[str, Any]) -> DeletionVector:
    """Return the deletion vector that Iceberg's JSON describes."""
    return DeletionVector(
        found["referenced-data-file"],
        found["file-path"],
        found["file-size-in-bytes"],
        found["content-offset"],
        found["content-size-in-bytes"],
        found["record-count"],
        # Iceberg leaves NULL out, so the partition of NULL is as empty as none. The spec tells them apart.
        FilePartition(found["spec-id"], json.dumps(found.get("partition") or {})),
    )


def describe_vector(vector: DeletionVector, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vector in the JSON of a ``DeleteFile``. ``place`` has the spec and the partition in that form."""
    return {
        **place,
        "content": "position-deletes",
        "file-path": vector.path,
        "file-format": "puffin",
        "file-size-in-bytes": vector.file_bytes,
        "record-count": vector.rows,
        "referenced-data-file": vector.data_file,
        "content-offset": vector.offset,
        "content-size-in-bytes": vector.length,
    }
