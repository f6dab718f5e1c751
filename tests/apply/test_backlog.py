"""The backlog keeps exactly the segments that some table still needs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.rigs.segments import segment

from levada.apply.backlog import Backlog, Pending
from levada.values import Lsn, TableId


def test_table_without_staged_changes_is_as_far_as_staging() -> None:
    """A table that nothing was staged for has nothing left up to what is staged."""
    backlog = Backlog()
    backlog.track(TableId(1), Lsn(5))
    assert backlog.position(TableId(1), Lsn(100)) == 100
    assert backlog.min_applied_lsn(Lsn(100)) == 100


def test_table_waiting_for_its_copy_keeps_no_segment() -> None:
    """A segment that is staged before a copy begins is in the copy's snapshot, so no table keeps it."""
    backlog = Backlog()
    backlog.track(TableId(1), Lsn(0), holds=False)
    backlog.add_segment(segment(10, 20, {1: 5}))
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [20]
    backlog.track(TableId(1), Lsn(20))
    backlog.add_segment(segment(20, 30, {1: 5}))
    assert backlog.pop_unneeded() == ()
    assert backlog.pending(TableId(1)).rows == 5


def test_one_slow_table_keeps_the_segments_that_it_shares() -> None:
    """A segment goes when the last table in it has applied it, and not before."""
    backlog = Backlog()
    for t in (1, 2):
        backlog.track(TableId(t), Lsn(0))
    backlog.add_segment(segment(10, 20, {1: 1, 2: 1}))
    backlog.add_segment(segment(20, 30, {1: 1}))
    backlog.applied(TableId(1), Lsn(30))
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [30]
    assert backlog.min_applied_lsn(Lsn(40)) == 0
    backlog.applied(TableId(2), Lsn(20))
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [20]
    assert backlog.min_applied_lsn(Lsn(40)) == 40


def test_batch_has_at_least_one_segment_and_keeps_to_the_bound() -> None:
    """A batch takes further segments only while the rows stay within the bound."""
    backlog = Backlog()
    backlog.track(TableId(1), Lsn(0))
    for k in range(4):
        backlog.add_segment(segment(10 * k, 10 * k + 10, {1: 100}))
    assert len(backlog.next_batch(TableId(1), 50)) == 1
    assert len(backlog.next_batch(TableId(1), 200)) == 2


def test_a_new_copy_keeps_what_its_table_has_applied() -> None:
    """Segments that are staged during a resync stay until both copies have applied them.

    Then the new copy is the table.
    """
    backlog = Backlog()
    table = TableId(1)
    backlog.track(table, Lsn(0))
    backlog.track(table, Lsn(10), shadow=True)
    backlog.add_segment(segment(10, 20, {1: 5}))
    backlog.add_segment(segment(20, 30, {1: 7}))
    backlog.applied(table, Lsn(30))
    assert backlog.pop_unneeded() == ()
    assert (backlog.pending(table).rows, backlog.pending(table, shadow=True).rows) == (0, 12)
    assert backlog.min_applied_lsn(Lsn(40)) == 10
    backlog.applied(table, Lsn(20), shadow=True)
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [20]
    assert backlog.position(table, Lsn(40), shadow=True) == 20
    backlog.applied(table, Lsn(30), shadow=True)
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [30]
    backlog.add_segment(segment(30, 40, {1: 2}))
    backlog.applied(table, Lsn(40), shadow=True)
    backlog.promote_shadow(table)
    assert backlog.position(table, Lsn(50)) == 50
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [40]
    backlog.track(table, Lsn(40), shadow=True)
    backlog.add_segment(segment(40, 50, {1: 2}))
    backlog.applied(table, Lsn(50))
    backlog.forget(table, shadow=True)
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [50]


@given(
    st.lists(st.sets(st.integers(1, 3), min_size=1), max_size=12),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=20),
)
def test_removed_segments_are_applied_by_every_table_in_them(
    landed: list[set[int]], steps: list[tuple[int, int]]
) -> None:
    """Whatever the order of steps, a segment is given up if and only if each table in it is past it."""
    backlog = Backlog()
    positions = dict.fromkeys((1, 2, 3), 0)
    for t in positions:
        backlog.track(TableId(t), Lsn(0))
    for k, tables in enumerate(landed):
        backlog.add_segment(segment(10 * k, 10 * k + 10, dict.fromkeys(tables, 1)))
    removed: set[int] = set()
    for table, to in steps:
        positions[table] = max(positions[table], to * 10)
        backlog.applied(TableId(table), Lsn(to * 10))
        removed |= {m.end_lsn // 10 - 1 for m in backlog.pop_unneeded()}
        expected = {k for k, tables in enumerate(landed) if all(positions[t] >= 10 * k + 10 for t in tables)}
        assert removed == expected
    for table in positions:
        left = [k for k, tables in enumerate(landed) if table in tables and positions[table] < 10 * k + 10]
        assert backlog.pending(TableId(table)).segments == len(left)


def test_table_whose_place_is_not_known_keeps_everything() -> None:
    """Nothing counts as applied while the watermark is unknown. A known watermark releases the segments below it."""
    backlog, table = Backlog(), TableId(1)
    backlog.add_segment(segment(10, 20, {1: 5}))
    backlog.track(table, None)
    backlog.add_segment(segment(20, 30, {1: 5}))
    assert not backlog.position_known(table)
    assert (backlog.position(table, Lsn(30)), backlog.min_applied_lsn(Lsn(30))) == (0, 0)
    assert backlog.pop_unneeded() == ()
    backlog.track(table, Lsn(20))
    assert backlog.position_known(table)
    assert [m.end_lsn for m in backlog.pop_unneeded()] == [20]
    assert backlog.pending(table).segments == 1


def test_table_whose_place_is_not_known_is_not_caught_up() -> None:
    """Though nothing is staged for it: its destination may lack what was applied."""
    backlog = Backlog()
    backlog.track(TableId(1), None)
    assert backlog.position(TableId(1), Lsn(100)) == 0


@given(
    shares=st.lists(st.dictionaries(st.integers(1, 3), st.integers(1, 9), min_size=1), max_size=8),
    positions=st.lists(st.integers(0, 8), min_size=3, max_size=3),
    bound=st.integers(1, 20),
)
def test_a_common_batch_has_no_gap(shares: list[dict[int, int]], positions: list[int], bound: int) -> None:
    """Whatever the tables' positions and the bound are, common batches apply every segment of each table in order."""
    backlog, tables = Backlog(), [TableId(t) for t in (1, 2, 3)]
    for table, position in zip(tables, positions, strict=True):
        backlog.track(table, Lsn(position * 10))
    for i, share in enumerate(shares):
        backlog.add_segment(segment(i * 10, i * 10 + 10, share))
    left = {t: [i for i, s in enumerate(shares) if int(t) in s and i >= positions[t - 1]] for t in tables}
    while batch := backlog.next_common_batch(tables, bound):
        until = max(m.end_lsn for manifests in batch.values() for m in manifests)
        for table in tables:
            expected = [i for i in left[table] if i * 10 + 10 <= until]
            assert [m.start_lsn // 10 for m in batch.get(table, ())] == expected
            left[table] = left[table][len(expected) :]
            if table in batch:
                backlog.applied(table, until)
    assert not any(left.values())


@given(
    shares=st.lists(st.dictionaries(st.integers(1, 3), st.integers(1, 9), max_size=3), max_size=8),
    positions=st.lists(st.integers(0, 80), min_size=3, max_size=3),
    bound=st.integers(1, 20),
)
def test_a_common_batch_brings_tables_to_one_position(
    shares: list[dict[int, int]], positions: list[int], bound: int
) -> None:
    """After each batch all tables have the changes up to one LSN, also if one was copied far ahead of the others."""
    backlog, tables = Backlog(), [TableId(t) for t in (1, 2, 3)]
    for table, position in zip(tables, positions, strict=True):
        backlog.track(table, Lsn(position))
    for i, share in enumerate(shares):
        backlog.add_segment(segment(i * 10, i * 10 + 10, share))
    changed = {t: {i * 10 + 10 for i, s in enumerate(shares) if int(t) in s} for t in tables}
    floor = max(map(backlog.applied_lsn, tables))
    while batch := backlog.next_common_batch(tables, bound, floor):
        until = max(m.end_lsn for manifests in batch.values() for m in manifests)
        for table in batch:
            backlog.applied(table, until)
        held = {t: {e for e in changed[t] if e <= backlog.applied_lsn(t)} for t in tables}
        whole = max(until, floor)
        assert all(held[t] == {e for e in changed[t] if e <= whole} for t in tables)


def test_a_quiet_table_does_not_shorten_a_common_batch() -> None:
    """A table whose changes are all in the batch leaves it to the others how far it goes."""
    backlog, tables = Backlog(), [TableId(1), TableId(2)]
    for table in tables:
        backlog.track(table, Lsn(0))
    for i in range(5):
        backlog.add_segment(segment(i * 10, i * 10 + 10, {1: 1, 2: 1} if i == 0 else {2: 1}))
    batch = backlog.next_common_batch(tables, 100)
    assert [len(batch[t]) for t in tables] == [1, 5]
    assert [len(found) for found in backlog.next_common_batch(tables, 3).values()] == [1, 3]


class _Model:
    """The expected answers of a backlog, computed from all events so far."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, dict[int, int]]] = []
        self.held: dict[tuple[int, bool], tuple[int, bool, set[int]]] = {}

    def add(self, end: int, rows: dict[int, int]) -> None:
        self.segments.append((end, rows))
        for (table, _), (position, holds, ends) in self.held.items():
            if holds and table in rows and end > position:
                ends.add(end)

    def track(self, table: int, position: int, holds: bool, shadow: bool) -> None:
        kept = {end for end, rows in self.segments if holds and table in rows and end > position}
        self.held[table, shadow] = (position, holds, kept)

    def applied(self, table: int, position: int, shadow: bool) -> None:
        if (table, shadow) in self.held:
            former, holds, ends = self.held[table, shadow]
            self.held[table, shadow] = (max(former, position), holds, {e for e in ends if e > position})

    def pop_unneeded(self) -> list[int]:
        needed = set().union(*(ends for _, _, ends in self.held.values()))
        gone = [end for end, _ in self.segments if end not in needed]
        self.segments = [(end, rows) for end, rows in self.segments if end in needed]
        return gone


_STEPS = st.one_of(
    st.tuples(st.just("add"), st.dictionaries(st.integers(1, 3), st.integers(1, 9), min_size=1)),
    st.tuples(st.just("track"), st.integers(1, 3), st.integers(0, 15), st.booleans(), st.booleans()),
    st.tuples(st.just("applied"), st.integers(1, 3), st.integers(0, 15), st.booleans()),
    st.tuples(st.just("forget"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("promote"), st.integers(1, 3)),
    st.tuples(st.just("pop")),
)


@given(st.lists(_STEPS, max_size=40))
def test_kept_sums_are_those_of_the_segments(steps: list[tuple[Any, ...]]) -> None:
    """After any sequence of events, the sums, the batches and the unneeded segments equal those of a full recount."""
    backlog, model, end = Backlog(), _Model(), 0
    for step in steps:
        match step:
            case ("add", rows):
                end += 10
                backlog.add_segment(segment(end - 10, end, rows))
                model.add(end, rows)
            case ("track", table, tens, holds, shadow):
                backlog.track(TableId(table), Lsn(tens * 10), holds=holds, shadow=shadow)
                model.track(table, tens * 10, holds, shadow)
            case ("applied", table, tens, shadow):
                backlog.applied(TableId(table), Lsn(tens * 10), shadow=shadow)
                model.applied(table, tens * 10, shadow)
            case ("forget", table, shadow):
                backlog.forget(TableId(table), shadow=shadow)
                model.held.pop((table, shadow), None)
            case ("promote", table) if (table, True) in model.held:
                backlog.promote_shadow(TableId(table))
                model.held[table, False] = model.held.pop((table, True))
            case ("pop",):
                assert [m.end_lsn for m in backlog.pop_unneeded()] == model.pop_unneeded()
        sizes = {e: sum(rows.values()) for e, rows in model.segments}
        assert (backlog.segments, backlog.staged_bytes) == (len(sizes), 10 * sum(sizes.values()))
        for (table, shadow), (position, holds, ends) in model.held.items():
            rows_left = sum(rows[table] for e, rows in model.segments if e in ends)
            first = min(ends) - 10 if ends else None
            assert backlog.pending(TableId(table), shadow=shadow) == Pending(
                len(ends), rows_left, rows_left * 10, first
            )
            batch = backlog.next_batch(TableId(table), 10**9, shadow=shadow)
            assert [m.end_lsn for m in batch] == sorted(ends)
            reached = position if ends or not holds else max(position, 1000)
            assert backlog.position(TableId(table), Lsn(1000), shadow=shadow) == reached
    assert [m.end_lsn for m in backlog.pop_unneeded()] == model.pop_unneeded()
