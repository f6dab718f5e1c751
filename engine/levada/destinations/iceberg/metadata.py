"""What an Iceberg table's metadata tells: its columns, properties, history and marks. Pure.

Iceberg's own JSON of it (specification, appendix C) is read whole: one call into the JVM in place of dozens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from levada.destinations.iceberg.layout import Layout
from levada.values import Lsn, Watermark

PIPELINE: Final = "levada.pipeline"
EPOCH: Final = "levada.epoch"
LSN: Final = "levada.lsn"
"""These three stamp a snapshot's summary."""

MARK_PIPELINE: Final = "levada.mark.pipeline"
MARK_EPOCH: Final = "levada.mark.epoch"
MARK_LSN: Final = "levada.mark.lsn"
"""These, as table properties, hold the mark once no stamped snapshot is left in the table's history."""


class Property(StrEnum):
    """What a table's properties tell of the source."""

    PIPELINE = PIPELINE
    TABLE_ID = "levada.table-id"
    SOURCE = "levada.source"
    """The source's schema and name when the table was made, in JSON."""
    MODE = "levada.mode"
    KEY = "levada.key"
    """The key's attnums, ascending."""
    COLUMNS = "levada.columns"
    """attnum -> field id, in JSON."""
    FILL = "levada.fill"
    """attnums of added columns whose constant the rows that were there have not got yet, in JSON."""
    CLAIM = "levada.copy"
    """Who makes a copy of the table, and in which folder its files are, in JSON."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The shape of a snapshot."""

    data_files: int
    delete_files: int
    rows: int
    deleted_rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the table; ``mark`` if it carries a stamp."""

    id: int
    operation: str
    timestamp_ms: int
    mark: Watermark | None
    facts: TableFacts


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """One version of a table's metadata; ``history`` is the current snapshot and those before it, as far as kept."""

    layout: Layout
    last_field_id: int
    properties: Mapping[str, str]
    history: tuple[Snapshot, ...]

    @classmethod
    def parse(cls, text: str) -> TableMetadata:
        """Read Iceberg's JSON."""
        data = json.loads(text)
        properties = data["properties"]
        schema = next(s for s in data["schemas"] if s["schema-id"] == data["current-schema-id"])
        layout = Layout.of(schema["fields"], json.loads(properties.get(Property.COLUMNS.value, "{}")))
        return cls(layout, data["last-column-id"], properties, _history(data))

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot's id, None in a table without any."""
        return self.history[0].id if self.history else None

    @property
    def facts(self) -> TableFacts:
        """The shape of the current snapshot."""
        return self.history[0].facts if self.history else TableFacts(0, 0, 0, 0, 0)

    @property
    def mark(self) -> Watermark | None:
        """What the table holds: the newest stamped ancestor's mark, else the one that maintenance kept."""
        for snapshot in self.history:
            if snapshot.mark is not None:
                return snapshot.mark
        kept = self.properties
        if not self.history or MARK_LSN not in kept:
            return None
        return Watermark(kept[MARK_PIPELINE], int(kept[MARK_EPOCH]), Lsn.parse(kept[MARK_LSN]))


def stamp(mark: Watermark) -> dict[str, str]:
    """Return a mark as a snapshot's summary has it."""
    return {PIPELINE: mark.pipeline, EPOCH: str(mark.epoch), LSN: str(mark.lsn)}


def kept_mark(mark: Watermark) -> dict[str, str]:
    """Return a mark as a table's properties have it."""
    return {MARK_PIPELINE: mark.pipeline, MARK_EPOCH: str(mark.epoch), MARK_LSN: str(mark.lsn)}


def _history(data: Mapping[str, Any]) -> tuple[Snapshot, ...]:
    by_id = {s["snapshot-id"]: s for s in data.get("snapshots", ())}
    history = []
    found = by_id.get(data.get("current-snapshot-id"))
    while found is not None:
        history.append(_snapshot(found))
        found = by_id.get(found.get("parent-snapshot-id"))
    return tuple(history)


def _snapshot(data: Mapping[str, Any]) -> Snapshot:
    summary = data.get("summary", {})
    mark = None
    if LSN in summary:
        mark = Watermark(summary[PIPELINE], int(summary[EPOCH]), Lsn.parse(summary[LSN]))
    totals = (
        int(summary.get(f"total-{name}", 0))
        for name in ("data-files", "delete-files", "records", "position-deletes", "files-size")
    )
    return Snapshot(data["snapshot-id"], summary.get("operation", ""), data["timestamp-ms"], mark, TableFacts(*totals))
