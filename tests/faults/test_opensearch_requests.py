"""A driver that ends at each request of a batch, and the next driver, which gets the batch with more behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.opensearch.place import Cluster

from levada.destinations.opensearch import OpenSearchDestination
from levada.destinations.opensearch.client import Client
from levada.schema import Kind
from levada.segments.limits import BatchLimits
from levada.testing import ArrowRows, Source, SourceTable, column, table

NOTES = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


class Ended(BaseException):
    """The end of the process."""


@contextmanager
def ending(monkeypatch: pytest.MonkeyPatch, at: int, *, answered: bool) -> Iterator[list[int]]:
    """End the process at the request of this number, before it is sent, or after it was carried out."""
    count = [0]
    request = Client.request

    def counted(self: Client, *arguments: Any, **more: Any) -> Any:
        count[0] += 1
        if count[0] != at:
            if count[0] > at:
                raise Ended
            return request(self, *arguments, **more)
        if answered:
            request(self, *arguments, **more)
        raise Ended

    with monkeypatch.context() as patched:
        patched.setattr(Client, "request", counted)
        yield count


def moves(notes: SourceTable) -> None:
    """Rows whose unchanged values move between ids, in one transaction and across pieces."""
    with notes.source.transaction():
        notes.update(old={"id": 1}, id=100, item="1 on its way", note=None, unchanged=[3])
        notes.update(old={"id": 2}, id=1, item="was 2", note=None, unchanged=[3])
        notes.update(old={"id": 100}, id=2, item="was 1", note=None, unchanged=[3])
    notes.delete(id=3)
    notes.insert(id=6, item="six", note="n6")
    notes.update(id=4, item="four", note=None, unchanged=[3])
    notes.update(old={"id": 5}, id=50, item="was 5", note=None, unchanged=[3])
    notes.delete(id=4)
    notes.update(old={"id": 2}, id=3, item="was 1, then 2", note=None, unchanged=[3])


def more_moves(notes: SourceTable) -> None:
    """Changes after the batch that was interrupted."""
    notes.update(old={"id": 50}, id=51, item="was 5, then 50", note=None, unchanged=[3])
    notes.update(id=51, item="was 5, then 50, then 51", note=None, unchanged=[3])
    notes.insert(id=4, item="another four", note="n4 again")


MOVED = {
    1: ("was 2", "note 2"),
    3: ("was 1, then 2", "note 1"),
    4: ("another four", "n4 again"),
    6: ("six", "n6"),
    51: ("was 5, then 50, then 51", "note 5"),
}


def columns(notes: SourceTable) -> None:
    """Unchanged values that move, and a column with a constant."""
    notes.update(old={"id": 1}, id=7, item="was 1", note=None, unchanged=[3])
    added = column(4, "state", Kind.TEXT, missing_value="new")
    notes.alter(
        replace(NOTES, columns=(NOTES.columns[0], replace(NOTES.columns[1], name="thing"), *NOTES.columns[2:], added))
    )
    notes.update(id=2, thing="two", note=None, state="used", unchanged=[3])
    notes.update(old={"id": 3}, id=8, thing="was 3", note=None, state=None, unchanged=[3])
    notes.delete(id=5)


def more_columns(notes: SourceTable) -> None:
    """A change after it."""
    notes.update(old={"id": 7}, id=9, thing="was 1, then 7", note=None, state="new", unchanged=[3])


COLUMNS = {
    2: ("two", "note 2", "used"),
    4: ("item 4", "note 4", "new"),
    8: ("was 3", "note 3", None),
    9: ("was 1, then 7", "note 1", "new"),
}


def truncate(notes: SourceTable) -> None:
    """A truncate between changes."""
    notes.update(old={"id": 1}, id=7, item="was 1", note=None, unchanged=[3])
    notes.truncate()
    notes.insert(id=7, item="seven", note="n7")
    notes.insert(id=8, item="eight", note="n8")


def more_after_truncate(notes: SourceTable) -> None:
    """A change after it."""
    notes.update(old={"id": 7}, id=9, item="was 7", note=None, unchanged=[3])


TRUNCATED = {8: ("eight", "n8"), 9: ("was 7", "n7")}

Change = Callable[[SourceTable], None]


@pytest.mark.parametrize("answered", [False, True], ids=["lost", "unanswered"])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (moves, more_moves, MOVED),
        (columns, more_columns, COLUMNS),
        (truncate, more_after_truncate, TRUNCATED),
    ],
    ids=["moves", "columns", "truncate"],
)
def test_the_end_at_each_request(
    opensearch: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: Change,
    second: Change,
    expected: dict[int, tuple[Any, ...]],
    answered: bool,
) -> None:
    """Wherever a driver ends, the next one leaves the source's rows, although the values were in the index alone."""
    at, ended = 0, True
    while ended:
        at += 1
        cluster, source = Cluster.new(opensearch, tmp_path), Source(row_group_bytes=1, limits=BatchLimits(piece_rows=3))
        notes = source.add(NOTES)
        destination = opened(cluster)
        rows = [{"id": i, "item": f"item {i}", "note": f"note {i}"} for i in range(1, 6)]
        destination.write_table_rows(notes.target, ArrowRows.of(NOTES, rows), source.mark(1000))
        first(notes)
        batch = notes.batch()
        ended = False
        with ending(monkeypatch, at, answered=answered):
            try:
                destination.write_events(batch, source.mark(int(batch.until), 1))
            except Ended:
                ended = True
        if not ended:
            # The process ends after the batch.
            assert at > 5
        destination = opened(cluster)
        done = destination.applied(NOTES.id)
        assert done is not None
        second(notes)
        batch = notes.batch(since=int(done.lsn))
        destination.write_events(batch, source.mark(int(batch.until), 2))
        names = [c.name for c in notes.schema.columns if c.name != "id"]
        found = {r["id"]: tuple(r[n] for n in names) for r in cluster.rows(notes.target)}
        assert found == expected, f"after the end at request {at}"
        assert set(map(str, expected)) == set(cluster.documents(cluster.alias(notes.target)))


def opened(cluster: Cluster) -> OpenSearchDestination:
    """Return a destination as a process opens it at its start."""
    destination = cluster.open()
    destination.startup()
    return destination
