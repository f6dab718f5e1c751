"""The versioned schema of a table: its replicated columns and its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from levada.schema.masks import NO_MASKS, ColumnMask, TableMasks
from levada.schema.types import ColumnType
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId

COPY_VERSION: Final = SnapshotId(0)
"""The schema version of a copy, whatever the LSN of its snapshot is."""
NEWEST_VERSION: Final = SnapshotId(2**64 - 1)
"""A version that is above all others."""


class IdentityKind(StrEnum):
    """The part of the old row in an UPDATE or DELETE (PostgreSQL manual, ``REPLICA IDENTITY``)."""

    PRIMARY_KEY = "PrimaryKey"
    """DEFAULT, and the table has a primary key."""
    INDEX = "Index"
    FULL = "Full"
    MISSING = "Missing"
    """NOTHING, or DEFAULT and the table has no primary key."""


@dataclass(frozen=True, slots=True)
class Column:
    """One replicated column.

    ``attnum`` identifies the column for the table's lifetime, also after a rename. ``missing_value`` is PostgreSQL's
    text of the constant for rows written before ``ADD COLUMN … DEFAULT`` (``attmissingval``), or None. ``rewritten`` is
    True if the column was added with a default that PostgreSQL computed for each row. ``type`` is that of the masked
    values if the column has a ``mask``, and ``type_name``, ``type_oid`` and ``typmod`` are those at the source.
    """

    attnum: int
    name: str
    type: ColumnType
    type_name: str
    type_oid: int
    typmod: int = -1
    nullable: bool = True
    missing_value: str | None = None
    rewritten: bool = False
    mask: ColumnMask | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the column as plain values for JSON."""
        data = {
            "attnum": self.attnum,
            "name": self.name,
            "type": self.type.to_json(),
            "typeName": self.type_name,
            "typeOid": self.type_oid,
            "typmod": self.typmod,
            "nullable": self.nullable,
            "missingValue": self.missing_value,
            "rewritten": self.rewritten,
        }
        return data if self.mask is None else {**data, "mask": self.mask.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Column:
        """Parse the result of `to_json`."""
        return cls(
            attnum=data["attnum"],
            name=data["name"],
            type=ColumnType.from_json(data["type"]),
            type_name=data["typeName"],
            type_oid=data["typeOid"],
            typmod=data["typmod"],
            nullable=data["nullable"],
            missing_value=data["missingValue"],
            rewritten=data["rewritten"],
            mask=ColumnMask.from_json(data["mask"]) if "mask" in data else None,
        )


@dataclass(frozen=True, slots=True)
class ExcludedColumn:
    """One column that ``columns.exclude`` leaves out, which a RELATION message has all the same."""

    attnum: int
    name: str
    type_oid: int
    typmod: int

    def to_json(self) -> dict[str, Any]:
        """Return the column as plain values for JSON."""
        return {"attnum": self.attnum, "name": self.name, "typeOid": self.type_oid, "typmod": self.typmod}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExcludedColumn:
        """Parse the result of `to_json`."""
        return cls(data["attnum"], data["name"], data["typeOid"], data["typmod"])


@dataclass(frozen=True, slots=True)
class ReplicatedTableSchema:
    """A version of a table's schema: the replicated columns in attnum order.

    Generated columns, and columns that the publication's column list or ``columns.exclude`` leave out, are not
    included. ``key`` has the attnums that identify a row at a destination, in ascending order. These are the replica
    identity's columns, or under FULL the primary key's. The order of the columns in the source's index identifies
    nothing, and may change. ``key`` is empty if a row cannot be identified.
    ``identity_attnums`` are the columns in an old key tuple. ``excluded_columns`` has the names in ``columns.exclude``
    of the copy that the version belongs to, and ``excluded`` the columns of the table that it leaves out, in attnum
    order. ``masks`` are those of the manifest at that copy. The columns have their own, also after a rename.
    ``stored_types`` has the types that ``columns.types`` chooses, as pairs of a column's name and a type's name.
    """

    id: TableId
    name: QualifiedTable
    columns: tuple[Column, ...]
    identity: IdentityKind
    identity_attnums: tuple[int, ...] = ()
    key: tuple[int, ...] = ()
    snapshot_id: SnapshotId = COPY_VERSION
    excluded_columns: frozenset[str] = frozenset()
    excluded: tuple[ExcludedColumn, ...] = ()
    stored_types: frozenset[tuple[str, str]] = frozenset()
    masks: TableMasks = NO_MASKS

    def __post_init__(self) -> None:
        """Put the key into ascending order."""
        object.__setattr__(self, "key", tuple(sorted(self.key)))

    def just_below(self, lsn: Lsn) -> ReplicatedTableSchema:
        """Return the version for a table that was copied as of an LSN.

        Its number is below that, because a transaction may begin another version exactly at the LSN.
        """
        return replace(self, snapshot_id=SnapshotId(lsn - 1))

    @property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema. Every field is nullable, because a deleted row may have only its key."""
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The key's columns in the order of ``key``."""
        by_attnum = self.by_attnum
        return tuple(by_attnum[a] for a in self.key)

    @property
    def by_attnum(self) -> Mapping[int, Column]:
        """The columns by attnum."""
        return {c.attnum: c for c in self.columns}

    def to_json(self) -> dict[str, Any]:
        """Return the schema as plain values for JSON."""
        return {
            "id": int(self.id),
            "schema": self.name.schema,
            "name": self.name.name,
            "columns": [c.to_json() for c in self.columns],
            "identity": self.identity.value,
            "identityAttnums": list(self.identity_attnums),
            "key": list(self.key),
            "snapshotId": str(self.snapshot_id),
            "excludedColumns": sorted(self.excluded_columns),
            "excluded": [c.to_json() for c in self.excluded],
            **({"storedTypes": dict(sorted(self.stored_types))} if self.stored_types else {}),
            **({"masks": self.masks.to_json()} if self.masks else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplicatedTableSchema:
        """Parse the result of `to_json`."""
        return cls(
            id=TableId(data["id"]),
            name=QualifiedTable(data["schema"], data["name"]),
            columns=tuple(Column.from_json(c) for c in data["columns"]),
            identity=IdentityKind(data["identity"]),
            identity_attnums=tuple(data["identityAttnums"]),
            key=tuple(data["key"]),
            snapshot_id=SnapshotId.parse(data["snapshotId"]),
            excluded_columns=frozenset(data["excludedColumns"]),
            excluded=tuple(ExcludedColumn.from_json(c) for c in data["excluded"]),
            stored_types=frozenset(data.get("storedTypes", {}).items()),
            masks=TableMasks.from_json(data.get("masks", ())),
        )
