"""A made-up source: tables whose changes are staged in real segments, as capture stages them."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydantic import BaseModel

from levada.pgoutput.changes import TRANSACTIONS, ChangeBatch, RelationChange, TableChanges, Truncate
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import (
    COMMIT_LSN,
    COMMIT_TS,
    OLD,
    OLD_KIND,
    OP,
    ORDINAL,
    UNCHANGED,
    UNREPRESENTABLE,
    XID,
    change_schema,
)
from levada.schema.metadata import NO_METADATA, RowMetadata
from levada.segments import Manifest, SegmentWriter, StagedBatch, Staging, TableStart
from levada.segments.ledger import Ledger
from levada.segments.limits import BatchLimits
from levada.values import (
    Deletes,
    Lsn,
    OnUnrepresentable,
    QualifiedTable,
    SnapshotId,
    TableId,
    TableMode,
    Watermark,
    Witness,
)

NOW: Final = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
"""The commit time of every transaction."""
COPIED: Final = Lsn(1000)
"""The LSN of copies. All changes of a `Source` are later."""
_STEP: Final = 10

Item = TableChanges | RelationChange | Truncate


def column(attnum: int, name: str, kind: Kind, **more: Any) -> Column:
    """Return a column. ``precision``, ``scale`` and ``element`` go to its type, and the rest to `Column`."""
    shape = {k: more.pop(k) for k in ("precision", "scale", "element", "notation", "native") if k in more}
    return Column(attnum, name, ColumnType(kind, **shape), type_name=kind.value, type_oid=0, **more)


def table(
    *columns: Column,
    key: Sequence[int] = (1,),
    id: int = 16400,  # noqa: A002 - it is the table's id
    name: str = "public.orders",
    version: int = 0,
    identity: IdentityKind = IdentityKind.PRIMARY_KEY,
) -> ReplicatedTableSchema:
    """Return a version of a table. ``key`` has the attnums of its key, and ``name`` its schema and its name."""
    return ReplicatedTableSchema(
        TableId(id), QualifiedTable.parse(name), columns, identity, tuple(key), tuple(key), SnapshotId(version)
    )


class Source:
    """Tables and their WAL. Changes are staged in ``folder``, by default a temporary one.

    Each change is a transaction of its own, unless it is made within `transaction`. With ``row_group_bytes=1`` each
    transaction's rows are read as one Arrow batch.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        pipeline: str = "shop",
        row_group_bytes: int = 8 << 20,
        lsn: int = int(COPIED),
        limits: BatchLimits | None = None,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="levada-") if folder is None else None
        where = folder if self._temporary is None else Path(self._temporary.name)
        self.staging = Staging.open(str(where), durable=False)
        self.pipeline = pipeline
        self.lsn = lsn
        """The commit LSN of the last transaction."""
        self.limits = limits
        """The sizes of the parts in which a destination processes a batch, None for the engine's."""
        self.manifests: list[Manifest] = []
        self._ledger = Ledger()
        self._row_group_bytes = row_group_bytes
        self._pending: list[ChangeBatch] = []
        self._open: list[Item] | None = None
        self._ordinal = 0

    def add(self, schema: ReplicatedTableSchema, mode: TableMode = TableMode.UPSERT) -> SourceTable:
        """Return a table of the source. Its changes begin after `COPIED`."""
        return SourceTable(self, schema, mode)

    def mark(self, lsn: int, epoch: int = 1) -> Watermark:
        """Return a watermark of the pipeline."""
        return Watermark(self.pipeline, epoch, Lsn(lsn))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes within one transaction."""
        self.lsn += _STEP
        self._open, self._ordinal = [], 0
        try:
            yield
        finally:
            items, self._open = self._open, None
            rows = sum(i.rows.num_rows for i in items if isinstance(i, TableChanges))
            end, at = Lsn(self.lsn + _STEP // 2), int(NOW.timestamp() * 1e6)
            values = (self.lsn, self.lsn - _STEP // 2, int(end), self.lsn, at, self._ordinal)
            committed = pa.Table.from_pylist([dict(zip(TRANSACTIONS.names, values, strict=True))], TRANSACTIONS)
            last = Witness(end, self.lsn, at)
            self._pending.append(ChangeBatch(tuple(items), rows, 1, end, False, last, committed, None))

    def batch(
        self, *parts: SourceTable, since: int | None = None, policy: OnUnrepresentable = OnUnrepresentable.ERROR
    ) -> StagedBatch:
        """Return the changes of the tables since their last batch, or since an LSN, up to now."""
        self._stage()
        until = Lsn(self.lsn + _STEP)
        self.lsn = int(until)
        starts = [p.start(since) for p in parts]
        begin = min(s.after for s in starts)
        manifests = [m for m in self.manifests if m.end_lsn > begin]
        for part in parts:
            part.taken = int(until)
        return StagedBatch(self.staging, manifests, starts, until, policy, self.limits)

    def write(self, item: Item) -> None:
        """Add an item to the open transaction, or to a transaction of its own."""
        if self._open is None:
            raise AssertionError("write within a transaction")
        self._open.append(item)
        if not isinstance(item, RelationChange):
            self._ordinal += 1

    @contextmanager
    def change(self) -> Iterator[tuple[Lsn, int]]:
        """Yield the commit LSN and the ordinal of the next change, which is in the open or in a new transaction."""
        if self._open is None:
            with self.transaction():
                yield Lsn(self.lsn), self._ordinal
        else:
            yield Lsn(self.lsn), self._ordinal

    def _stage(self) -> None:
        if not self._pending:
            return
        start = self.manifests[-1].end_lsn if self.manifests else Lsn(0)
        writer = SegmentWriter(
            self.staging, self.pipeline, 1, start, ledger=self._ledger, row_group_bytes=self._row_group_bytes
        )
        for batch in self._pending:
            writer.add(batch)
        self._pending = []
        if not writer.empty:
            self.manifests.append(writer.commit(Lsn(self.lsn + _STEP // 2)))


@dataclass
class SourceTable:
    """A table of a made-up source."""

    source: Source
    schema: ReplicatedTableSchema
    """The current version."""
    mode: TableMode = TableMode.UPSERT
    name: QualifiedTable | None = None
    """The name at the destination, if it is not that of the source."""
    settings: BaseModel | None = None
    """The destination's settings of the table."""
    deletes: Deletes = Deletes.APPLY
    """The effect of deletes."""
    metadata: RowMetadata = NO_METADATA
    """The columns that describe the last change of each row."""
    taken: int = int(COPIED)
    """The end of the last batch."""
    versions: list[tuple[int, ReplicatedTableSchema]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions.append((int(COPIED), self.schema))

    @property
    def target(self) -> TableTarget:
        """The table in its current version."""
        return self._target(self.schema)

    def insert(self, **row: Any) -> None:
        """Insert a row."""
        self._add("I", row)

    def update(
        self,
        *,
        old: Mapping[str, Any] | None = None,
        old_kind: str = "K",
        unchanged: Sequence[int] = (),
        **row: Any,
    ) -> None:
        """Update a row. ``old`` has the old key if it changes, or the old row with the ``old_kind`` ``O``.

        ``unchanged`` has the attnums of columns whose values the stream leaves out.
        """
        more: dict[str, Any] = {UNCHANGED: list(unchanged)} if unchanged else {}
        if old is not None:
            more |= {OLD: dict(old), OLD_KIND: old_kind}
        self._add("U", row, **more)

    def delete(self, *, old_kind: str = "K", **row: Any) -> None:
        """Delete a row, which is given by its key, or completely with the ``old_kind`` ``O``."""
        self._add("D", row, **{OLD_KIND: old_kind, OLD: None})

    def insert_unrepresentable(self, attnum: int, text: str, **row: Any) -> None:
        """Insert a row with a value that the column's Arrow type cannot hold."""
        self._add("I", row, **{UNREPRESENTABLE: [(attnum, text)]})

    def truncate(self) -> None:
        """Truncate the table."""
        with self.source.change() as (lsn, ordinal):
            at = int(NOW.timestamp() * 1e6)
            self.source.write(
                Truncate(lsn, ordinal, (self.schema.id,), False, False, at, int(lsn), (self.schema.name,))
            )

    def alter(self, schema: ReplicatedTableSchema) -> None:
        """Give the following rows another version of the schema."""
        with self.source.change() as (lsn, ordinal):
            self.schema = replace(schema, snapshot_id=SnapshotId(lsn))
            self.versions.append((int(lsn), self.schema))
            self.source.write(RelationChange(lsn, ordinal, self.schema))

    def batch(self, *, since: int | None = None, policy: OnUnrepresentable = OnUnrepresentable.ERROR) -> StagedBatch:
        """Return the table's changes since the last batch, or since an LSN, up to now."""
        return self.source.batch(self, since=since, policy=policy)

    def start(self, since: int | None = None) -> TableStart:
        """Return the start of the next batch: the end of the last one, or ``since``."""
        after = self.taken if since is None else since
        before = next(v for at, v in reversed(self.versions) if at <= int(COPIED) or at < after)
        return TableStart(self._target(before).with_schema(before), Lsn(after))

    def _target(self, schema: ReplicatedTableSchema) -> TableTarget:
        target = TableTarget.of(schema, self.mode, self.name, self.settings)
        return target.keeping(self.deletes).describing(self.metadata)

    def _add(self, op: str, row: Mapping[str, Any], **more: Any) -> None:
        with self.source.change() as (lsn, ordinal):
            change = {**row, OP: op, COMMIT_LSN: int(lsn), ORDINAL: ordinal, COMMIT_TS: NOW, XID: int(lsn), **more}
            layout = change_schema(
                self.schema, old=OLD_KIND in more, unchanged=UNCHANGED in more, unrepresentable=UNREPRESENTABLE in more
            )
            self.source.write(TableChanges(self.schema, pa.RecordBatch.from_pylist([change], layout)))
