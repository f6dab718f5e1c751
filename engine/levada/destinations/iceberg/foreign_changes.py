"""Checks of a table for changes by another writer, and their errors. Pure."""

from __future__ import annotations

import json
from typing import Final

from levada.destinations.fenced import rolled_back
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.lineage import Lineage, Verdict
from levada.destinations.iceberg.metadata import Property, TableMetadata
from levada.errors import DestinationChanged
from levada.values import QualifiedTable, resync_command

LAST_FORMAT_VERSION: Final = 3
_ANY_TABLE: Final = "levada resync MANIFEST TABLE"
"""The engine replaces TABLE by the name of the table that it parks."""


def check_writable(name: TableName, metadata: TableMetadata, format_version: int) -> None:
    """Raise DestinationChanged if the table can no longer contain the files that Levada writes.

    ``format_version`` is the configured one. A table of an older version is upgraded before the next write.
    """
    if metadata.format_version > LAST_FORMAT_VERSION:
        raise DestinationChanged(
            "foreign_table_change",
            f"{name} was upgraded to format version {metadata.format_version},"
            f" but Levada writes at most {LAST_FORMAT_VERSION}",
            hint=resync_hint(metadata),
        )
    if metadata.format_version > format_version:
        raise DestinationChanged(
            "format_version_lowered",
            f"{name} has format version {metadata.format_version}, which cannot become {format_version} again",
            hint=f"set spec.destination.iceberg.formatVersion: {metadata.format_version},"
            f" or copy the table again: {resync_hint(metadata)}",
        )
    if sorted(f.term for f in metadata.spec) != sorted(metadata.arrangement.terms):
        raise DestinationChanged(
            "foreign_table_change", f"{name} was partitioned by another writer", hint=resync_hint(metadata)
        )


def check_columns(name: TableName, metadata: TableMetadata) -> None:
    """Raise DestinationChanged if another writer dropped or renamed a column of the source.

    A column that another writer added is allowed, and Levada writes NULL to it. A widened type is allowed too.
    """
    recorded = metadata.last_commit
    if recorded is None:
        return
    now = {f.id: f.name for f in metadata.layout.fields}
    before = metadata.schemas.get(recorded.schema_id, {})
    for field_id in metadata.layout.attnums.values():
        was = before.get(field_id, now.get(field_id))
        if field_id not in now:
            raise DestinationChanged(
                "foreign_schema_change",
                f"column {was or field_id} of {name} was dropped by another writer",
                hint=resync_hint(metadata),
            )
        if now[field_id] != was:
            raise DestinationChanged(
                "foreign_schema_change",
                f"column {was} of {name} was renamed to {now[field_id]} by another writer",
                hint=resync_hint(metadata),
            )


def refusal(name: TableName, metadata: TableMetadata, found: Lineage) -> DestinationChanged:
    """Return the error for a table whose verdict is not INTACT."""
    if found.verdict is Verdict.ROLLED_BACK:
        return rolled_back(name, resync_hint(metadata))
    foreign = found.foreign
    if found.verdict is Verdict.FOREIGN_WRITE and foreign is not None:
        return DestinationChanged(
            "foreign_write",
            f"{name} was written by another writer: snapshot {foreign.id} ({foreign.operation})",
            hint=resync_hint(metadata),
        )
    return DestinationChanged(
        "table_history_lost",
        f"the snapshots of {name} since Levada's last commit have expired, "
        "so changes by another writer cannot be ruled out",
        hint=resync_hint(metadata),
    )


def resync_hint(metadata: TableMetadata) -> str:
    """Return the command that copies the table again."""
    try:
        return resync_command(QualifiedTable(*json.loads(metadata.properties[Property.SOURCE.value])))
    except (KeyError, ValueError, TypeError):
        return _ANY_TABLE
