"""A session of the stream, on a stream and a clock that the tests play."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.rigs.capture import hosting
from tests.rigs.fake_stream import FakeStream, Keepalive, Quiet, Step, begin, commit, insert, relation, transaction

from levada.capture.acknowledger import Acknowledger
from levada.capture.message_stream import SliceLimits
from levada.capture.position import CapturePosition
from levada.capture.session import CaptureSession, CaptureSettings, CaptureState
from levada.errors import DecodeError, LevadaError, SlotLost, StaleEpoch, Transient
from levada.pgoutput.changes import LogicalMessage
from levada.pgoutput.messages import Relation
from levada.postgres.connection import PostgresConnection
from levada.schema import Column, IdentityKind, ReplicatedTableSchema, TableTarget, resolve_type
from levada.segments import Manifest, SegmentLog, StagedBatch, Staging, TableStart
from levada.segments.memory import MemoryBudget
from levada.values import Lsn, OnUnrepresentable, SnapshotId, TableId

NOWHERE = PostgresConnection("127.0.0.1", 1, "none")


class Versions:
    """The versions of the tables in the stream, without a catalog. The column's place is its attnum."""

    message_prefixes = ()

    def __init__(self) -> None:
        self.tables: dict[TableId, ReplicatedTableSchema] = {}

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        """Return the version of the first RELATION, in every transaction."""
        if relation.oid not in self.tables:
            columns = tuple(
                Column(n, c.name, resolve_type(c.type_oid, c.typmod), "int4", c.type_oid, c.typmod)
                for n, c in enumerate(relation.columns, 1)
            )
            self.tables[relation.oid] = ReplicatedTableSchema(
                relation.oid, relation.table, columns, IdentityKind.PRIMARY_KEY, (1,), (1,), snapshot_id=at
            )
        return self.tables[relation.oid]

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Do nothing."""

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        """Do nothing."""

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        """End the session."""
        raise error

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Announce nothing."""
        return None

    def release(self) -> None:
        """Do nothing, as there is no catalog."""

    def settle(self) -> None:
        """Do nothing, as nothing is altered."""


class Rig:
    """A session over a fake stream that stages into a folder. A wait of the session moves the clock."""

    def __init__(
        self,
        folder: Path,
        steps: Iterable[Step],
        *,
        staging: Staging | None = None,
        memory: MemoryBudget | None = None,
        check: Callable[[], object] = lambda: None,
        **changed: Any,
    ) -> None:
        self.now = 0.0
        self.staging = staging or Staging.open(str(folder))
        self.log = SegmentLog(self.staging, "shop")
        self.stream = FakeStream(steps, waited=self.wait, acknowledging=self.acknowledging)
        self.staged: list[tuple[float, Manifest]] = []
        self.durable_at_ack: list[tuple[Lsn, Lsn]] = []
        """Each acknowledged LSN, with the end of the durable segments at that moment."""
        self.versions = Versions()
        host = hosting(segment_staged=lambda manifest: self.staged.append((self.now, manifest)), require_epoch=check)
        self.acknowledger = Acknowledger(
            host, durable=self.staging.durable, idle_interval_s=0.0, clock=lambda: self.now
        )
        self.acknowledger.attach(self.stream, Lsn(0), Lsn(0), None)
        chosen = replace(CaptureSettings(NOWHERE, "s", "p", fill_s=0.0, heartbeat_s=0.0, idle_s=0.0), **changed)
        self.state = CaptureState(chosen, CapturePosition())
        self.session = CaptureSession(
            self.state,
            self.stream,
            self.log,
            self.versions,
            self.acknowledger,
            host,
            epoch=1,
            memory=memory or MemoryBudget(),
            clock=lambda: self.now,
        )

    def run(self, ended: Callable[[], bool] | None = None) -> None:
        """Run the session until ``ended``, or until the stream has played all steps."""
        self.session.run(ended or (lambda: self.stream.ended))

    def wait(self, seconds: float) -> None:
        """Move the clock instead of a wait."""
        self.now += seconds

    @property
    def position(self) -> CapturePosition:
        """The position that the session has reported."""
        return self.state.position

    def acknowledging(self, lsn: Lsn) -> None:
        """Record what another process would find staged at the moment of an acknowledgement."""
        self.durable_at_ack.append((lsn, SegmentLog(self.staging, "shop").end()))

    def ids(self, table: int) -> list[int]:
        """Return the ids in the staged rows of a table, in their order."""
        if TableId(table) not in self.versions.tables:
            return []
        schema = replace(self.versions.tables[TableId(table)], snapshot_id=SnapshotId(0))
        start = TableStart(TableTarget.of(schema), Lsn(0))
        batch = StagedBatch(self.staging, self.log.list(), [start], Lsn(2**60), OnUnrepresentable.NULL)
        return [row["id"] for rows in batch.changes(TableId(table)).scan(["id"]) for row in rows.to_pylist()]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The WAL ranges of the segments, in their order."""
        return [(int(m.start_lsn), int(m.end_lsn)) for m in self.log.list()]


def played(*transactions: Sequence[bytes], then: Sequence[Step] = ()) -> list[Step]:
    """Return the transactions with a pause after each of them, and then the other steps."""
    return [*(step for messages in transactions for step in (*messages, Quiet())), *then]


def test_transactions_are_staged_in_order(tmp_path: Path) -> None:
    """Each table's rows are staged in the order of the commits, and segments join without a gap."""
    rig = Rig(
        tmp_path, played(transaction(1, 1, 1, 2), transaction(2, 2, 7), transaction(3, 1, 3), transaction(4, 2, 8))
    )
    rig.run()
    assert rig.ids(1) == [1, 2, 3]
    assert rig.ids(2) == [7, 8]
    assert rig.ranges == [(0, 1008), (1008, 2008), (2008, 3008), (3008, 4008)]
    assert [m for _, m in rig.staged] == list(rig.log.list())
    assert rig.position.transactions == 4
    assert rig.stream.acknowledged[-1] == Lsn(4008)


def test_a_segment_has_all_that_came_until_it_was_full(tmp_path: Path) -> None:
    """Transactions share a segment until it has its bytes. The next commit after that closes it."""
    steps = played(*(transaction(n, 1, n) for n in range(1, 6)))
    together = Rig(tmp_path / "together", steps, fill_s=1e9)
    together.run()
    assert together.ranges == [(0, 5008)]
    apart = Rig(tmp_path / "apart", steps, fill_s=1e9, batch_bytes=1, slices=SliceLimits(messages=1))
    apart.run()
    assert apart.ranges[0] == (0, 1008)
    assert len(apart.ranges) > 1
    assert apart.ids(1) == together.ids(1) == [1, 2, 3, 4, 5]


def test_a_segment_is_closed_when_it_is_old(tmp_path: Path) -> None:
    """A segment is closed ``fill_s`` seconds after its first message, also if the stream is quiet, and not before."""
    rig = Rig(tmp_path, transaction(1, 1, 1), fill_s=10.0)
    rig.run(lambda: bool(rig.staged))
    [(at, manifest)] = rig.staged
    assert at >= 10.0
    assert manifest.end_lsn == Lsn(1008)
    early = Rig(tmp_path / "early", transaction(1, 1, 1), fill_s=10.0)
    with pytest.raises(Transient):
        early.run(lambda: stop_with(Transient("stopped", "at nine seconds")) if early.now >= 9 else False)
    assert early.staged == []


def stop_with(error: LevadaError) -> NoReturn:
    """Raise the error."""
    raise error


def test_an_open_transaction_is_not_cut_by_time(tmp_path: Path) -> None:
    """However old it is, a transaction is staged with its COMMIT. The complete ones before it do not wait for it."""
    first, [start, *rest] = transaction(1, 1, 1), transaction(2, 1, 2, 3)
    quiet = [Quiet()] * 50
    rig = Rig(tmp_path, [*first, start, *rest[:2], *quiet, *rest[2:]], fill_s=1.0)
    rig.run(lambda: rig.now > 5.0)
    assert rig.ranges == [(0, 1008)]
    assert rig.stream.acknowledged[-1] == Lsn(1008)


def test_a_keepalive_moves_an_idle_slot(tmp_path: Path) -> None:
    """WAL without changes is acknowledged up to the last keepalive, and no segment is written for it."""
    rig = Rig(tmp_path, [Keepalive(5000), Quiet(), Keepalive(7000), Quiet()])
    rig.run()
    assert rig.stream.acknowledged == [Lsn(5000), Lsn(7000)]
    assert rig.position.staged_lsn == Lsn(7000)
    assert rig.staged == []


def test_a_keepalive_within_a_transaction_acknowledges_nothing(tmp_path: Path) -> None:
    """The server has read further than what it has sent of an open transaction, whose rows would be lost."""
    *inside, end = transaction(1, 1, 1, 2)
    for received in range(1, len(inside) + 1):
        steps = [*inside[:received], Keepalive(9000), Quiet(), Quiet()]
        rig = Rig(tmp_path / str(received), steps, slices=SliceLimits(messages=1))
        rig.run()
        assert rig.stream.acknowledged == []
        assert rig.staged == []
    whole = Rig(tmp_path, [*inside, Keepalive(900), Quiet(), end, Keepalive(9000), Quiet(), Quiet()])
    whole.run()
    assert whole.ids(1) == [1, 2]
    assert whole.stream.acknowledged[-1] == Lsn(9000)


def test_without_memory_the_session_reports_and_does_not_read(tmp_path: Path) -> None:
    """While a batch holds the memory, the server gets keepalives and keeps the changes. Afterwards they are read."""
    memory = MemoryBudget(1)
    rig = Rig(tmp_path, played(transaction(1, 1, 1)), memory=memory)
    held = memory.batch(100, threading.Event())
    with held:
        rig.run(lambda: rig.stream.keepalives == 3)
    assert rig.stream.received == []
    after = Rig(tmp_path, played(transaction(1, 1, 1)), memory=memory)
    after.run()
    assert after.ids(1) == [1]
    assert after.stream.keepalives == 0


@pytest.mark.parametrize(
    "error",
    [Transient("source_stopping", "the server ended the stream"), SlotLost("slot_lost", "gone")],
    ids=lambda error: error.code,
)
def test_an_error_of_the_stream_ends_the_session(tmp_path: Path, error: LevadaError) -> None:
    """The error is raised as it is. What was staged stays, and of an open transaction no file is left."""
    *inside, _ = transaction(2, 1, 2, 3)
    rig = Rig(tmp_path, played(transaction(1, 1, 1), then=[*inside, Quiet(), error]), slices=SliceLimits(messages=3))
    with pytest.raises(type(error)) as caught:
        rig.run()
    assert caught.value is error
    rig.acknowledger.close()
    assert rig.ids(1) == [1]
    assert max(rig.stream.acknowledged, default=Lsn(0)) <= Lsn(1008)
    assert SegmentLog(rig.staging, "shop").collect_garbage() == 0


def test_a_damaged_message_ends_the_session(tmp_path: Path) -> None:
    """A row without its RELATION is an error of the stream's content, and nothing of its transaction is staged."""
    rig = Rig(tmp_path, played(transaction(1, 1, 1), [begin(2000, 2), insert(9, 1500, "1"), commit(2000, 2008)]))
    with pytest.raises(DecodeError) as caught:
        rig.run()
    assert caught.value.code == "unknown_relation"
    assert rig.ranges == [(0, 1008)]


def test_a_stop_between_messages_keeps_whole_transactions(tmp_path: Path) -> None:
    """A stop stages and acknowledges what is complete. The server sends the rest again to the next session."""
    second = transaction(2, 1, 2, 3)
    whole = [*transaction(1, 1, 1), *second]
    for cut in range(len(whole) + 1):
        rig = Rig(tmp_path / str(cut), whole[:cut], fill_s=1e9)
        rig.run()
        complete = [1, 2, 3] if cut == len(whole) else [1] if cut >= len(whole) - len(second) else []
        assert rig.ids(1) == complete
        assert rig.stream.acknowledged == [Lsn(2008 if len(complete) == 3 else 1008)] * bool(complete)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_slices_have_a_limit(tmp_path: Path, size: int) -> None:
    """No more messages are read than a slice has. A larger transaction begins a segment, and has all rows."""
    large = transaction(2, 1, *range(10, 30))
    rig = Rig(
        tmp_path,
        played(transaction(1, 1, 1), large, transaction(3, 1, 99)),
        fill_s=1e9,
        slices=SliceLimits(messages=size),
    )
    rig.run()
    assert max(rig.stream.received) <= size
    assert rig.ids(1) == [1, *range(10, 30), 99]
    assert 1008 in [start for start, _ in rig.ranges]


def test_the_bytes_of_a_slice_have_a_limit(tmp_path: Path) -> None:
    """A slice ends with the message that reaches its bytes."""
    messages = [begin(1000, 1), relation(1, "t1", id="int4"), *(insert(1, 500, str(n)) for n in range(9))]
    rig = Rig(tmp_path, [*messages, commit(1000, 1008)], slices=SliceLimits(bytes=2 * len(messages[-1])))
    rig.run()
    assert max(rig.stream.received) == 2
    assert rig.ids(1) == list(range(9))


class FullStaging(Staging):
    """A staging area that takes files, and no manifest."""

    def publish(self, path: str, *_: Any, **__: Any) -> None:
        """Refuse the manifest."""
        raise Transient("staging_full", path)


def test_nothing_is_acknowledged_that_could_not_be_staged(tmp_path: Path) -> None:
    """An error of the staging area ends the session. The slot keeps the transaction, and no file of it is left."""
    rig = Rig(tmp_path, played(transaction(1, 1, 1)), staging=FullStaging(str(tmp_path), durable=True))
    with pytest.raises(Transient, match="staging_full"):
        rig.run()
    assert rig.stream.acknowledged == []
    assert rig.staged == []
    assert list(tmp_path.rglob("*.parquet")) == []


def test_staging_that_may_be_lost_is_not_acknowledged(tmp_path: Path) -> None:
    """Without durable staging only what every table has applied is acknowledged."""
    rig = Rig(tmp_path, played(transaction(1, 1, 1)), staging=Staging.open(str(tmp_path), durable=False))
    rig.run()
    assert rig.ranges == [(0, 1008)]
    assert rig.stream.acknowledged == []
    rig.acknowledger.applied(Lsn(1008))
    assert rig.stream.acknowledged == [Lsn(1008)]


def test_a_process_that_was_paused_checks_its_claim_before_it_writes(tmp_path: Path) -> None:
    """Another engine may have taken the pipeline during a pause, so no segment follows one without a check."""

    def lost() -> None:
        raise StaleEpoch("stale_epoch", "another engine has the pipeline")

    rig = Rig(tmp_path, [*transaction(1, 1, 1), Quiet()], check=lost, fill_s=1e9)

    def pause() -> bool:
        rig.now += 60.0 * bool(rig.stream.received)
        return False

    with pytest.raises(StaleEpoch):
        rig.run(pause)
    assert rig.staged == []
    assert rig.stream.acknowledged == []


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Transactions of two tables with keepalives and pauses between any two messages, and perhaps an error at last."""
    steps: list[Step] = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        ids = range(100 * number, 100 * number + draw(st.integers(1, 5)))
        for message in transaction(number, draw(st.integers(1, 2)), *ids):
            # The WAL that the server has read while a transaction is decoded ends anywhere behind it.
            between: list[Step] = [Quiet(), Keepalive(1000 * number - draw(st.integers(1, 999)))]
            steps += [message, *draw(st.lists(st.sampled_from(between), max_size=2))]
        if draw(st.booleans()):
            steps += [Keepalive(1000 * number + draw(st.integers(8, 500))), Quiet()]
    return steps if draw(st.booleans()) else [*steps, Transient("connection_lost", "cut")]


@given(
    steps=scripts(),
    cut=st.integers(0, 80),
    size=st.integers(1, 12),
    fill_s=st.sampled_from([0.0, 0.3, 1e9]),
    batch_bytes=st.sampled_from([1, 200, 1 << 20]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_acknowledgement_passes_what_is_durable(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Step],
    cut: int,
    size: int,
    fill_s: float,
    batch_bytes: int,
) -> None:
    """Wherever the stream pauses, ends or fails: each transaction below an acknowledged LSN was durable before."""
    steps = steps[: max(cut, 1)]
    rig = Rig(
        tmp_path_factory.mktemp("staging"),
        steps,
        fill_s=fill_s,
        batch_bytes=batch_bytes,
        slices=SliceLimits(messages=size),
    )
    with suppress(Transient):
        rig.run()
    rig.acknowledger.close()
    ends = [int.from_bytes(s[9:17]) for s in steps if isinstance(s, bytes) and s[25:26] == b"C"]
    for acknowledged, durable in rig.durable_at_ack:
        assert all(end <= durable for end in ends if end - 8 < acknowledged)
    assert rig.stream.acknowledged == sorted(rig.stream.acknowledged)
    sent = {
        table: [
            int(s[-3:])
            for s in steps
            if isinstance(s, bytes) and s[25:26] == b"I" and int.from_bytes(s[26:30]) == table
        ]
        for table in (1, 2)
    }
    for table, ids in sent.items():
        staged = rig.ids(table)
        assert staged == ids[: len(staged)]
        last = max((int(m.end_lsn) for m in rig.log.list()), default=0)
        assert len(staged) == sum(1 for id_ in ids if 1000 * (id_ // 100) + 8 <= last)
