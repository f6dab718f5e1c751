"""The events of staged batches: each in the columns that it had, the same however the stream is cut."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.segments.changes import batch, changes, column, insert, table

from levada.apply.applier import Applier
from levada.pgoutput.changes import RelationChange, TableChanges, Truncate
from levada.pgoutput.events import Begin, Commit, Event, Insert, RelationEvent
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.segments import StagedBatch, Staging, TableStart
from levada.segments.limits import FileLimits
from levada.segments.log import SegmentLog
from levada.stores.memory import MemoryStore
from levada.testing.memory import MemoryDestination, MemoryTable, MemoryTables
from levada.values import Lsn, SnapshotId, TableId, Watermark

Item = TableChanges | RelationChange | Truncate
ID = column(1, "id", Kind.INT8)


def test_rows_are_shown_in_the_columns_that_they_had(tmp_path: Path) -> None:
    """Rows, RelationEvent with the new columns, rows: a dropped column's value is there before it, a new one is not."""
    first = table(1, ID, column(2, "gone"))
    second = table(1, ID, column(2, "gone"), column(3, "more"), at=16)
    third = table(1, ID, column(3, "more"), at=24)
    staging = Staging.open(str(tmp_path))
    log = SegmentLog(staging, "shop")
    writer = log.writer(1, Lsn(0))
    writer.add(
        batch(
            changes(first, [insert(8, 0, id=1, gone="x")]),
            RelationChange(Lsn(16), 0, second),
            changes(second, [insert(16, 0, id=2, gone="y", more="m")]),
            RelationChange(Lsn(24), 0, third),
            changes(third, [insert(24, 0, id=3, more="n")]),
            end=32,
        )
    )
    writer.commit(Lsn(32))
    events = list(StagedBatch(staging, log.list(), [TableStart(TableTarget.of(first), Lsn(0))], Lsn(32)))
    shown = [
        (e.schema.snapshot_id, dict(e.row.values) if isinstance(e, Insert) else None)
        for e in events
        if isinstance(e, Insert | RelationEvent)
    ]
    assert shown == [
        (0, {"id": 1, "gone": "x"}),
        (16, None),
        (16, {"id": 2, "gone": "y", "more": "m"}),
        (24, None),
        (24, {"id": 3, "more": "n"}),
    ]
    assert [(e.commit_lsn, e.ordinal) for e in events] == sorted((e.commit_lsn, e.ordinal) for e in events)


@dataclass
class Source:
    """A made-up stream of two tables, and the versions that a store has of them."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore("shop"))
    current: dict[int, ReplicatedTableSchema] = field(default_factory=dict)
    transactions: list[tuple[int, int, list[Item]]] = field(default_factory=list)
    next_lsn: int = 1000
    next_attnum: int = 10
    next_id: int = 1

    def __post_init__(self) -> None:
        for number in (1, 2):
            self.current[number] = table(number, ID, column(2, "note"))
            self.store.store_table_schema(self.current[number])

    def add(self, steps: list[tuple[str, int]], *, adjacent: bool) -> None:
        """Add a transaction. An adjacent one's COMMIT record follows the one before without a gap."""
        lsn = self.next_lsn if adjacent else self.next_lsn + 1000
        self.next_lsn = lsn + 50
        items: list[Item] = []
        ordinal, altered = 0, dict.fromkeys(self.current, 0)
        for kind, number in steps:
            schema = self.current[number]
            if kind == "row":
                values: dict[str, Any] = {c.name: f"{c.name}{self.next_id}" for c in schema.columns if c.attnum > 1}
                items.append(changes(schema, [insert(lsn, ordinal, id=self.next_id, **values)]))
                self.next_id += 1
                ordinal += 1
            elif kind == "truncate":
                items.append(Truncate(Lsn(lsn), ordinal, (TableId(number),), False, False, lsn, lsn, (schema.name,)))
                ordinal += 1
            else:
                version = SnapshotId(lsn + altered[number])
                altered[number] += 1
                newer = replace(schema, columns=self._altered(schema, kind), snapshot_id=version)
                self.current[number] = newer
                self.store.store_table_schema(newer)
                items.append(RelationChange(Lsn(lsn), ordinal, newer))
        self.transactions.append((lsn, self.next_lsn, items))

    def _altered(self, schema: ReplicatedTableSchema, kind: str) -> tuple[Any, ...]:
        self.next_attnum += 1
        more = column(self.next_attnum, f"c{self.next_attnum}")
        if kind == "add" or len(schema.columns) == 1:
            return (*schema.columns, more)
        if kind == "drop":
            return schema.columns[:-1]
        return (*schema.columns[:-1], replace(schema.columns[-1], name=f"r{self.next_attnum}"))

    def events(
        self, folder: Path, segments: list[int], starts: list[int], limits: FileLimits | None = None
    ) -> list[Event]:
        """Return the events of batches that begin at each of ``starts``, from segments of so many transactions."""
        staging = replace(Staging.open(str(folder)), limits=limits or FileLimits())
        log = SegmentLog(staging, "shop")
        begin, left = Lsn(0), list(self.transactions)
        for size in [*segments, len(left)]:
            taken, left = left[:size], left[size:]
            if taken:
                writer = log.writer(1, begin)
                writer.add(batch(*[i for t in taken for i in t[2]], end=taken[-1][1], transactions=len(taken)))
                if not writer.empty:
                    writer.commit(Lsn(taken[-1][1]))
                    begin = Lsn(taken[-1][1])
        manifests = log.list()
        ends = [m.end_lsn for m in manifests]
        cuts = sorted({Lsn(0), *(ends[i % len(ends)] for i in starts)}) if ends else [Lsn(0)]
        events: list[Event] = []
        for after, until in zip(cuts, [*cuts[1:], Lsn(2**40)], strict=True):
            applier = Applier("shop", 1, staging, self.store, TableTarget.of, None, None, None)  # type: ignore[arg-type]
            begins = [TableStart(TableTarget.of(applier.schema(TableId(n), after)), after) for n in (1, 2)]
            events += StagedBatch(staging, [m for m in manifests if m.end_lsn > after], begins, until)
        return events


STEPS = st.lists(
    st.tuples(st.sampled_from(["row", "row", "row", "truncate", "add", "drop", "rename"]), st.sampled_from([1, 2])),
    min_size=1,
    max_size=6,
)
TRANSACTIONS = st.lists(st.tuples(STEPS, st.booleans()), min_size=1, max_size=8)


@settings(max_examples=40)
@given(
    stream=TRANSACTIONS,
    segments=st.lists(st.integers(1, 3), max_size=4),
    starts=st.lists(st.integers(0, 9)),
    inline_bytes=st.sampled_from([0, 1450, 4096]),
)
@example(
    stream=[([("row", 1)], False), ([("row", 1), ("add", 1), ("row", 1)], True)],
    segments=[1],
    starts=[0],
    inline_bytes=0,
)
def test_any_cut_gives_the_same_events(
    stream: list[tuple[list[tuple[str, int]], bool]], segments: list[int], starts: list[int], inline_bytes: int
) -> None:
    """However a stream is cut into segments and batches, its events are the same, value for value."""
    source = Source()
    for steps, adjacent in stream:
        source.add(steps, adjacent=adjacent)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole = source.events(Path(one), [], [])
        assert source.events(Path(other), segments, starts, FileLimits(inline_bytes=inline_bytes)) == whole
    shown = [(e.commit_lsn, e.ordinal) for e in whole]
    assert shown == sorted(shown)
    for bound in (Begin, Commit):
        assert [e.commit_lsn for e in whole if isinstance(e, bound)] == [lsn for lsn, _, _ in source.transactions]
    assert [type(e) for e in whole[:: len(whole) - 1]] == [Begin, Commit]


def test_a_version_that_begins_where_a_batch_begins_is_a_change_of_the_batch(tmp_path: Path) -> None:
    """A COMMIT record can begin where the one before it ends: the batch starts with the version before it."""
    source = Source()
    source.add([("row", 1)], adjacent=False)
    source.add([("add", 1), ("row", 1)], adjacent=True)
    (_, end, _), (begin, _, _) = source.transactions
    assert begin == end
    applier = Applier("shop", 1, Staging.open(str(tmp_path)), source.store, TableTarget.of, None, None, None)  # type: ignore[arg-type]
    assert applier.schema(TableId(1), Lsn(begin)).snapshot_id == 0
    assert applier.schema(TableId(1), Lsn(begin + 1)).snapshot_id == begin


def test_a_shadow_copy_takes_no_changes_of_another_key(tmp_path: Path) -> None:
    """Its rows would not be found, also if the table gets the former key again before the copy is compared with it."""
    first = replace(table(1, ID, column(2, "other", Kind.INT8)), key=(1,), identity_attnums=(1,))
    other = replace(first, key=(2,), identity_attnums=(2,), snapshot_id=SnapshotId(16))
    staging, source = Staging.open(str(tmp_path)), Source()
    writer = SegmentLog(staging, "shop").writer(1, Lsn(0))
    writer.add(batch(RelationChange(Lsn(16), 0, other), changes(other, [insert(16, 0, id=1, other=1)]), end=32))
    manifests = [writer.commit(Lsn(32))]
    # The destination takes every change of its shadow copy.
    shadow = MemoryTable(first, Watermark("shop", 1, Lsn(8)), {})
    destination = MemoryDestination(MemoryTables(shadows={TableId(1): shadow}))
    applier = Applier("shop", 1, staging, source.store, TableTarget.of, destination, None, None)  # type: ignore[arg-type]
    assert applier.run_shadow(first, Lsn(8), manifests) is None
    assert destination.place.shadows == {TableId(1): shadow}
