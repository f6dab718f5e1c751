"""The columns that describe the last change of a row, in tables with the last state of each row.

They are columns of the table at the destination only, as the mark of deleted rows is (`levada.schema.kept_rows`). Their
names differ from those of `levada.schema.changes`, because a batch of changes for such a table has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from levada.schema.changes import RESERVED_PREFIX
from levada.schema.kept_rows import DELETED_AT_ATTNUM
from levada.schema.table import Column, ReplicatedTableSchema
from levada.schema.types import resolve_type
from levada.values import Lsn, MetadataColumn

READ: Final = "R"
"""The operation of a row that a copy or a repair has read. The others are ``I``, ``U`` and ``D``."""

_FORMS: Final = {
    MetadataColumn.COMMIT_TIME: ("commit_time", "timestamp with time zone", 1184),
    MetadataColumn.LSN: ("lsn", "bigint", 20),
    MetadataColumn.OPERATION: ("operation", "text", 25),
    MetadataColumn.TRANSACTION_ID: ("transaction_id", "bigint", 20),
    MetadataColumn.SOURCE: ("source", "text", 25),
}
"""The names without their prefix, and the types with their OIDs."""


def _column(one: MetadataColumn, number: int) -> Column:
    name, type_name, oid = _FORMS[one]
    return Column(DELETED_AT_ATTNUM + number, RESERVED_PREFIX + name, resolve_type(oid, -1), type_name, type_oid=oid)


COLUMNS: Final[Mapping[MetadataColumn, Column]] = {one: _column(one, n) for n, one in enumerate(MetadataColumn, 1)}
"""The columns of the destination. Their attnums are stable, because destinations store them."""

ATTNUMS: Final = {column.attnum: one for one, column in COLUMNS.items()}
"""The columns by their attnums."""


@dataclass(frozen=True, slots=True)
class RowMetadata:
    """The columns of a table that describe the last change of each row. ``source`` is the value of the column SOURCE.

    ``columns`` are in the order of their class, each once.
    """

    columns: tuple[MetadataColumn, ...] = ()
    source: str = ""


NO_METADATA: Final = RowMetadata()


@dataclass(frozen=True, slots=True)
class ReadMoment:
    """The moment at which rows of the source were read: an LSN, and a time that is not after it."""

    lsn: Lsn
    at: datetime


def ordered(columns: Iterable[MetadataColumn]) -> tuple[MetadataColumn, ...]:
    """Return the columns in the order of their class, each once."""
    wanted = set(columns)
    return tuple(one for one in MetadataColumn if one in wanted)


def with_metadata(schema: ReplicatedTableSchema, metadata: RowMetadata) -> ReplicatedTableSchema:
    """Return the version with these columns as the last ones."""
    others = (c for c in schema.columns if c.attnum not in ATTNUMS)
    return replace(schema, columns=(*others, *(COLUMNS[one] for one in metadata.columns)))


def at_source(schema: ReplicatedTableSchema) -> ReplicatedTableSchema:
    """Return the version with the source's columns only, without the mark of deleted rows too."""
    return replace(schema, columns=tuple(c for c in schema.columns if c.attnum < DELETED_AT_ATTNUM))


def read_values(metadata: RowMetadata, moment: ReadMoment) -> dict[MetadataColumn, Any]:
    """Return the values of rows that were read from the source at a moment. Their transactions are unknown."""
    values: dict[MetadataColumn, Any] = {
        MetadataColumn.COMMIT_TIME: moment.at,
        MetadataColumn.LSN: int(moment.lsn),
        MetadataColumn.OPERATION: READ,
        MetadataColumn.TRANSACTION_ID: None,
        MetadataColumn.SOURCE: metadata.source,
    }
    return {one: values[one] for one in metadata.columns}
