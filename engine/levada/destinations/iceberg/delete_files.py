"""The delete files of an Iceberg table, converted from and to Iceberg's Java objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.java import JavaObject, Jvm, each


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
    """All delete files of a snapshot: deletion vectors by data file, and Java objects of position-delete files."""

    vectors: dict[str, DeletionVector] = field(default_factory=dict)
    by_position: list[JavaObject] = field(default_factory=list)

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
                        found.by_position.append(file)
            finally:
                reader.close()
        return found


def read_vector(jvm: Jvm, file: JavaObject, spec: JavaObject) -> DeletionVector:
    """Return the deletion vector of a Java ``DeleteFile``, with a single call into the JVM."""
    found = json.loads(jvm.iceberg.ContentFileParser.toJson(file, spec))
    return DeletionVector(
        found["referenced-data-file"],
        found["file-path"],
        found["file-size-in-bytes"],
        found["content-offset"],
        found["content-size-in-bytes"],
        found["record-count"],
    )


def describe_vectors(jvm: Jvm, spec: JavaObject, vectors: Sequence[DeletionVector]) -> list[JavaObject]:
    """Return a Java ``DeleteFile`` for each vector. It needs two calls into the JVM, where its builder needs ten."""
    if not vectors:
        return []
    # The method is looked up once, because py4j asks the JVM for it each time.
    spec_id, from_json = int(spec.specId()), jvm.iceberg.ContentFileParser.fromJson
    described = jvm.iceberg.util.JsonUtil.mapper().readTree(json.dumps([_described(v, spec_id) for v in vectors]))
    return [from_json(described.get(i), spec) for i in range(len(vectors))]


def _described(vector: DeletionVector, spec_id: int) -> dict[str, str | int]:
    return {
        "spec-id": spec_id,
        "content": "position-deletes",
        "file-path": vector.path,
        "file-format": "puffin",
        "file-size-in-bytes": vector.file_bytes,
        "record-count": vector.rows,
        "referenced-data-file": vector.data_file,
        "content-offset": vector.offset,
        "content-size-in-bytes": vector.length,
    }
