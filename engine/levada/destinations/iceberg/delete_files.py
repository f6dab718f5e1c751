"""The delete files of an Iceberg table, converted from and to Iceberg's Java objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.java import JavaObject, Jvm, each
from levada.destinations.iceberg.partitioning import UNPARTITIONED, FilePartition


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
    """Return the deletion vector of a Java ``DeleteFile`` of this spec, with a single call into the JVM."""
    found = json.loads(jvm.iceberg.ContentFileParser.toJson(file, spec))
    return DeletionVector(
        found["referenced-data-file"],
        found["file-path"],
        found["file-size-in-bytes"],
        found["content-offset"],
        found["content-size-in-bytes"],
        found["record-count"],
        FilePartition(found["spec-id"], json.dumps(found["partition"])) if found.get("partition") else None,
    )


def describe_vectors(
    jvm: Jvm, specs: JavaObject, vectors: Sequence[DeletionVector], unpartitioned: int
) -> list[JavaObject]:
    """Return a Java ``DeleteFile`` for each vector. It needs two calls into the JVM, where its builder needs ten.

    ``specs`` are the table's specs by ID. ``unpartitioned`` is the ID of that for vectors without a partition.
    """
    if not vectors:
        return []
    # The method is looked up once, because py4j asks the JVM for it each time.
    from_json = jvm.iceberg.ContentFileParser.fromJson
    partitions = [
        v.partition if isinstance(v.partition, FilePartition) else FilePartition(unpartitioned) for v in vectors
    ]
    by_id = {number: specs.get(number) for number in {partition.spec_id for partition in partitions}}
    described = json.dumps([_described(*both) for both in zip(vectors, partitions, strict=True)])
    items = jvm.iceberg.util.JsonUtil.mapper().readTree(described)
    return [from_json(items.get(i), by_id[partition.spec_id]) for i, partition in enumerate(partitions)]


def _described(vector: DeletionVector, partition: FilePartition) -> dict[str, Any]:
    return {
        "spec-id": partition.spec_id,
        "content": "position-deletes",
        "file-path": vector.path,
        "file-format": "puffin",
        **({} if partition.values == UNPARTITIONED else {"partition": json.loads(partition.values)}),
        "file-size-in-bytes": vector.file_bytes,
        "record-count": vector.rows,
        "referenced-data-file": vector.data_file,
        "content-offset": vector.offset,
        "content-size-in-bytes": vector.length,
    }
