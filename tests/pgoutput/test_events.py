"""Rows as Python objects, over Arrow columns."""

from __future__ import annotations

from tests.pgoutput.capture_golden import load
from tests.pgoutput.source import Versions

from levada.pgoutput.changes import RelationChange, TableChanges, Truncate
from levada.pgoutput.decoder import Decoder
from levada.pgoutput.events import Begin, Commit, Insert, TruncateEvent, batch_events, iter_events


def test_streams_of_several_tables_are_merged_into_one_order() -> None:
    """Items by table, as segments have them, give the same events as the slice that they come from."""
    batch = Decoder(Versions()).decode(load("schema_change"))
    by_table = [
        [i for i in batch.items if isinstance(i, TableChanges | RelationChange) and i.schema.name.name == name]
        for name in ("other", "t")
    ]
    assert list(iter_events(by_table, batch.committed.to_batches())) == list(batch_events(batch))


def test_a_stream_is_read_as_the_walk_gets_to_it() -> None:
    """The first events are there before the last items are asked for."""
    batch = Decoder(Versions()).decode(load("truncate"))
    asked = []

    def items():  # type: ignore[no-untyped-def]  # a generator of items
        for item in batch.items:
            asked.append(item)
            yield item

    walk = iter_events([items()], batch.committed.to_batches())
    assert isinstance(next(walk), Begin)
    assert len(asked) < len(batch.items)


def test_truncates_of_a_stream_of_their_own_stand_in_place() -> None:
    """A truncate comes after the rows with a lower ordinal and before those with a higher one."""
    batch = Decoder(Versions()).decode(load("truncate"))
    truncates = [i for i in batch.items if isinstance(i, Truncate)]
    rows = [i for i in batch.items if isinstance(i, TableChanges) and i.schema.name.name == "p"]
    kinds = [type(e) for e in iter_events([truncates, rows], batch.committed.to_batches())]
    assert kinds == [
        *(Begin, Insert, Insert, Commit),
        *(Begin, Insert, TruncateEvent, Insert, Commit),
        *(Begin, TruncateEvent, Commit),
    ]
