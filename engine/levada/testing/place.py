"""The destination under test: how to open it, and how to read its tables back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from levada.destinations import Destination
from levada.schema import Column, ReplicatedTableSchema, TableTarget
from levada.schema.changes import COMMIT_LSN, OP, ORDINAL, UNCHANGED

Row: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[TableTarget], pa.Table | Iterable[Row]]
"""Reads all rows of a table, by other means than the destination's, if there are any.

The rows are the current ones. If the table is a changelog, they are those that its changes add up to, see
`fold_changelog`.
"""


def _as_it_is(column: Column, value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class DestinationPlace:
    """A place for one test, which is empty at first, with the destination that writes to it.

    ``open`` returns a new object over the same place each time, as a process does after its start. `startup` is called
    by the suite. ``read`` reads a table. ``shown`` returns the value that a reader sees for a value of the source, if
    the two differ, such as text for a time. ``in_child`` is a picklable function that opens the destination in another
    process, which the suite kills. Without it these tests are skipped. ``read_cut`` reads the state of a table that
    is kept under a name, for a destination with the capability ``cuts``. ``search`` returns every file, and every other
    place of the destination, that has a text, for a destination with the capability ``erases``. It looks into
    compressed files.
    """

    open: Callable[[], Destination]
    read: Reader
    shown: Callable[[Column, Any], Any] = _as_it_is
    in_child: Callable[[], Destination] | None = None
    read_cut: Callable[[TableTarget, str], pa.Table | Iterable[Row]] | None = None
    search: Callable[[str], list[str]] | None = None

    def rows(self, target: TableTarget) -> list[dict[str, Any]]:
        """Return the rows of a table, sorted, in a form that compares equal if the values are the same."""
        return _as_rows(self.read(target))

    def cut_rows(self, target: TableTarget, name: str) -> list[dict[str, Any]]:
        """Return the rows that are kept under a name, in the form of `rows`."""
        if self.read_cut is None:
            raise NotImplementedError("the place needs `read_cut`, because its destination has the capability cuts")
        return _as_rows(self.read_cut(target, name))

    def places_of(self, text: str) -> list[str]:
        """Return the places at the destination that have a text."""
        if self.search is None:
            raise NotImplementedError("the place needs `search`, because its destination has the capability erases")
        return self.search(text)

    def expected(self, schema: ReplicatedTableSchema, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return rows of the source in the form of `rows`. Missing columns are NULL."""
        # Through Arrow, because a decimal gets its column's scale there, and a float4 its precision.
        typed = pa.RecordBatch.from_pylist([dict(r) for r in rows], schema.arrow).to_pylist()
        shown = [
            {c.name: None if r[c.name] is None else self.shown(c, r[c.name]) for c in schema.columns} for r in typed
        ]
        return _sorted(shown)


def _as_rows(found: pa.Table | Iterable[Row]) -> list[dict[str, Any]]:
    return _sorted(found.to_pylist() if isinstance(found, pa.Table) else [dict(r) for r in found])


def _sorted(rows: Iterable[Row]) -> list[dict[str, Any]]:
    plain = [{name: _comparable(value) for name, value in row.items()} for row in rows]
    return sorted(plain, key=lambda r: repr(sorted(r.items(), key=lambda i: i[0])))


def _comparable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def fold_changelog(schema: ReplicatedTableSchema, changes: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows that the changes of a changelog add up to.

    A change has the table's columns and those of a changelog, as in ``docs/types.md``. Copied rows have the operation
    ``I`` and no ordinal. A change that was written twice counts once. The unknown values of a row are those that it had
    before, also if the change has moved its key.
    """
    names = [c.name for c in schema.columns]
    key = [c.name for c in schema.key_columns] or names
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    # The row that the last delete has removed. If its ordinal has an insert too, an update has moved the key.
    deleted: dict[tuple[int, int], dict[str, Any]] = {}
    for change in sorted(changes, key=_place):
        at = tuple(repr(change[name]) for name in key)
        place = _place(change)[:2]
        if change[OP] == "T":
            rows.clear()
        elif change[OP] == "D":
            if at in rows:
                deleted = {place: rows.pop(at)}
        else:
            unknown = change.get(UNCHANGED) or ()
            held = deleted.get(place) or rows.get(at, {})
            rows[at] = {n: held.get(n) if n in unknown else change.get(n) for n in names}
    return list(rows.values())


def _place(change: Row) -> tuple[int, int, bool]:
    ordinal = change.get(ORDINAL)
    # An update of a key is a delete and an insert of the same ordinal, in this order.
    return change[COMMIT_LSN], -1 if ordinal is None else ordinal, change[OP] != "D"
