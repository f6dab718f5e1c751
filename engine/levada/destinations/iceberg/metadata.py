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
from levada.locations import lies_below
from levada.values import Lsn, Watermark

PIPELINE: Final = "levada.pipeline"
EPOCH: Final = "levada.epoch"
LSN: Final = "levada.lsn"
"""These three stamp a snapshot's summary."""


DATA_PATH: Final = "write.data.path"
"""Iceberg's own property: the folder for new data and delete files."""


class Property(StrEnum):
    """What a table's properties tell of the source."""

    PIPELINE = PIPELINE
    TABLE_ID = "levada.table-id"
    SOURCE_ID = "levada.source-id"
    """The identity of the source database. Empty for a destination that was made without one."""
    NAME = "levada.name"
    """The table's own name in the catalog: a copy of the table under another name is not the pipeline's."""
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
    LAST_COMMIT = "levada.last-commit"
    """The watermark, snapshot and schema of Levada's last commit, in JSON: see `LastCommit`."""


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
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of Levada to a table, as a table property records it. `levada.destinations.iceberg.lineage` says
    when it counts."""

    mark: Watermark
    snapshot_id: int
    schema_id: int

    @classmethod
    def parse(cls, text: str | None) -> LastCommit | None:
        """Read the property; None if there is none that can be read, because anyone may write a property."""
        try:
            kept = json.loads(text or "")
            mark = Watermark(str(kept["pipeline"]), int(kept["epoch"]), Lsn.parse(kept["lsn"]))
            return cls(mark, int(kept["snapshot"]), int(kept["schema"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def to_text(self) -> str:
        """Return the property."""
        mark = self.mark
        named = {"pipeline": mark.pipeline, "epoch": mark.epoch, "lsn": str(mark.lsn)}
        return json.dumps({**named, "snapshot": self.snapshot_id, "schema": self.schema_id})


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """One version of a table's metadata.

    ``history`` is the current snapshot and those before it, as far as kept. ``schemas`` has the column names by field
    id of each schema that is kept. ``log`` names the earlier versions that are kept, newest first.
    """

    uuid: str
    location: str
    layout: Layout
    last_field_id: int
    properties: Mapping[str, str]
    history: tuple[Snapshot, ...]
    snapshots: Mapping[int, Snapshot]
    last_commit: LastCommit | None
    schema_id: int
    schemas: Mapping[int, Mapping[int, str]]
    format_version: int
    partitioned: bool
    log: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableMetadata:
        """Read Iceberg's JSON."""
        data = json.loads(text)
        properties = data["properties"]
        schema = next(s for s in data["schemas"] if s["schema-id"] == data["current-schema-id"])
        layout = Layout.of(schema["fields"], _columns(properties.get(Property.COLUMNS.value)))
        snapshots = {s["snapshot-id"]: _snapshot(s) for s in data.get("snapshots", ())}
        return cls(
            data["table-uuid"],
            data["location"],
            layout,
            data["last-column-id"],
            properties,
            _history(snapshots, data.get("current-snapshot-id")),
            snapshots,
            LastCommit.parse(properties.get(Property.LAST_COMMIT.value)),
            data["current-schema-id"],
            {s["schema-id"]: {f["id"]: f["name"] for f in s["fields"]} for s in data["schemas"]},
            data["format-version"],
            any(s["fields"] for s in data["partition-specs"] if s["spec-id"] == data["default-spec-id"]),
            tuple(entry["metadata-file"] for entry in reversed(data.get("metadata-log", ()))),
        )

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot's id, None in a table without any."""
        return self.history[0].id if self.history else None

    @property
    def facts(self) -> TableFacts:
        """The shape of the current snapshot."""
        return self.history[0].facts if self.history else TableFacts(0, 0, 0, 0, 0)

    @property
    def own_folder(self) -> str | None:
        """The folder of the table's data files if no other table can have the same: its name is the table's UUID.

        None also if it is not below the table's location: any writer may set a property.
        """
        folder = self.properties.get(DATA_PATH, "").rstrip("/")
        own = folder.endswith(f"/{self.uuid}") and lies_below(folder, self.location)
        return f"{folder}/" if own else None

    @property
    def mark(self) -> Watermark | None:
        """The watermark of Levada's last commit; the table holds it if `IcebergTable.check_intact` passes."""
        return None if self.last_commit is None else self.last_commit.mark


def stamp(mark: Watermark) -> dict[str, str]:
    """Return a mark as a snapshot's summary has it."""
    return {PIPELINE: mark.pipeline, EPOCH: str(mark.epoch), LSN: str(mark.lsn)}


def _columns(text: str | None) -> dict[str, int]:
    """Read the property; empty if there is none that can be read, because anyone may write a property."""
    try:
        return {str(int(attnum)): int(id_) for attnum, id_ in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _mark(summary: Mapping[str, str]) -> Watermark | None:
    try:
        return Watermark(summary[PIPELINE], int(summary[EPOCH]), Lsn.parse(summary[LSN]))
    except (KeyError, ValueError):
        return None


def _history(snapshots: Mapping[int, Snapshot], current: int | None) -> tuple[Snapshot, ...]:
    history = []
    found = None if current is None else snapshots.get(current)
    while found is not None:
        history.append(found)
        found = None if found.parent is None else snapshots.get(found.parent)
    return tuple(history)


def _snapshot(data: Mapping[str, Any]) -> Snapshot:
    summary = data.get("summary", {})
    parent = data.get("parent-snapshot-id")
    totals = (
        int(summary.get(f"total-{name}", 0))
        for name in ("data-files", "delete-files", "records", "position-deletes", "files-size")
    )
    return Snapshot(
        data["snapshot-id"],
        summary.get("operation", ""),
        data["timestamp-ms"],
        _mark(summary),
        TableFacts(*totals),
        parent,
    )
