"""A lost segment is noticed by every table that needs it, and by no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.rigs.segments import segment

from levada.apply.backlog import Backlog
from levada.runtime.source.stored_ledger import StoredLedger
from levada.segments.ends import PackedEnds, pack
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.stores import MemoryStore
from levada.values import Lsn, TableId

TABLES = tuple(map(TableId, (1, 2, 3)))


def stage(landed: list[set[int]], ledger: Ledger) -> list[Manifest]:
    """Segments of ten bytes each with these tables, each with the ledger that its writer had."""
    made = []
    for k, tables in enumerate(landed):
        made.append(segment(10 * k, 10 * k + 10, dict.fromkeys(tables, 1), newest=ledger.ends))
        ledger.add_segments(made[-1:])
    return made


def find_missing(ledger: Ledger, manifests: list[Manifest], positions: dict[TableId, int]) -> set[TableId]:
    """The tables that lack a segment, at a start with these manifests."""
    backlog = Backlog(ledger)
    for manifest in manifests:
        backlog.add_segment(manifest)
    for table, position in positions.items():
        backlog.track(table, Lsn(position))
    return {table for table in positions if backlog.missing(table) is not None}


@given(
    landed=st.lists(st.sets(st.integers(1, 3), min_size=1), min_size=1, max_size=8),
    positions=st.tuples(*[st.integers(0, 9)] * 3),
    lost=st.sets(st.integers(0, 7)),
    idle=st.booleans(),
    removing=st.booleans(),
)
def test_a_lost_segment_is_missed_by_the_tables_that_need_it(
    landed: list[set[int]], positions: tuple[int, int, int], lost: set[int], idle: bool, removing: bool
) -> None:
    """This holds for the loss of the first segment, the last, one in the middle or all of them.

    Removing segments that every table has applied leaves holes that no table misses. The store has the ledger if the
    slot was acknowledged past the last segment. Otherwise a loss of the last segment shows in the slot.
    """
    store = MemoryStore("p")
    store.next_epoch()
    kept = StoredLedger(store, durable=True)
    written = kept.load((), TABLES)
    manifests = stage(landed, written)
    applied = {t: min(10 * p, 10 * len(landed)) for t, p in zip(TABLES, positions, strict=True)}
    backlog = Backlog()
    for table in TABLES:
        backlog.track(table, Lsn(0))
    for manifest in manifests:
        backlog.add_segment(manifest)
    for table, position in applied.items():
        backlog.applied(table, Lsn(position))
    assert not any(backlog.missing(table) for table in TABLES)
    removed = {m.name for m in backlog.pop_unneeded()} if removing else set()
    if idle or manifests[-1].name in removed:
        kept.save(written)
    else:
        lost -= {len(manifests) - 1}
    left = [m for k, m in enumerate(manifests) if k not in lost and m.name not in removed]
    ledger = StoredLedger(store, durable=True).load(left, TABLES)
    needing = {t for t in TABLES for k in lost if k < len(landed) and t in landed[k] and applied[t] < 10 * k + 10}
    assert find_missing(ledger, left, applied) == needing


def test_the_last_segment_is_missed_also_if_an_older_one_is_there() -> None:
    """The ledger knows its end, although no later segment follows."""
    ledger = Ledger()
    manifests = stage([{1}, {1}], ledger)
    assert find_missing(ledger, manifests[:1], {TableId(1): 0}) == {TableId(1)}


def test_a_segment_that_does_not_follow_the_one_before_is_noticed() -> None:
    """A running engine notices as well that a segment was never handed on."""
    manifests = stage([{1, 2}, {1}, {1, 2}], Ledger())
    backlog = Backlog()
    for table in TABLES:
        backlog.track(table, Lsn(0))
    backlog.add_segment(manifests[0])
    backlog.add_segment(manifests[2])
    assert [backlog.missing(t) for t in TABLES] == [20, None, None]


def test_a_table_that_is_copied_again_misses_nothing() -> None:
    """Changes staged before its copy are not needed, and an unknown watermark is no gap."""
    manifests = stage([{1}, {1}, {1}], Ledger())
    backlog = Backlog(Ledger({TableId(1): Lsn(20)}))
    backlog.track(TableId(1), None)
    assert backlog.missing(TableId(1)) is None
    backlog.track(TableId(1), Lsn(10))
    assert backlog.missing(TableId(1)) == 20
    backlog.track(TableId(1), Lsn(20), holds=False)
    assert backlog.missing(TableId(1)) is None
    backlog.track(TableId(1), Lsn(20))
    backlog.add_segment(manifests[2])
    assert backlog.missing(TableId(1)) is None


def test_the_ledger_is_kept_whoever_is_ahead() -> None:
    """Capture and apply keep it from threads of their own: what is kept never goes back, tables that left go."""
    store = MemoryStore("p")
    store.next_epoch()
    kept = StoredLedger(store, durable=True)
    kept.load((), TABLES)
    kept.save(Ledger({TableId(1): Lsn(30), TableId(2): Lsn(10)}))
    kept.save(Ledger({TableId(1): Lsn(20), TableId(3): Lsn(5)}))
    again = StoredLedger(store, durable=True)
    assert again.load((), {TableId(1), TableId(3)}).ends == {1: 30, 3: 5}
    again.forget()
    assert StoredLedger(store, durable=True).load((), TABLES).ends == {}


def test_scratch_staging_keeps_no_ledger() -> None:
    """A restart that loses scratch staging gets its changes again, and misses none."""
    store = MemoryStore("p")
    store.next_epoch()
    kept = StoredLedger(store, durable=False)
    kept.save(Ledger({TableId(1): Lsn(30)}))
    assert StoredLedger(store, durable=True).load((), TABLES).ends == {}


def test_scratch_staging_after_durable_staging_misses_what_was_acknowledged() -> None:
    """The slot does not send again what was staged durably before."""
    store = MemoryStore("p")
    store.next_epoch()
    assert not StoredLedger(store, durable=False).exists
    StoredLedger(store, durable=True).save(Ledger({TableId(1): Lsn(30)}))
    scratch = StoredLedger(store, durable=False)
    assert scratch.exists
    assert scratch.load((), TABLES).ends == {1: 30}


@given(
    ends=st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), max_size=20),
    known=st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), max_size=20),
)
def test_ends_are_unpacked_as_they_were_packed(ends: dict[TableId, Lsn], known: dict[TableId, Lsn]) -> None:
    """Every table and every LSN comes back, in the types of the engine, whatever the order."""
    packed = PackedEnds.loads(pack(ends))
    assert dict(packed) == ends
    assert packed == ends
    assert all(packed[t] == end and packed.get(t) == end for t, end in ends.items())
    assert {packed.get(TableId(t)) for t in known if t not in ends} <= {None}
    assert all(type(t) is TableId and type(end) is Lsn for t, end in packed.items())
    one, other = Ledger(known), Ledger(known)
    one.add(packed)
    other.add(ends)
    assert one.ends == other.ends
