"""Looks at the catalog are judged in the order of the stream, whichever of the two is ahead."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from levada.errors import LevadaError
from levada.pgoutput.changes import Truncate
from levada.postgres.membership import set_unlogged
from levada.postgres.storage import StorageSnapshot
from levada.runtime.config import RetryLimits
from levada.runtime.tables.catalog_reports import LeavesStreamed, PartitionsCreated, TableAltered, TablesUnpublished
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.retries import park
from levada.runtime.tables.storage_journal import StorageJournal
from levada.schema.flaws import LeafFlaw
from levada.schema.partitions import BoundAt
from levada.schema.storage import ColumnStorage, LeafStorage, TableStorage
from levada.stores import MemoryStore
from levada.stores.phases import DataSync, FinishedCopy, Ready
from levada.values import Lsn, QualifiedTable, TableId

TABLE = TableId(100)
NEW = TableId(203)


def storage(xid: int, filenode: int = 500) -> TableStorage:
    """Return the storage of a partitioned table, both leaves of which were written by a transaction."""
    leaves = {TableId(n): LeafStorage(filenode + n, xid, False, True) for n in (201, 202)}
    return TableStorage(leaves, {1: ColumnStorage(23, -1, 10, False)}, {})


def look(at: int, next_xid: int, seen: TableStorage) -> StorageSnapshot:
    """Return a look at a position of the WAL."""
    return StorageSnapshot(Lsn(at), Lsn(at + 1), next_xid, frozenset(), {TABLE: seen})


def altered(at: int, committed: int, xid: int, seen: TableStorage) -> TableAltered:
    """Return the report of an ALTER TABLE."""
    return TableAltered(TABLE, Lsn(at), Lsn(committed), xid, seen, {})


class Journal:
    """A journal of one table that is copied, and the errors that the table was parked with."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.store = MemoryStore("p")
        self.store.next_epoch()
        self.begin()
        self.record = TableRecord(TABLE, QualifiedTable("public", "t"), Ready())
        self.journal.record_copy(TABLE, Lsn(10), storage(10))

    def begin(self) -> None:
        """Begin with what is in the store, as an engine does that was killed."""
        self.journal = StorageJournal(self.store, self._park)

    def _park(self, record: TableRecord, error: LevadaError) -> None:
        self.errors.append(error.code)

    def truncated(self, xid: int, rows_to: int = 0) -> None:
        """Stage a TRUNCATE of the table, and rows of it that were committed up to an LSN, 0 for none."""
        truncate = Truncate(Lsn(25), 0, (TABLE,), False, False, 0, xid, (QualifiedTable("public", "t"),))
        files = (SimpleNamespace(last_lsn=Lsn(rows_to)),) if rows_to else ()
        manifest: Any = SimpleNamespace(truncates=(truncate,), relations=(), files_of=lambda table: files)
        self.journal.record_segment(manifest)

    def judge(self, staged: int) -> None:
        self.journal.evaluate_snapshots([self.record], Lsn(staged))


def test_a_truncate_is_known_until_a_look_shows_it() -> None:
    """A look from before the TRUNCATE may be judged after it was staged."""
    made = Journal()
    made.journal.add_snapshot(look(20, 20, storage(10)))
    made.truncated(20)
    made.judge(30)
    made.journal.add_snapshot(look(40, 30, storage(20, 900)))
    made.judge(50)
    assert made.errors == []
    # It explains nothing that comes after it.
    made.journal.add_snapshot(look(60, 40, storage(30, 1300)))
    made.judge(70)
    assert made.errors == ["partition_changed"]


def test_a_table_without_rows_since_its_truncate_is_empty() -> None:
    """So it does not matter which savepoint made its files. With a row since, one may have left with a partition."""
    for rows_to, found in ((0, []), (20, []), (25, ["partition_changed"]), (35, ["partition_changed"])):
        made = Journal()
        made.truncated(20, rows_to)
        made.judge(30)
        made.journal.add_snapshot(look(40, 30, storage(21, 900)))
        made.judge(50)
        assert made.errors == found
    # A look from before the TRUNCATE is not explained by it.
    made = Journal()
    made.journal.add_snapshot(look(20, 20, storage(15, 900)))
    made.truncated(20)
    made.judge(30)
    assert made.errors == ["partition_changed"]


def test_looks_are_judged_however_far_the_stream_trails() -> None:
    """While each look is newer than what is staged, the oldest one waits, and no later one takes its place."""
    made = Journal()
    for at in (20, 40, 60):
        made.journal.add_snapshot(look(at, at, storage(15, 900)))
        made.judge(at - 10)
        if at == 40:
            assert made.errors == ["partition_changed"]
    assert made.journal.verified_lsn == 40


def test_a_look_while_a_statement_is_not_committed() -> None:
    """A look that has another reason to be kept does not have the statement, although its LSN is higher."""
    later = altered(38, 60, 35, storage(35, 900)), altered(36, 38, 25, storage(25, 900))
    for report, found in zip(later, (["partition_changed"], []), strict=True):
        made = Journal()
        made.journal.add_snapshot(look(40, 30, replace(storage(10), columns={1: ColumnStorage(23, -1, 12, False)})))
        made.judge(50)
        made.journal.table_altered(made.record, report)
        assert made.errors == found


def with_leaf(xid: int, seen: TableStorage, filenode: int = 700) -> TableStorage:
    """Return the storage with a partition more, which a transaction created."""
    return replace(seen, leaves={**seen.leaves, NEW: LeafStorage(filenode, xid, True, True)})


def created(at: int, committed: int, xid: int) -> PartitionsCreated:
    """Return the report of a new partition."""
    leaves = {NEW: LeafStorage(700, xid, True, True)}
    return PartitionsCreated(TABLE, Lsn(at), Lsn(committed), xid, leaves)


def test_a_new_partition_is_missed_once_a_look_has_it() -> None:
    """A look from before it says nothing about it. If one from after its transaction lacks it, its rows are gone."""
    for shown, found in ((False, []), (True, ["partition_changed"])):
        made = Journal()
        made.journal.table_altered(made.record, created(20, 22, 25))
        made.journal.add_snapshot(look(30, 30 if shown else 24, storage(10)))
        made.judge(40)
        assert made.errors == found
    made = Journal()
    made.journal.table_altered(made.record, created(20, 22, 25))
    for at in (30, 50):
        made.journal.add_snapshot(look(at, at, with_leaf(25, storage(10))))
        made.judge(at + 10)
        assert made.errors == []
    made.journal.add_snapshot(look(70, 70, storage(10)))
    made.judge(80)
    assert made.errors == ["partition_changed"]


def test_a_streamed_partition_that_no_look_shows() -> None:
    """The first look that shows its transaction parks the table if it lacks the partition, also after a kill."""
    for leaf, seen, found in (
        (NEW, storage(10), ["partition_changed"]),
        (NEW, with_leaf(25, storage(10), filenode=NEW), []),
        (NEW, with_leaf(25, storage(10), filenode=700), ["partition_changed"]),
        (TableId(201), storage(10), []),
    ):
        made = Journal()
        made.journal.leaves_streamed(made.record, LeavesStreamed(frozenset({leaf}), TABLE, Lsn(20), 25))
        made.begin()
        made.journal.add_snapshot(look(30, 25, storage(10)))
        made.judge(40)
        assert made.errors == []
        made.begin()
        made.journal.add_snapshot(look(50, 26, seen))
        made.judge(60)
        assert made.errors == found


def test_a_streamed_partition_that_a_copy_lacks() -> None:
    """A copy has the rows as of its LSN, so only partitions that are streamed afterwards count."""
    for at, found in ((20, []), (40, ["partition_changed"])):
        made = Journal()
        made.journal.leaves_streamed(made.record, LeavesStreamed(frozenset({NEW}), TABLE, Lsn(at), at))
        made.journal.record_copy(TABLE, Lsn(30), storage(10))
        made.journal.add_snapshot(look(50, 50, storage(10)))
        made.judge(60)
        assert made.errors == found


def test_a_partition_that_was_attached_by_another_command() -> None:
    """It was detached in between. An unknown command or transaction shows nothing."""
    for attached, command, found in ((10, 3, []), (11, 3, True), (10, 4, True), (10, -1, []), (0, -1, [])):
        made = Journal()
        made.journal.record_copy(TABLE, Lsn(11), placed(10, 3))
        made.journal.add_snapshot(look(20, 20, placed(attached, command)))
        made.judge(30)
        assert made.errors == (["partition_changed"] if found else [])


def placed(attached: int, command: int) -> TableStorage:
    """Return the storage with the command that attached each leaf."""
    before = storage(10)
    path = (BoundAt(TABLE, "DEFAULT", attached, command),)
    return replace(before, leaves={oid: replace(leaf, path=path) for oid, leaf in before.leaves.items()})


def test_a_statement_from_before_a_new_partition_was_visible() -> None:
    """It does not show that the partition is gone, whether its message or a look came first."""
    for looked in (False, True):
        made = Journal()
        made.journal.table_altered(made.record, created(35, 40, 25))
        if looked:
            made.journal.add_snapshot(look(50, 30, with_leaf(25, storage(10))))
            made.judge(55)
        now = replace(storage(10), columns={1: ColumnStorage(23, -1, 20, False)})
        made.journal.table_altered(made.record, altered(30, 60, 20, now))
        assert made.errors == []
        made.journal.add_snapshot(look(70, 70, now))
        made.judge(80)
        assert made.errors == ["partition_changed"]


def test_a_copy_has_the_partitions_from_before_it() -> None:
    """A partition that was created later, while another copy was current, is missed if it is gone."""
    for copied_at, found in ((30, []), (20, ["partition_changed"])):
        made = Journal()
        made.journal.table_altered(made.record, created(20, 22, 25))
        made.journal.record_copy(TABLE, Lsn(copied_at), storage(10))
        made.journal.add_snapshot(look(50, 50, storage(10)))
        made.judge(60)
        assert made.errors == found


def test_a_statement_is_no_longer_needed_after_a_look() -> None:
    """A look with the same storage takes its place. Numbers of transactions come again after four billion."""
    now = replace(storage(10), columns={1: ColumnStorage(23, -1, 20, False)})
    for report in (altered(20, 22, 25, now), created(20, 22, 25)):
        made = Journal()
        made.journal.table_altered(made.record, report)
        seen = with_leaf(25, storage(10)) if isinstance(report, PartitionsCreated) else now
        made.journal.add_snapshot(look(40, 40, seen))
        made.judge(50)
        assert made.errors == []
        made.journal.add_snapshot(look(60, 2**31 + 30, storage(30, 900)))
        made.judge(70)
        assert made.errors == ["partition_changed"]


def unpublished(at: int) -> TablesUnpublished:
    """Return the report of a statement that took the table out of the stream."""
    return TablesUnpublished(frozenset({TABLE}), Lsn(at), set_unlogged)


def test_a_table_out_of_the_stream_is_parked() -> None:
    """It has missed changes, unless a later copy has them."""
    made = Journal()
    made.journal.table_unpublished(made.record, unpublished(9))
    assert made.errors == []
    made.journal.table_unpublished(made.record, unpublished(10))
    assert made.errors == ["table_not_published"]


def test_a_table_that_leaves_the_stream_while_it_is_copied() -> None:
    """The report waits until the position of the copy is known."""
    for copied_at, found in ((20, []), (15, ["table_not_published"])):
        made = Journal()
        made.record.phase = DataSync()
        made.journal.begin_copy(TABLE)
        made.journal.table_unpublished(made.record, unpublished(16))
        made.journal.record_copy(TABLE, Lsn(copied_at), storage(10))
        made.record.phase = FinishedCopy(Lsn(copied_at))
        assert made.errors == []
        made.journal.evaluate_held(made.record)
        assert made.errors == found


def test_a_shadow_copy_of_a_table_that_leaves_the_stream_begins_again() -> None:
    """A parked table that is copied again may be read as of a position before it."""
    made = Journal()
    made.record.phase = park(set_unlogged(made.record.name), 1, RetryLimits(), datetime.now(UTC), needs_resync=True)
    made.journal.table_unpublished(made.record, unpublished(30))
    assert not made.record.resync.outdated
    made.record.resync.request()
    made.journal.table_unpublished(made.record, unpublished(30))
    assert made.errors == []
    assert made.record.resync.outdated


def test_a_flawed_partition_parks_its_table() -> None:
    """A partition whose changes do not fit its root is reported, also by the first look at a table."""
    seen = storage(10)
    flaw = LeafFlaw("identity", QualifiedTable("public", "t_1"), "ALTER TABLE public.t_1 REPLICA IDENTITY FULL")
    leaves = {oid: replace(leaf, flaw=flaw) for oid, leaf in seen.leaves.items()}
    for known in (True, False):
        made = Journal()
        if not known:
            made.journal.forget(TABLE)
        made.journal.add_snapshot(look(20, 20, replace(seen, leaves=leaves)))
        made.judge(30)
        assert made.errors == ["partition_identity"]
