"""The versions of tables in a manifest. Each is encoded once and decoded once, in however many manifests it is."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from levada.schema import ReplicatedTableSchema
from levada.values import SnapshotId, TableId

_CACHED: Final = 1 << 14
"""The number of versions that are kept encoded and decoded: those of all tables of a large pipeline."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table. ``content`` is the compressed JSON of its schema in base64, decoded only on use."""

    table: TableId
    snapshot_id: SnapshotId
    content: str

    @classmethod
    def of(cls, schema: ReplicatedTableSchema) -> TableVersion:
        """Return the version with this schema. It is the same object for an equal schema."""
        return _encode(schema)

    def schema(self) -> ReplicatedTableSchema:
        """Return the schema."""
        return _decode(self.content)

    def shared(self) -> TableVersion:
        """Return an equal version, which is the same object for all manifests that have it."""
        return _shared(self)


@lru_cache(_CACHED)
def _encode(schema: ReplicatedTableSchema) -> TableVersion:
    content = zlib.compress(json.dumps(schema.to_json(), separators=(",", ":")).encode())
    return _shared(TableVersion(schema.id, schema.snapshot_id, base64.urlsafe_b64encode(content).decode()))


@lru_cache(_CACHED)
def _decode(content: str) -> ReplicatedTableSchema:
    return ReplicatedTableSchema.from_json(json.loads(zlib.decompress(base64.urlsafe_b64decode(content))))


@lru_cache(_CACHED)
def _shared(version: TableVersion) -> TableVersion:
    return version
