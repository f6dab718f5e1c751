"""A destination in memory, row by row: what the suite expects, in the simplest form. It keeps nothing in files."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from levada.copy.rows import TableRows
from levada.destinations import Capabilities, Destination, NamedCut, TableTarget
from levada.destinations.erasure import Erased, Erasure, kept_by_cuts
from levada.destinations.fold import row_missing
from levada.errors import NeedsOperator, StaleEpoch, Transient
from levada.pgoutput.events import Delete, Event, Insert, Partial, RelationEvent, TruncateEvent, Update
from levada.pgoutput.text import parse_text
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import EventBatch
from levada.values import Durability, Lsn, TableId, TableMode, Watermark, resync_command

Values = dict[int, Any]
"""The values of a row by attnum."""


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """A table and its watermark. ``rows`` are by key. Without a key, each row has its own number."""

    schema: ReplicatedTableSchema
    mark: Watermark
    rows: Mapping[tuple[Any, ...], Values]

    def named(self) -> list[dict[str, Any]]:
        """Return the rows by the names of the columns."""
        return [{c.name: row.get(c.attnum) for c in self.schema.columns} for row in self.rows.values()]


@dataclass(slots=True)
class MemoryTables:
    """The tables of a `MemoryDestination`. They outlive it, as those of a server outlive a process."""

    tables: dict[TableId, MemoryTable] = field(default_factory=dict)
    shadows: dict[TableId, MemoryTable] = field(default_factory=dict)
    cuts: dict[TableId, dict[NamedCut, MemoryTable]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, target: TableTarget) -> list[dict[str, Any]]:
        """Return the rows of a table. Raise KeyError if there is no such table."""
        with self.lock:
            return self.tables[target.id].named()

    def search(self, text: str) -> list[str]:
        """Return the tables and cuts that have a text."""
        with self.lock:
            states = [(str(id_), t) for id_, t in self.tables.items()]
            states += [(cut.name, t) for cuts in self.cuts.values() for cut, t in cuts.items()]
            return [name for name, state in states if text in repr(state.rows)]

    def read_cut(self, target: TableTarget, name: str) -> list[dict[str, Any]]:
        """Return the rows that are kept under a name. Raise KeyError if there are none."""
        with self.lock:
            return {cut.name: held for cut, held in self.cuts[target.id].items()}[name].named()


class MemoryDestination(Destination):
    """Keeps the last state of each row in `MemoryTables`, with its watermark."""

    name: ClassVar[str] = "memory"
    capabilities: ClassVar[Capabilities] = Capabilities(
        upsert=True, watermark=True, replacement=True, cuts=True, erases=True
    )

    def __init__(self, tables: MemoryTables | None = None) -> None:
        self.place = tables or MemoryTables()

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Forget the table and its shadow copy."""
        with self.place.lock:
            held = self.place.tables.get(target.id)
            if held is not None and epoch is not None:
                _check_epoch(held, epoch)
            self.place.tables.pop(target.id, None)
            self.place.shadows.pop(target.id, None)
            self.place.cuts.pop(target.id, None)

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Replace the table's rows by the copied ones."""
        made = _copied(target.schema, rows, mark)
        with self.place.lock:
            _put(self.place.tables, made, mark)
        return Durability.DURABLE

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        """Apply the events in their order, and then replace the tables."""
        if not events.only_asks:
            changed = _applied(self.place.tables, events, mark)
            with self.place.lock:
                for made in changed:
                    _put(self.place.tables, made, mark)
        return Durability.DURABLE

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Keep the copied rows apart from the table."""
        if target.id not in self.place.tables:
            return False
        made = _copied(target.schema, rows, mark)
        with self.place.lock:
            self.place.shadows[target.id] = made
        return True

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Apply the events to the shadow copy."""
        if any(t not in self.place.shadows for t in events.tables):
            return False
        changed = _applied(self.place.shadows, events, mark)
        with self.place.lock:
            self.place.shadows |= {made.schema.id: made for made in changed}
        return True

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Put the shadow copy in the place of the table."""
        with self.place.lock:
            made = self.place.shadows.get(table)
            if made is None or table not in self.place.tables:
                return False
            _put(self.place.tables, replace(made, mark=mark), mark)
            del self.place.shadows[table]
            return True

    def drop_replacement(self, table: TableId) -> None:
        """Forget the shadow copy."""
        with self.place.lock:
            self.place.shadows.pop(table, None)

    def update_cuts(
        self, table: TableId, added: NamedCut | None, removed: Collection[str], mark: Watermark
    ) -> Mapping[str, Lsn]:
        """Keep the table's present rows under the name."""
        with self.place.lock:
            held = self.place.tables[table]
            _check_epoch(held, mark.epoch)
            cuts = self.place.cuts.setdefault(table, {})
            is_new = added is not None and added not in cuts
            if added is not None and is_new and held.mark.lsn > added.lsn:
                raise Transient("cut_passed", f"{held.schema.name} is at {held.mark.lsn}, beyond {added.lsn}")
            gone = {*removed, added.name} if added is not None and is_new else set(removed)
            for cut in [cut for cut in cuts if cut.name in gone]:
                del cuts[cut]
            if added is not None:
                cuts.setdefault(added, held)
            return {cut.name: cut.lsn for cut in cuts}

    def erase(self, target: TableTarget, wanted: Erasure, mark: Watermark) -> Erased:
        """Forget the rows, in the table and in all cuts."""
        with self.place.lock:
            held, cuts = self.place.tables[target.id], self.place.cuts.get(target.id, {})
            _check_epoch(held, mark.epoch)
            named = [[row[c.name] for c in target.schema.key_columns] for row in wanted.keys.to_pylist()]
            keys = {tuple(map(_hashable, key)) for key in named}
            keeping = [cut for cut, state in cuts.items() if state.rows.keys() & keys]
            names = tuple(sorted(cut.name for cut in keeping))
            erased = Erased(len(held.rows.keys() & keys), cuts=names)
            if wanted.dry_run:
                return erased
            if names and not wanted.cuts:
                raise kept_by_cuts(target.schema.name, names)
            for cut in keeping:
                del cuts[cut]
            rows = {key: row for key, row in held.rows.items() if key not in keys}
            self.place.tables[target.id] = replace(held, rows=rows)
            return erased

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return UPSERT, or CHANGELOG for a table without a key, whose rows are only added here."""
        return TableMode.UPSERT if target.schema.key else TableMode.CHANGELOG

    def applied(self, table: TableId) -> Watermark | None:
        """Return the table's watermark."""
        held = self.place.tables.get(table)
        return None if held is None else held.mark


def _check_epoch(held: MemoryTable, epoch: int) -> None:
    if held.mark.epoch > epoch:
        raise StaleEpoch(epoch, held.mark.epoch)


def _put(tables: dict[TableId, MemoryTable], made: MemoryTable, mark: Watermark) -> None:
    held = tables.get(made.schema.id)
    if held is not None:
        _check_epoch(held, mark.epoch)
    tables[made.schema.id] = made


def _copied(schema: ReplicatedTableSchema, rows: TableRows, mark: Watermark) -> MemoryTable:
    kept: dict[tuple[Any, ...], Values] = {}
    for batch in rows.batches():
        for row in batch.to_pylist():
            values = {c.attnum: row[c.name] for c in schema.columns}
            kept[_key(schema, values, len(kept))] = values
    return MemoryTable(schema, mark, kept)


def _key(schema: ReplicatedTableSchema, values: Values, number: int) -> tuple[Any, ...]:
    return tuple(_hashable(values[a]) for a in schema.key) if schema.key else (number,)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _applied(tables: Mapping[TableId, MemoryTable], events: EventBatch, mark: Watermark) -> list[MemoryTable]:
    """Return the tables after the events that they do not have yet."""
    made: dict[TableId, _Copy] = {}
    for table in events.tables:
        held = tables.get(table)
        if held is None:
            name = events.changes(table).schema.name
            raise NeedsOperator("destination_table_missing", f"{name} is not there", hint=resync_command(name))
        _check_epoch(held, mark.epoch)
        if held.mark.lsn < mark.lsn:
            made[table] = _Copy(held.schema, held.mark, dict(held.rows), len(held.rows))
    for event in events:
        for table in _tables(event):
            if table in made and event.commit_lsn >= made[table].mark.lsn:
                made[table].apply(event)
    return [MemoryTable(c.schema, mark, c.rows) for c in made.values()]


def _tables(event: Event) -> tuple[TableId, ...]:
    match event:
        case Insert() | Update() | Delete() | RelationEvent():
            return (event.schema.id,)
        case TruncateEvent():
            return event.tables
    return ()


@dataclass(slots=True)
class _Copy:
    """A table while a batch is applied."""

    schema: ReplicatedTableSchema
    mark: Watermark
    rows: dict[tuple[Any, ...], Values]
    number: int

    def apply(self, event: Event) -> None:
        match event:
            case RelationEvent(schema):
                self._evolve(schema)
            case TruncateEvent():
                self.rows.clear()
            case Insert(schema, row=row):
                self._put(_values(schema, row.values))
            case Update(schema, row=row, old=old):
                new = _values(schema, row.values)
                was = self._place(new if old is None else _values(schema, old.values))
                held = self.rows.pop(was, None)
                if isinstance(row, Partial):
                    if held is None:
                        raise row_missing(self.schema.name, row.unchanged[0])
                    new = held | new
                self._put(new)
            case Delete(schema, old=old):
                self.rows.pop(self._place(_values(schema, old.values)), None)

    def _put(self, values: Values) -> None:
        self.number += 1
        self.rows[self._place(values)] = values

    def _place(self, values: Values) -> tuple[Any, ...]:
        return _key(self.schema, values, self.number)

    def _evolve(self, schema: ReplicatedTableSchema) -> None:
        if schema.key != self.schema.key:
            raise NeedsOperator(
                "key_changed", f"the key of {schema.name} has changed", hint=resync_command(schema.name)
            )
        for column in schema.columns:
            if column.attnum not in self.schema.by_attnum:
                text = column.missing_value
                value = None if text is None else parse_text(column.type, text).as_py()
                self.rows = {key: {**row, column.attnum: value} for key, row in self.rows.items()}
        self.schema = schema


def _values(schema: ReplicatedTableSchema, named: Mapping[str, Any]) -> Values:
    return {c.attnum: named[c.name] for c in schema.columns if c.name in named}
