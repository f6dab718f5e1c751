"""Inputs of a destination, held in memory: copied rows, and batches of events."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from levada.copy.rows import TableRows
from levada.pgoutput.changes import Truncate
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED, XID, change_schema
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.manifest import SegmentFile
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId, TableMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
NOW = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)


def column(attnum: int, name: str, kind: Kind, **more: Any) -> Column:
    """A column of a simple type; ``precision``, ``scale`` and ``element`` go to its type."""
    shape = {k: more.pop(k) for k in ("precision", "scale", "element") if k in more}
    return Column(attnum, name, ColumnType(kind, **shape), type_name=kind.value, type_oid=0, **more)


def table(
    *columns: Column,
    key: Sequence[int] = (1,),
    id: int = 16400,  # noqa: A002 - it is the table's id
    name: str = "public.orders",
    version: int = 0,
    identity: IdentityKind = IdentityKind.PRIMARY_KEY,
) -> ReplicatedTableSchema:
    """A table's version."""
    return ReplicatedTableSchema(
        TableId(id), QualifiedTable.parse(name), columns, identity, tuple(key), tuple(key), SnapshotId(version)
    )


class MemoryRows(TableRows):
    """The rows of a copy, a partition each; functions are pickled as Spark pickles them."""

    def __init__(self, schema: ReplicatedTableSchema, *partitions: list[dict[str, Any]]) -> None:
        self.schema = schema
        self._partitions = [pa.RecordBatch.from_pylist(p, schema.arrow) for p in partitions]

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        return [
            pickle.loads(pickle.dumps(fn))(pa.RecordBatchReader.from_batches(self.schema.arrow, [p]))
            for p in self._partitions
        ]

    def to_spark(self) -> DataFrame:
        raise NotImplementedError

    def batches(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema.arrow, self._partitions)


@dataclass
class MemoryEvents(TableEvents):
    """Changes of one table, in one file or many."""

    target: TableTarget
    rows_: list[dict[str, Any]]
    truncates: tuple[Truncate, ...]
    after: Lsn
    until: Lsn
    versions: tuple[ReplicatedTableSchema, ...] = ()
    files: tuple[SegmentFile, ...] = ()
    group: int = 1000

    def __post_init__(self) -> None:
        self.versions = self.versions or (self.schema,)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        layout = change_schema(self.schema, old=True, unchanged=True, unrepresentable=True)
        kept = [r for r in self.rows_ if self.after <= r[COMMIT_LSN] < self.until]
        for i in range(0, len(kept), self.group):
            batch = pa.RecordBatch.from_pylist(kept[i : i + self.group], layout)
            yield batch if columns is None else batch.select(list(columns))


class MemoryBatch(EventBatch):
    """A batch of one table."""

    def __init__(self, events: MemoryEvents) -> None:
        self.tables = (events.schema.id,)
        self.until = events.until
        self._events = events

    def changes(self, table: TableId) -> TableEvents:
        assert table == self._events.schema.id
        return self._events

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


@dataclass
class Stream:
    """Writes changes down as a source would tell them, one transaction each, and remembers them."""

    schema: ReplicatedTableSchema
    lsn: int = 1000
    rows: list[dict[str, Any]] = field(default_factory=list)
    truncates: list[Truncate] = field(default_factory=list)
    taken: int = 1000
    versions: list[ReplicatedTableSchema] = field(default_factory=list)
    mode: TableMode = TableMode.UPSERT

    def _next(self) -> int:
        self.lsn += 10
        return self.lsn

    def _add(self, op: str, row: dict[str, Any], **more: Any) -> None:
        lsn = self._next()
        self.rows.append({**row, OP: op, COMMIT_LSN: lsn, ORDINAL: 0, COMMIT_TS: NOW, XID: lsn, **more})

    def insert(self, **row: Any) -> None:
        self._add("I", row)

    def update(
        self, *, old: dict[str, Any] | None = None, old_kind: str = "K", unchanged: Sequence[int] = (), **row: Any
    ) -> None:
        more: dict[str, Any] = {UNCHANGED: list(unchanged)} if unchanged else {}
        if old is not None:
            more |= {OLD: old, OLD_KIND: old_kind}
        self._add("U", row, **more)

    def delete(self, *, old_kind: str = "K", **row: Any) -> None:
        self._add("D", row, **{OLD_KIND: old_kind})

    def truncate(self) -> None:
        lsn = self._next()
        self.truncates.append(Truncate(Lsn(lsn), 0, (self.schema.id,), False, False, int(NOW.timestamp() * 1e6), lsn))

    def alter(self, schema: ReplicatedTableSchema) -> None:
        """From here on, rows have this version; earlier ones of the batch are projected to it by their names."""
        lsn = self._next()
        self.versions.append(self.schema)
        self.schema = replace(schema, snapshot_id=SnapshotId(lsn))

    def batch(self, *, since: int | None = None, group: int = 1000) -> MemoryBatch:
        """Everything since the last batch (or since an LSN), up to now."""
        after = self.taken if since is None else since
        self._next()
        events = MemoryEvents(
            TableTarget.of(self.schema, self.mode),
            self.rows,
            tuple(t for t in self.truncates if t.commit_lsn >= after),
            Lsn(after),
            Lsn(self.lsn),
            (*self.versions, self.schema),
            group=group,
        )
        self.taken = self.lsn
        self.versions = []
        return MemoryBatch(events)
