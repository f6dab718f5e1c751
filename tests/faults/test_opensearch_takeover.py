"""A driver that is held up at each request of a step, while a newer driver takes the table over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.opensearch.place import Cluster
from tests.rigs.waiting import LIMIT_S, until
from tests.servers.http_proxy import Fate, HttpProxy, http_proxy

from levada.destinations.opensearch import OpenSearchDestination
from levada.errors import LevadaError
from levada.schema import Kind
from levada.testing import ArrowRows, Source, SourceTable, column, table

NOTES = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
NAMES = ("item", "note")
Rows = dict[int, tuple[Any, ...]]


@dataclass
class Attack:
    """One table, the older driver behind a proxy, and the rows that the source has."""

    cluster: Cluster
    proxy: HttpProxy
    source: Source = field(default_factory=Source)
    rows: Rows = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notes: SourceTable = self.source.add(NOTES)
        self.rows = {i: (f"item {i}", f"note {i}") for i in range(1, 6)}
        through = replace(self.cluster, url=f"http://127.0.0.1:{self.proxy.port}")
        self.older = through.open()
        self.older.startup()

    def held(self) -> ArrowRows:
        """The rows of the source now, as a copy reads them."""
        schema = self.notes.schema
        columns = [c.name for c in schema.columns]
        return ArrowRows.of(schema, [dict(zip(columns, (i, *r), strict=True)) for i, r in self.rows.items()])

    def insert(self, key: int, *values: str) -> None:
        """Insert at the source."""
        self.rows[key] = values
        self.notes.insert(id=key, **dict(zip(NAMES, values, strict=True)))

    def move(self, old: int, new: int) -> None:
        """Change a key without the value of the note."""
        item, note = self.rows.pop(old)
        self.rows[new] = (item, note)
        self.notes.update(old={"id": old}, id=new, item=item, note=None, unchanged=[3])

    def delete(self, key: int) -> None:
        """Delete at the source."""
        del self.rows[key]
        self.notes.delete(id=key)

    def truncate(self) -> None:
        """Truncate at the source."""
        self.rows.clear()
        self.notes.truncate()

    def apply(self, destination: OpenSearchDestination, epoch: int, since: int = 0) -> int:
        """Apply all changes from ``since`` on, or from the watermark on. Return the position after it."""
        if not since:
            done = destination.applied(NOTES.id)
            assert done is not None
            since = int(done.lsn)
        batch = self.notes.batch(since=since)
        destination.write_events(batch, self.source.mark(int(batch.until), epoch))
        return int(batch.until)

    def copy(self, destination: OpenSearchDestination, epoch: int) -> int:
        """Copy the table as a driver does whose store has no copy of it. Return its position."""
        destination.drop_table_for_copy(self.notes.target, epoch)
        mark = self.source.mark(int(self.notes.batch(since=1000).until), epoch)
        destination.write_table_rows(self.notes.target, self.held(), mark)
        return int(mark.lsn)

    def run(self, step: Callable[[Attack], None]) -> None:
        """Run a step of the older driver to its end, whatever that is."""
        try:
            step(self)
        except LevadaError as error:
            self.errors.append(error)


def copy(attack: Attack) -> None:
    """The copy of a table that was copied before."""
    attack.older.drop_table_for_copy(attack.notes.target, 1)
    attack.older.write_table_rows(attack.notes.target, attack.held(), attack.source.mark(1000))


def truncate(attack: Attack) -> None:
    """A TRUNCATE between changes."""
    attack.move(1, 100)
    attack.truncate()
    attack.insert(6, "six", "n6")
    attack.apply(attack.older, 1)


def resync(attack: Attack) -> None:
    """A shadow copy, a batch for both indices, and the swap."""
    assert attack.older.copy_replacement(attack.notes.target, attack.held(), attack.source.mark(1000))
    attack.move(1, 100)
    attack.delete(3)
    batch = attack.notes.batch(since=1000)
    mark = attack.source.mark(int(batch.until))
    attack.older.write_events(batch, mark)
    assert attack.older.write_replacement_events(batch, mark)
    if not attack.older.swap_replacement(NOTES.id, mark):
        attack.older.drop_replacement(NOTES.id)


@pytest.mark.parametrize("fate", [Fate.HELD, Fate.LATE], ids=["held", "late"])
@pytest.mark.parametrize("step", [copy, truncate, resync])
def test_a_takeover_at_each_request(
    opensearch: str, tmp_path: Path, step: Callable[[Attack], None], fate: Fate
) -> None:
    """Whichever request of the older driver comes late, the newer driver's rows are the source's, in one index."""
    at, caught = 0, True
    while caught:
        at += 1
        with http_proxy(int(opensearch.rpartition(":")[2])) as proxy:
            attack = Attack(Cluster.new(opensearch, tmp_path), proxy)
            attack.older.write_table_rows(attack.notes.target, attack.held(), attack.source.mark(1000))
            count = iter(range(1, 1000))
            proxy.seen.clear()
            proxy.catch(fate, lambda _, count=count, at=at: next(count) == at)
            thread = threading.Thread(target=attack.run, args=[step])
            thread.start()
            until(lambda proxy=proxy, thread=thread: proxy.caught.is_set() or not thread.is_alive())  # type: ignore[misc]
            caught = proxy.caught.is_set()
            where = f"request {at}: {proxy.seen[-1].method} {proxy.seen[-1].path}"
            newer = attack.cluster.started()
            attack.insert(20, "twenty", "n20")
            position = attack.copy(newer, 2) if step is copy else attack.apply(newer, 2)
            attack.insert(21, "twenty-one", "n21")
            attack.delete(20)
            position = attack.apply(newer, 2, position)
            if caught:
                proxy.release()
            thread.join(LIMIT_S)
            assert not thread.is_alive()
            attack.insert(22, "twenty-two", "n22")
            attack.apply(newer, 2, position)
            newer.maintain(NOTES.id)
            found = {r["id"]: tuple(r[n] for n in NAMES) for r in attack.cluster.rows(attack.notes.target)}
            assert found == attack.rows, where
            done = newer.applied(NOTES.id)
            assert done is not None, where
            assert done.epoch == 2, where
            # What is left of the older driver is gone with the next driver at the latest.
            last = attack.cluster.started()
            attack.insert(23, "twenty-three", "n23")
            attack.apply(last, 3)
            left = [i for i in attack.cluster.client().indices.get(index=f"{attack.cluster.prefix}*") if "~~" in i]
            assert len(left) == 1, where
    assert at > 5
