"""A table's replicated columns, its key, and the version of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from levada.schema.types import ColumnType
from levada.values import QualifiedTable, SnapshotId, TableId

COPY_VERSION: Final = SnapshotId(0)
"""The version that a copy has, whatever the LSN of its snapshot."""


class IdentityKind(StrEnum):
    """What an UPDATE or DELETE tells of the old row (PostgreSQL docs, ``REPLICA IDENTITY``)."""

    PRIMARY_KEY = "PrimaryKey"
    """DEFAULT on a table with a primary key."""
    INDEX = "Index"
    FULL = "Full"
    MISSING = "Missing"
    """NOTHING, or DEFAULT without a primary key."""


@dataclass(frozen=True, slots=True)
class Column:
    """One replicated column.

    ``attnum`` identifies it for the table's life, whatever it is called. ``missing_value`` is PostgreSQL's text of the
    constant that rows written before ``ADD COLUMN … DEFAULT`` have (``attmissingval``); None if there is none.
    ``rewritten`` tells that the column was added with a default that PostgreSQL computed row by row.
    """

    attnum: int
    name: str
    type: ColumnType
    type_name: str
    type_oid: int
    typmod: int = -1
    nullable: bool = True
    default: str | None = None
    missing_value: str | None = None
    rewritten: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "attnum": self.attnum,
            "name": self.name,
            "type": self.type.to_json(),
            "typeName": self.type_name,
            "typeOid": self.type_oid,
            "typmod": self.typmod,
            "nullable": self.nullable,
            "default": self.default,
            "missingValue": self.missing_value,
            "rewritten": self.rewritten,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Column:
        """Read what `to_json` returned."""
        return cls(
            attnum=data["attnum"],
            name=data["name"],
            type=ColumnType.from_json(data["type"]),
            type_name=data["typeName"],
            type_oid=data["typeOid"],
            typmod=data["typmod"],
            nullable=data["nullable"],
            default=data["default"],
            missing_value=data["missingValue"],
            rewritten=data["rewritten"],
        )


@dataclass(frozen=True, slots=True)
class ReplicatedTableSchema:
    """A version of a table: the columns that are replicated, in attnum order.

    Generated columns, and those that a publication's column list or ``columns.exclude`` leave out, are not among them.
    ``key`` has the attnums that identify a row at a destination, in key order: the replica identity's columns, under
    FULL the primary key's; empty where a row cannot be identified. ``identity_attnums`` are the columns that an old
    key tuple carries.
    """

    id: TableId
    name: QualifiedTable
    columns: tuple[Column, ...]
    identity: IdentityKind
    identity_attnums: tuple[int, ...] = ()
    key: tuple[int, ...] = ()
    snapshot_id: SnapshotId = COPY_VERSION

    @property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema, every field nullable: a deleted row has its key alone."""
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The key's columns, in key order."""
        by_attnum = self.by_attnum
        return tuple(by_attnum[a] for a in self.key)

    @property
    def by_attnum(self) -> Mapping[int, Column]:
        """The columns by their attnum."""
        return {c.attnum: c for c in self.columns}

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "id": int(self.id),
            "schema": self.name.schema,
            "name": self.name.name,
            "columns": [c.to_json() for c in self.columns],
            "identity": self.identity.value,
            "identityAttnums": list(self.identity_attnums),
            "key": list(self.key),
            "snapshotId": str(self.snapshot_id),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplicatedTableSchema:
        """Read what `to_json` returned."""
        return cls(
            id=TableId(data["id"]),
            name=QualifiedTable(data["schema"], data["name"]),
            columns=tuple(Column.from_json(c) for c in data["columns"]),
            identity=IdentityKind(data["identity"]),
            identity_attnums=tuple(data["identityAttnums"]),
            key=tuple(data["key"]),
            snapshot_id=SnapshotId.parse(data["snapshotId"]),
        )
