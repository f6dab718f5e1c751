"""Rows whose finished ranges outlive the copy, so that the next attempt reads only the others.

`levada.copy.kept` has the rules. This module carries them out within one attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa

from levada import codes
from levada.copy.guard import TableGuard
from levada.copy.kept import KeptCopy, range_name
from levada.copy.keyed_rows import KeyedRows, keyed_rows
from levada.copy.plan import RANGES, BlockRange, RangeLimits, RangePlan
from levada.copy.range_reader import RangeReader
from levada.copy.rows import CopiedRows, FinishedRange, RangeKeeper
from levada.copy.snapshot import SnapshotRows, run_range
from levada.copy.tasks import TaskRunner
from levada.errors import LevadaError, Transient, Unrepresentable
from levada.mask_keys import NO_KEY_FILES, MaskKeyFiles
from levada.postgres.connection import PostgresConnection
from levada.postgres.slots import ExportedSnapshot
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, OnUnrepresentable

if TYPE_CHECKING:
    from levada.postgres.catalog import PublishedTable

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SAVE_EVERY_S: Final = 2.0
_LOADERS: Final = 8


class ChangedKeys(Protocol):
    """The keys that changed between two snapshots, according to the stream. ``keys`` has them without duplicates."""

    @property
    def keys(self) -> pa.Table:
        """The key columns of the changed rows."""
        ...

    def exist(self, found: pa.Table) -> bool:
        """Return True if exactly these keys exist in the second snapshot. ``found`` may be in any order."""
        ...


@dataclass(frozen=True, slots=True)
class Keeping:
    """The record of the finished ranges of a copy, and the changes that complete them.

    ``basis`` and ``since`` are those of this attempt, see `KeptCopy`. ``kept`` is the record of the earlier attempts
    with the same basis, None without one. ``save`` stores a record, or deletes it if it is None. ``changes`` returns
    the keys that changed from the first snapshot on and below the second one. It waits until the stream has staged
    them, raises the error that its last argument returns, and raises Transient ``copy_outdated`` if they cannot be had.
    """

    basis: str
    since: Lsn
    kept: KeptCopy | None
    save: Callable[[KeptCopy | None], None]
    changes: Callable[[Lsn, Lsn, int, Callable[[], LevadaError | None]], ChangedKeys]


BEGINS_AGAIN: Final = "if it is interrupted, the copy begins again, because"
"""The beginning of a note about a copy that cannot be resumed."""


def outdated(schema: ReplicatedTableSchema, why: str) -> Transient:
    """Return the error of a copy whose finished ranges cannot be used."""
    return Transient("copy_outdated", f"the interrupted copy of {schema.name} begins again: {why}")


class ResumableRows(SnapshotRows):
    """The rows of a copy that is resumed after an interruption. The parameters are those of `SnapshotRows`.

    A copy with no more ranges than connections is not kept, because all of its ranges are read at the same time.
    """

    def __init__(
        self,
        runner: TaskRunner,
        connection: PostgresConnection,
        snapshot: ExportedSnapshot,
        published: PublishedTable,
        schema: ReplicatedTableSchema,
        *,
        keeping: Keeping,
        connections: int,
        policy: OnUnrepresentable,
        cancelled: threading.Event,
        guard: TableGuard,
        note: str = "",
        limits: RangeLimits = RANGES,
        mask_keys: MaskKeyFiles = NO_KEY_FILES,
    ) -> None:
        super().__init__(
            runner,
            connection,
            snapshot,
            published,
            schema,
            connections=connections,
            policy=policy,
            cancelled=cancelled,
            guard=guard,
            note=note,
            limits=limits,
            mask_keys=mask_keys,
        )
        self._note = note
        self._limits = limits
        self._lsn = snapshot.lsn
        self._published = published
        self._keeping = keeping
        self._kept = keeping.kept
        self._complete = False

    @property
    def kept_place(self) -> str | None:  # type: ignore[override]  # a destination only reads it
        """The place of the finished ranges, None if there are none."""
        return None if self._kept is None else self._kept.place

    @property
    def complete(self) -> bool:
        """True once all rows were read."""
        return self._complete

    def forget(self) -> None:
        """Give the finished ranges up, so that the next copy reads every range."""
        # After an error of the first call, the files are still kept.
        self._keeping.save(None)
        self._kept = None

    def map_ranges(self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T]) -> CopiedRows[T]:
        """Run ``fn`` for each range that is not finished, and for the rows that changed since the first snapshot.

        Raise Transient ``copy_outdated`` if the finished ranges cannot be completed. They are forgotten then.
        """
        kept = self._kept
        if kept is None or kept.place != keeper.place:
            self._kept = None
            plan = RangePlan.of(self._published.leaves, self._connections, self._limits)
            if len(self.ranges) <= self._connections:
                why = "all of its ranges are read at the same time"
                self._meter.describe(resumable=False, note=f"{BEGINS_AGAIN} {why}")
                return CopiedRows((tuple(self.map_partitions(fn)),))
            kept = KeptCopy(self._keeping.basis, keeper.place, self._keeping.since, plan, {})
        try:
            copied = self._map_ranges(fn, keeper, kept)
        except Transient as error:
            if error.code == codes.COPY_OUTDATED:
                self.forget()
            raise
        self._complete = True
        return copied

    def _map_ranges(
        self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T], kept: KeptCopy
    ) -> CopiedRows[T]:
        self.ranges = kept.plan.ranges()
        self._meter.plan(sum(r.bytes for r in self.ranges), len(self.ranges))
        self._meter.describe(resumable=True, note=self._note)
        self._meter.start()
        earlier = self._load(keeper, kept)
        left = [i for i in range(len(self.ranges)) if i not in kept.ranges]
        if earlier:
            _log.info("%s: %d of %d ranges were copied before", self.schema.name, len(kept.ranges), len(self.ranges))
        journal = _Journal(kept, self._lsn, self._save)
        tasks = [partial(_run_kept, self._reader, self.ranges[i], fn, keeper, range_name(self._lsn, i)) for i in left]

        def done(number: int, result: FinishedRange[T]) -> None:
            self._count(left[number], result)
            journal.finished(left[number])

        try:
            results = self._run(tasks, done)
        except LevadaError:
            journal.save()
            raise
        now = tuple(r.value for r in results)
        names = tuple(range_name(lsn, i) for lsn, found in kept.finished.items() for i in found)
        names += tuple(range_name(self._lsn, i) for i in left)
        # If the copy ends from here on, the next attempt reads only the changes.
        journal.save()
        first = kept.first_lsn
        if first is None:
            self.check()
            return CopiedRows((now,), names=names)
        keys, changed = self._read_changes(fn, first, kept)
        self.check()
        return CopiedRows((*earlier, now), keys, changed, names)

    def _load(self, keeper: RangeKeeper[T], kept: KeptCopy) -> tuple[tuple[T, ...], ...]:
        """Return the kept results by snapshot, and count them."""
        snapshots = []
        with ThreadPoolExecutor(_LOADERS) as pool:
            for lsn in sorted(kept.finished):
                indices = sorted(kept.finished[lsn])
                try:
                    results = list(pool.map(keeper.load, [range_name(lsn, i) for i in indices]))
                except LevadaError as error:
                    if error.retried:
                        raise
                    raise outdated(self.schema, f"its files cannot be read: {error.message}") from error
                for index, result in zip(indices, results, strict=True):
                    self._count(index, result, earlier=True)
                snapshots.append(tuple(r.value for r in results))
        return tuple(snapshots)

    def _save(self, kept: KeptCopy) -> None:
        self._keeping.save(kept)
        self._kept = kept

    def _read_changes(
        self, fn: Callable[[pa.RecordBatchReader], T], first: Lsn, kept: KeptCopy
    ) -> tuple[pa.Table, tuple[T, ...]]:
        if self._lsn <= max(kept.finished):
            raise outdated(self.schema, "its snapshot is not newer than those of earlier attempts")
        changes = self._keeping.changes(first, self._lsn, self._meter.progress().rows, self._stopped)
        leaves = [leaf.name for leaf in self._published.leaves]
        parts = keyed_rows(self.schema, leaves, changes.keys)
        names = [c.name for c in self.schema.key_columns]
        shares = [parts[i :: self._connections] for i in range(min(self._connections, len(parts)))]
        _log.info("%s: reading %d rows that changed since %s", self.schema.name, changes.keys.num_rows, first)
        tasks = [partial(_run_keyed, self._reader, share, fn, names) for share in shares]
        try:
            results = self._run(tasks, lambda number, result: None)
        except Unrepresentable:
            raise
        except LevadaError as error:
            if error.retried:
                raise
            # Without the message, which may have a value of a key.
            raise outdated(self.schema, f"its changed rows cannot be read by their keys [{error.code}]") from None
        found = pa.concat_tables([changes.keys.slice(0, 0).select(names), *(keys for _, keys in results)])
        if not changes.exist(found):
            raise outdated(self.schema, "the changed rows are not those of the stream")
        for result, _ in results:
            self._meter.add_unrepresentable(result.unrepresentable)
        return changes.keys, tuple(result.value for result, _ in results)

    def _stopped(self) -> LevadaError | None:
        if self._cancelled.is_set():
            return Transient("copy_cancelled", f"copy of {self.schema.name}: the process is stopping")
        return self._ended()


class _Journal:
    """Records finished ranges of one snapshot. The last seconds before a crash may be lost. Thread-safe."""

    def __init__(self, kept: KeptCopy, lsn: Lsn, save: Callable[[KeptCopy], None]) -> None:
        self._kept = kept
        self._lsn = lsn
        self._save = save
        self._lock = threading.Lock()
        self._saved = kept
        self._saved_at = -_SAVE_EVERY_S

    def finished(self, index: int) -> None:
        with self._lock:
            self._kept = self._kept.with_finished(self._lsn, [index])
            if time.monotonic() - self._saved_at >= _SAVE_EVERY_S:
                self._store()

    def save(self) -> None:
        with self._lock:
            if self._kept != self._saved:
                self._store()

    def _store(self) -> None:
        self._save(self._kept)
        self._saved, self._saved_at = self._kept, time.monotonic()


def _run_kept(
    reader: RangeReader, part: BlockRange, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T], name: str
) -> FinishedRange[T]:  # runs in a Python worker
    finished = run_range(reader, part, fn)
    keeper.save(name, finished)
    return finished


def _run_keyed(
    reader: RangeReader, parts: Sequence[KeyedRows], fn: Callable[[pa.RecordBatchReader], T], names: Sequence[str]
) -> tuple[FinishedRange[T], pa.Table]:  # runs in a Python worker
    keys: list[Any] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            for batch in reader.batches(part):
                keys.append(batch.select(names))
                yield batch

    value = fn(pa.RecordBatchReader.from_batches(reader.schema.arrow, batches()))
    layout = pa.schema([reader.schema.arrow.field(name) for name in names])
    return FinishedRange(value, reader.rows, reader.unrepresentable), pa.Table.from_batches(keys, layout)
