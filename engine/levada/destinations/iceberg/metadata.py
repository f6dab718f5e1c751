"""An Iceberg table's metadata: its columns, properties, history and watermarks. Pure.

It is parsed from Iceberg's JSON format (specification, appendix C), or from the differences between two versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from levada.destinations.iceberg.partitioning import ResolvedSettings, SortOrder, Spec, read_order, read_spec
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.table_properties import RECORD
from levada.locations import lies_below
from levada.values import Lsn, Watermark

PIPELINE: Final = "levada.pipeline"
EPOCH: Final = "levada.epoch"
LSN: Final = "levada.lsn"
"""The keys of the watermark in a snapshot's summary."""


VERIFY_TAG: Final = "levada-verify-"
"""Prefix of the tags that keep the snapshots that verifications read."""
DATA_PATH: Final = "write.data.path"
"""Iceberg's property for the folder of new data and delete files."""


CUT: Final = "levada.cut."
"""The prefix of the property of each cut, before its name. Its text has the LSN and the snapshot of the cut's tag.

Each cut has a property of its own, because a REST catalog merges the properties of concurrent commits by their keys.
"""


class Property(StrEnum):
    """The table properties of Levada."""

    PIPELINE = PIPELINE
    TABLE_ID = "levada.table-id"
    SOURCE_ID = "levada.source-id"
    """The identity of the source database. It is empty if the destination was created without a source."""
    NAME = "levada.name"
    """The table's name in the catalog. It shows that a copy of the table under another name is not the pipeline's."""
    SOURCE = "levada.source"
    """The source table's schema and name when the Iceberg table was created, in JSON."""
    MODE = "levada.mode"
    KEY = "levada.key"
    """The key's attnums, ascending."""
    COLUMNS = "levada.columns"
    """The field ID of each attnum, in JSON."""
    ARRANGEMENT = "levada.arrangement"
    """The settings of partitions and sort order that Levada gave to the table, in JSON. See `ResolvedSettings`."""
    FILL = "levada.fill"
    """The attnums of added columns whose constant is not in the existing rows yet, in JSON."""
    COPY_LEASE = "levada.copy"
    """The copy lease, in JSON: the epoch of the copying driver, and the folder of its files."""
    SET = RECORD
    """The properties that the manifest has set, in JSON."""
    LAST_COMMIT = "levada.last-commit"
    """The watermark, snapshot and schema of Levada's last commit, in JSON. See `LastCommit`."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The numbers of files, rows and bytes of a snapshot."""

    data_files: int
    delete_files: int
    rows: int
    deleted_rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the table. ``mark`` is the watermark in its summary, or None."""

    id: int
    operation: str
    timestamp_ms: int
    mark: Watermark | None
    facts: TableFacts
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag: the ID of its snapshot."""

    snapshot: int
    branch: bool


@dataclass(frozen=True, slots=True)
class LastCommit:
    """Levada's last commit to a table, as recorded in a table property.

    `levada.destinations.iceberg.lineage` defines when it is valid.
    """

    mark: Watermark
    snapshot_id: int
    schema_id: int

    @classmethod
    def parse(cls, text: str | None) -> LastCommit | None:
        """Parse the property. Return None if it is missing or invalid, because any writer can set a property."""
        try:
            kept = json.loads(text or "")
            mark = Watermark(str(kept["pipeline"]), int(kept["epoch"]), Lsn.parse(kept["lsn"]))
            return cls(mark, int(kept["snapshot"]), int(kept["schema"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def to_text(self) -> str:
        """Return the property's text."""
        return json.dumps({**recorded(self.mark), "snapshot": self.snapshot_id, "schema": self.schema_id})


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """One version of a table's metadata.

    ``history`` has the current snapshot and its ancestors up to the first one that has expired, newest first.
    ``snapshots`` has all retained snapshots by ID. ``schemas`` has the column names by
    field ID for each retained schema. ``log`` has the locations of the retained earlier versions, newest first.
    """

    uuid: str
    location: str
    layout: IcebergSchema
    last_field_id: int
    properties: Mapping[str, str]
    history: tuple[Snapshot, ...]
    snapshots: Mapping[int, Snapshot]
    last_commit: LastCommit | None
    schema_id: int
    schemas: Mapping[int, Mapping[int, str]]
    format_version: int
    specs: Mapping[int, Spec]
    spec_id: int
    last_partition_id: int
    order: SortOrder
    order_id: int
    log: tuple[str, ...]
    refs: Mapping[str, Reference] = field(default_factory=dict)
    """The branches and tags by name, with the main branch."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> TableMetadata:
        """Parse a metadata file, which is JSON."""
        properties = data["properties"]
        schema = next(s for s in data["schemas"] if s["schema-id"] == data["current-schema-id"])
        layout = IcebergSchema.of(schema["fields"], _columns(properties.get(Property.COLUMNS.value)))
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
            {s["spec-id"]: read_spec(s["fields"]) for s in data["partition-specs"]},
            data["default-spec-id"],
            data.get("last-partition-id", 0),
            next(
                read_order(o["fields"]) for o in data["sort-orders"] if o["order-id"] == data["default-sort-order-id"]
            ),
            data["default-sort-order-id"],
            tuple(entry["metadata-file"] for entry in reversed(data.get("metadata-log", ()))),
            _references(data.get("refs", {})),
        )

    def changed(self, data: Mapping[str, Any]) -> TableMetadata:
        """Return a later version. ``data`` has its differences, as ``OpenTable.java`` writes them."""
        properties, gone = data["properties"], frozenset(data["removed-snapshots"])
        snapshots = {id_: s for id_, s in self.snapshots.items() if id_ not in gone}
        snapshots |= {s["snapshot-id"]: _snapshot(s) for s in data["snapshots"]}
        refs = {n: ref for n, ref in self.refs.items() if n not in data["removed-refs"]}
        attnums = {int(a): i for a, i in _columns(properties.get(Property.COLUMNS.value)).items()}
        return replace(
            self,
            layout=replace(self.layout, attnums=attnums),
            properties=properties,
            history=_history(snapshots, data.get("current-snapshot-id")),
            snapshots=snapshots,
            last_commit=LastCommit.parse(properties.get(Property.LAST_COMMIT.value)),
            log=tuple(reversed(data["metadata-log"])),
            refs=refs | _references(data["refs"]),
        )

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot's ID, or None in a table without snapshots."""
        return self.history[0].id if self.history else None

    @property
    def facts(self) -> TableFacts:
        """The numbers of files, rows and bytes of the current snapshot."""
        return self.history[0].facts if self.history else TableFacts(0, 0, 0, 0, 0)

    @property
    def arrangement(self) -> ResolvedSettings:
        """The settings of partitions and order that the table has, without the order."""
        return ResolvedSettings.of_text(self.properties.get(Property.ARRANGEMENT.value))

    @property
    def spec(self) -> Spec:
        """The partition spec of new files."""
        return self.specs[self.spec_id]

    @property
    def ever_partitioned(self) -> bool:
        """Whether a file of the table may belong to a partition."""
        return any(self.specs.values())

    @property
    def unpartitioned_spec(self) -> int:
        """The ID of the spec of files that are written without a partition."""
        return next((number for number in (self.spec_id, *self.specs) if not self.specs[number]), self.spec_id)

    @property
    def own_folder(self) -> str | None:
        """The folder of the table's data files if it belongs to this table alone, else None.

        Its name is then the table's UUID. A folder outside of the table's location does not count, because any writer
        can set the property.
        """
        folder = self.properties.get(DATA_PATH, "").rstrip("/")
        own = folder.endswith(f"/{self.uuid}") and lies_below(folder, self.location)
        return f"{folder}/" if own else None

    @property
    def may_remove_files(self) -> bool:
        """False if the table has ``gc.enabled=false``, because other tables may need its files."""
        return self.properties.get("gc.enabled", "true").lower() != "false"

    @property
    def cuts(self) -> dict[str, Lsn]:
        """The LSN of each cut by its tag. A tag that another writer has moved or removed is none."""
        return {n: lsn for n, lsn, id_ in self._recorded_cuts() if self.refs.get(n) == Reference(id_, False)}

    def _recorded_cuts(self) -> Iterator[tuple[str, Lsn, int]]:
        for key, text in self.properties.items():
            if key.startswith(CUT):
                with suppress(ValueError):
                    lsn, snapshot = text.split()
                    yield key.removeprefix(CUT), Lsn.parse(lsn), int(snapshot)

    @property
    def mark(self) -> Watermark | None:
        """The watermark of Levada's last commit. It is valid if `IcebergTable.check_intact` passes."""
        return None if self.last_commit is None else self.last_commit.mark

    @property
    def lsn(self) -> Lsn | None:
        """The LSN of that watermark."""
        return None if self.mark is None else self.mark.lsn


def recorded(mark: Watermark) -> dict[str, str | int]:
    """Return the part of a `LastCommit` that is known before the commit."""
    return {"pipeline": mark.pipeline, "epoch": mark.epoch, "lsn": str(mark.lsn)}


def stamp(mark: Watermark) -> dict[str, str]:
    """Return the entries of a snapshot's summary for a watermark."""
    return {PIPELINE: mark.pipeline, EPOCH: str(mark.epoch), LSN: str(mark.lsn)}


def _columns(text: str | None) -> dict[str, int]:
    """Parse the property. Return an empty dict if it is missing or invalid, because any writer can set a property."""
    try:
        return {str(int(attnum)): int(id_) for attnum, id_ in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _references(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Reference]:
    return {n: Reference(r["snapshot-id"], r["type"] == "branch") for n, r in data.items()}


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
