"""Streams that are read with a time limit, and by asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until

from levada.capture import AsyncBatches, AsyncChanges, Change, ChangeStream, WalChangeCapture
from levada.errors import NeedsOperator
from levada.pgoutput.events import Insert
from levada.values import QualifiedTable

A = QualifiedTable("public", "a")


@pytest.fixture
def capture(db: Database) -> WalChangeCapture:
    """A table and a capture of it, with its slot."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, note text)")
    made = WalChangeCapture(db.connection, slot=f"s_{db.name}", publication="p")
    made.with_publication_management({A}, manage=True).prepare()
    return made


def id_of(change: Change | None) -> int | None:
    """Return the row's id, None for another event or no change."""
    return int(change.event.row.values["id"]) if change and isinstance(change.event, Insert) else None


def polled(stream: ChangeStream, count: int, timeout_s: float) -> list[int]:
    """Poll until that many rows have come."""
    ids: list[int] = []

    def poll() -> int:
        if (found := id_of(stream.poll(timeout_s))) is not None:
            ids.append(found)
        return len(ids)

    until(poll, lambda found: found == count)
    return ids


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_a_poll_returns_without_a_change(db: Database, capture: WalChangeCapture, timeout_s: float) -> None:
    """A poll of a quiet stream returns None. It ends nothing: the next changes come in their order, each once."""
    with capture.live() as stream:
        assert stream.poll(timeout_s) is None
        db.execute("INSERT INTO a SELECT generate_series(1, 5)")
        assert polled(stream, 5, timeout_s) == [1, 2, 3, 4, 5]
        db.execute("INSERT INTO a VALUES (6)")
        assert next(found for change in stream if (found := id_of(change))) == 6
        assert not stream.ended
    assert stream.ended
    assert stream.poll(timeout_s) is None
    assert repr(stream).endswith(f"the stream of slot s_{db.name}, ended>")


def test_a_poll_ends_with_a_snapshot(db: Database, capture: WalChangeCapture) -> None:
    """At the end of a snapshot a poll returns None, and only `ended` distinguishes it from a quiet stream."""
    db.execute("INSERT INTO a VALUES (1), (2)")
    with capture.snapshot([A]) as rows:
        assert [id_of(rows.poll(LIMIT_S)) for _ in range(2)] == [1, 2]
        assert not rows.ended
        assert rows.poll(LIMIT_S) is None
        assert rows.ended


def test_batches_are_polled_too(db: Database, capture: WalChangeCapture) -> None:
    """A poll for batches returns whole transactions, and refuses a stream that is read as changes."""
    with capture.live() as stream:
        assert stream.poll_batch(0.05) is None
        db.execute("INSERT INTO a VALUES (1), (2)")
        batch, _ = until(lambda: stream.poll_batch(0.5), lambda found: found is not None) or (None, None)
        assert batch is not None
        assert batch.rows == 2
        with pytest.raises(NeedsOperator) as refused:
            stream.poll(0.05)
        assert refused.value.code == "stream_read_otherwise"


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in an event loop of its own, as long as a test may last."""
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def test_asyncio_reads_a_snapshot_and_the_stream(db: Database, capture: WalChangeCapture) -> None:
    """The event loop runs on while a stream waits, and gets the rows of a snapshot, then each change once."""
    db.execute("INSERT INTO a VALUES (1), (2)")

    async def follow() -> None:
        async with AsyncChanges(capture, [A]) as rows:
            assert [id_of(change) async for change in rows] == [1, 2]
        async with AsyncChanges(capture) as changes:
            reading = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            assert not reading.done()
            db.execute("INSERT INTO a VALUES (3), (4)")
            await reading
            ids: list[int] = []
            while len(ids) < 4:
                if (found := id_of(change := await anext(changes))) is not None:
                    ids.append(found)
                    change.ack.confirm()
            assert ids == [1, 2, 3, 4], "the slot is older than the rows of the snapshot"

    run(follow())
    assert db.query("SELECT active FROM pg_replication_slots WHERE slot_name = %s", f"s_{db.name}") == [(False,)]
    with capture.live() as again:
        db.execute("INSERT INTO a VALUES (5)")
        assert polled(again, 1, 0.5) == [5], "what was confirmed does not come again"


def test_a_cancelled_reader_loses_no_change(db: Database, capture: WalChangeCapture) -> None:
    """A task that is cancelled, or whose time ends, takes no change with it: the next read returns it."""

    async def follow() -> None:
        async with AsyncChanges(capture) as changes:
            assert await changes.poll(0.05) is None
            reading = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            db.execute("INSERT INTO a VALUES (1), (2)")
            ids = []
            while len(ids) < 2:
                if (found := id_of(await changes.poll(0.01))) is not None:
                    ids.append(found)
            assert ids == [1, 2]

    run(follow())


def test_asyncio_reads_batches(db: Database, capture: WalChangeCapture) -> None:
    """Batches come as whole transactions, and a batch that is confirmed does not come again."""

    async def follow() -> None:
        async with AsyncBatches(capture) as batches:
            db.execute("INSERT INTO a SELECT generate_series(1, 10)")
            batch, ack = await anext(batches)
            assert batch.rows == 10
            ack.confirm()
            assert await batches.poll(0.05) is None

    run(follow())


def test_an_asynchronous_stream_that_cannot_be_opened(db: Database, capture: WalChangeCapture) -> None:
    """The error of the stream is raised where it is opened, a read before that is refused, and no thread is left."""

    async def follow() -> None:
        closed = AsyncChanges(capture)
        with pytest.raises(NeedsOperator) as refused:
            await anext(closed)
        assert refused.value.code == "stream_not_open"
        await closed.close()
        with pytest.raises(NeedsOperator) as missing:
            async with AsyncChanges(capture, tables=[QualifiedTable("public", "none")]):
                pass
        assert missing.value.code == "table_not_published"

    run(follow())
