"""Random changes, kills, replays and resyncs. After each batch the destination has the rows of a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.bigquery.warehouse import Warehouse
from tests.destinations.opensearch.place import Cluster
from tests.servers.bigquery import PROJECT, emulator

from levada.destinations import Destination, DestinationContext, TableTarget
from levada.destinations.bigquery.rest import RestClient
from levada.destinations.opensearch.client import Client
from levada.schema import Column, Kind
from levada.segments.limits import BatchLimits
from levada.testing import ArrowRows, Source, SourceTable, column, table

NOTES = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
_NOTE = 3
_TURNS = 25


class Killed(BaseException):
    """The end of the process."""


@dataclass
class Place:
    """A destination, and the method that sends its requests."""

    open: Callable[[], Destination]
    read: Callable[[TableTarget], list[dict[str, Any]]]
    client: type
    method: str


@pytest.fixture(params=["opensearch", "bigquery"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each destination."""
    if request.param == "opensearch":
        cluster = Cluster.new(request.getfixturevalue("opensearch"), tmp_path)
        yield Place(cluster.started, cluster.rows, Client, "request")
        return
    with emulator(tmp_path) as server:
        manifest = {
            "project": PROJECT,
            "dataset": "shop",
            "metadataDataset": "shop_meta",
            "endpoint": server.endpoint,
        }
        warehouse = Warehouse(server, manifest, DestinationContext("shop", tmp_path), "shop")
        yield Place(warehouse.destination, warehouse.read_back, RestClient, "_call")


@contextmanager
def killed(place: Place, at: int, *, answered: bool) -> Iterator[None]:
    """End the process at the request of this number, before it is sent, or after it was carried out."""
    plain, count = getattr(place.client, place.method), [0]

    def counted(self: Any, *arguments: Any, **more: Any) -> Any:
        count[0] += 1
        if count[0] > at or (count[0] == at and not answered):
            raise Killed
        answer = plain(self, *arguments, **more)
        if count[0] == at:
            raise Killed
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.client, place.method, counted)
        yield


@dataclass
class Model:
    """The rows of the source: the values by attnum of each id."""

    rng: random.Random
    notes: SourceTable
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    ids: int = 100
    attnum: int = _NOTE
    made: int = 0

    def expected(self) -> dict[int, dict[str, Any]]:
        """Return the rows by id, with the columns of the current version."""
        columns = self.notes.schema.columns
        return {i: {c.name: i if c.attnum == 1 else row.get(c.attnum) for c in columns} for i, row in self.rows.items()}

    def change(self) -> None:
        """Make one random change."""
        steps: list[tuple[Callable[[], None], int]] = [(self._insert, 5)]
        if self.rows:
            steps += [(self._update, 8), (self._move, 4), (self._delete, 3), (self._reuse, 2)]
        if len(self.rows) > 1:
            steps.append((self._swap, 3))
        steps += [(self._truncate, 1), (self._add, 1), (self._rename, 1), (self._drop, 1)]
        calls, weights = zip(*steps, strict=True)
        self.rng.choices(calls, weights)[0]()

    def _value(self) -> str | None:
        self.made += 1
        return self.rng.choice([None, "", f"value {self.made}", f"large {self.made} " + "x" * 300])

    def _names(self, row: dict[int, Any]) -> dict[str, Any]:
        return {c.name: row.get(c.attnum) for c in self.notes.schema.columns if c.attnum != 1}

    def _some(self) -> int:
        return self.rng.choice(sorted(self.rows))

    def _new(self) -> dict[int, Any]:
        return {c.attnum: self._value() for c in self.notes.schema.columns if c.attnum != 1}

    def _insert(self, i: int | None = None) -> None:
        if i is None:
            self.ids += 1
            i = self.ids
        self.rows[i] = self._new()
        self.notes.insert(id=i, **self._names(self.rows[i]))

    def _update(self) -> None:
        i = self._some()
        self._write(i, i)

    def _move(self) -> None:
        self.ids += 1
        self._write(self._some(), self.ids)

    def _write(self, old: int, new: int) -> None:
        """Update a row, often without the large value."""
        row, before = self._new(), self.rows.pop(old)
        keeps = self.rng.random() < 0.6
        sent = self._names(row)
        if keeps:
            row[_NOTE] = before.get(_NOTE)
            sent["note"] = None
        self.rows[new] = row
        former = None if old == new else {"id": old}
        self.notes.update(old=former, id=new, unchanged=[_NOTE] if keeps else [], **sent)

    def _swap(self) -> None:
        one, other = self.rng.sample(sorted(self.rows), 2)
        self.ids += 1
        with self._together():
            self._write(one, self.ids)
            self._write(other, one)
            self._write(self.ids, other)

    @contextmanager
    def _together(self) -> Iterator[None]:
        with self.notes.source.transaction():
            yield

    def _delete(self) -> None:
        i = self._some()
        del self.rows[i]
        self.notes.delete(id=i)

    def _reuse(self) -> None:
        i = self._some()
        del self.rows[i]
        self.notes.delete(id=i)
        self._insert(i)

    def _truncate(self) -> None:
        self.rows.clear()
        self.notes.truncate()

    def _alter(self, *columns: Column) -> None:
        self.notes.alter(replace(self.notes.schema, columns=columns))

    def _add(self) -> None:
        self.attnum += 1
        constant = self.rng.choice([None, f"constant {self.attnum}"])
        for row in self.rows.values():
            row[self.attnum] = constant
        added = column(self.attnum, f"c{self.attnum}", Kind.TEXT, missing_value=constant)
        self._alter(*self.notes.schema.columns, added)
        self._insert()

    def _rename(self) -> None:
        self.made += 1
        self._alter(*(replace(c, name=f"item{self.made}") if c.attnum == 2 else c for c in self.notes.schema.columns))
        self._insert()

    def _drop(self) -> None:
        columns = self.notes.schema.columns
        if len(columns) > _NOTE:
            self._alter(*columns[:_NOTE], *columns[_NOTE + 1 :])
            self._insert()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_changes(place: Place, seed: int) -> None:
    """Whatever the order of changes, kills at any request, replays and resyncs is, the rows are those of the source."""
    rng = random.Random(seed)
    source = Source(row_group_bytes=1, limits=BatchLimits(piece_rows=3))
    notes = source.add(NOTES)
    model = Model(rng, notes)
    for i in range(1, 6):
        model.rows[i] = {2: f"item {i}", 3: f"note {i}"}
    destination, epoch = place.open(), 1
    destination.write_table_rows(notes.target, rows_of(model), source.mark(1000))
    starts = [1000]
    for turn in range(_TURNS):
        for _ in range(rng.randint(1, 8)):
            model.change()
        batch = notes.batch(since=rng.choice(starts[-2:]) if rng.random() < 0.3 else starts[-1])
        if rng.random() < 0.6:
            with killed(place, rng.randint(1, 14), answered=rng.random() < 0.5), suppress(Killed):
                destination.write_events(batch, source.mark(int(batch.until), epoch))
            destination, epoch = place.open(), epoch + 1
            done = destination.applied(NOTES.id)
            assert done is not None
            for _ in range(rng.randint(0, 3)):
                model.change()
            batch = notes.batch(since=int(done.lsn))
        for _ in range(rng.choice([1, 1, 2])):
            destination.write_events(batch, source.mark(int(batch.until), epoch))
        assert found(place, notes) == model.expected(), f"turn {turn}"
        assert destination.applied(NOTES.id) == source.mark(int(batch.until), epoch)
        starts.append(int(batch.until))
        if rng.random() < 0.15:
            mark = source.mark(int(batch.until), epoch)
            if destination.copy_replacement(notes.target, rows_of(model), mark):
                assert destination.swap_replacement(NOTES.id, mark)
            else:
                destination.write_table_rows(notes.target, rows_of(model), mark)
            assert found(place, notes) == model.expected(), f"the resync of turn {turn}"


def rows_of(model: Model) -> ArrowRows:
    """Return the rows of the model as those of a copy."""
    return ArrowRows.of(model.notes.schema, list(model.expected().values()))


def found(place: Place, notes: SourceTable) -> dict[int, dict[str, Any]]:
    """Return the rows of the destination by id."""
    rows = place.read(notes.target)
    assert len({r["id"] for r in rows}) == len(rows)
    return {r["id"]: {c.name: r.get(c.name) for c in notes.schema.columns} for r in rows}
