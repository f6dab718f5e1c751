"""The rows of a partition, by its bounds. Pure.

PostgreSQL keeps each row in the partition whose bounds it satisfies. So the bounds of a partition that was detached or
dropped show which rows the table has lost. That holds for bounds by RANGE and LIST, and for DEFAULT partitions, which
have all rows that no other partition has. A hash function of PostgreSQL is not evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from levada.schema.types import DATES, PLAIN, Kind
from levada.values import Lsn, TableId

_RANGE: Final = re.compile(r"FOR VALUES FROM \((.*)\) TO \((.*)\)", re.DOTALL)
_LIST: Final = re.compile(r"FOR VALUES IN \((.*)\)", re.DOTALL)
_VALUE: Final = re.compile(r"\s*(?:'((?:[^']|'')*)'|([^',\s]+))\s*(,|$)", re.DOTALL)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?(\+00)?)?", re.ASCII)
"""A date or moment in a bound that the destination can hold, and with it all between two of them."""
_TEXTS: Final = frozenset({25, 1043})
"""text and varchar. Other types that are carried as text have other rules of equality and order."""


_NEVER: Final = Lsn(0)


class End(StrEnum):
    """An end of a range without a value."""

    LOWEST = "MINVALUE"
    HIGHEST = "MAXVALUE"


class BoundAt(NamedTuple):
    """The bound of a partition of the table ``parent``, as PostgreSQL's text.

    ``attached`` is the transaction that made it a partition, 0 if it is unknown, and ``command`` the number of the
    command in that transaction, -1 if it is unknown. One that was detached and attached again has others. They stay
    readable after VACUUM FREEZE.
    """

    parent: TableId
    text: str
    attached: int = 0
    command: int = -1

    def is_attached_as(self, other: BoundAt) -> bool:
        """Return True if nothing shows that the partition was detached between two states."""
        if not (self.attached and other.attached):
            return True
        same = -1 in (self.command, other.command) or self.command == other.command
        return self.parent == other.parent and self.attached == other.attached and same


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """The columns by which a table is partitioned, and pg_partitioned_table's ``partstrat``: r, l or h.

    It is ``exact`` if it has no expression, and if PostgreSQL orders and compares the values of its columns by their
    types' own rules and byte by byte.
    """

    strategy: str
    columns: tuple[str, ...]
    exact: bool

    def to_json(self) -> list[object]:
        """Return the list that `from_json` reads."""
        return [self.strategy, list(self.columns), self.exact]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> PartitionKey:
        """Parse the array that the catalog query returns. Raise TypeError or ValueError for anything else."""
        strategy, columns, exact = data
        return cls(str(strategy), tuple(map(str, columns or ())), bool(exact))


Value = str | End | None
"""PostgreSQL's text of a value, an end of a range, or None for NULL in a list."""


@dataclass(frozen=True, slots=True)
class Box:
    """The values of one bound: ``low`` inclusive to ``high`` exclusive, or those of ``values`` for a list."""

    low: tuple[Value, ...] = ()
    high: tuple[Value, ...] = ()
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """Rows whose values of ``columns``, given by attnum, are in one of the boxes, or in none if it is ``negated``."""

    columns: tuple[int, ...]
    boxes: tuple[Box, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """The rows of some partitions: those that satisfy all conditions of one of the ``parts``."""

    parts: tuple[tuple[Condition, ...], ...]

    @property
    def columns(self) -> frozenset[int]:
        """The attnums of the columns that decide."""
        return frozenset(n for part in self.parts for condition in part for n in condition.columns)

    def union(self, other: Region) -> Region:
        """Return the rows of either. Ranges of one column that follow each other become one."""
        if ((),) in (self.parts, other.parts):
            return Region(((),))
        parts = list(self.parts)
        for part in other.parts:
            if part not in parts:
                _add_part(parts, part)
        return Region(tuple(parts))

    def to_json(self) -> list[Any]:
        """Return the list that `from_json` reads."""
        return [
            [[list(c.columns), [_box_to_json(b) for b in c.boxes], c.negated] for c in conditions]
            for conditions in self.parts
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Region:
        """Parse the result of `to_json`."""
        return cls(
            tuple(
                tuple(Condition(tuple(n), tuple(_box_from_json(b) for b in boxes), neg) for n, boxes, neg in conditions)
                for conditions in data
            )
        )


def _add_part(parts: list[tuple[Condition, ...]], part: tuple[Condition, ...]) -> None:
    """Add a part, or extend the range of the one that it follows or precedes."""
    for place, known in enumerate(parts):
        both = (*known, *part)
        if len(both) == 2 and all(len(c.boxes) == 1 and c.boxes[0].low and not c.negated for c in both):
            one, other = (c.boxes[0] for c in both)
            joined = (
                Box(one.low, other.high)
                if one.high == other.low
                else Box(other.low, one.high)
                if other.high == one.low
                else None
            )
            if joined is not None and both[0].columns == both[1].columns:
                parts[place] = (replace(both[0], boxes=(joined,)),)
                return
    parts.append(part)


@dataclass(frozen=True, slots=True)
class Removal:
    """The rows of ``region`` leave the table in the transaction that is committed at LSN ``at``.

    They leave it before the change of that transaction with the number ``ordinal``, and after all earlier ones.
    """

    at: Lsn
    ordinal: int
    region: Region

    def to_json(self) -> list[Any]:
        """Return the list that `from_json` reads."""
        return [str(self.at), self.ordinal, self.region.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> Removal:
        """Parse the result of `to_json`."""
        at, ordinal, region = data
        return cls(Lsn.parse(at), ordinal, Region.from_json(region))


@dataclass(frozen=True, slots=True)
class Arrival:
    """The rows of partitions that came into the table with them. ``leaves`` are the relations that store the rows.

    ``at`` and ``ordinal`` are those of `Removal`. A leaf that has left again is not among the leaves, and ``until`` is
    above the LSN at which it left. The table must not be seen in between, because its rows were never there.
    """

    at: Lsn
    ordinal: int
    leaves: frozenset[TableId]
    until: Lsn = _NEVER

    def without(self, gone: frozenset[TableId], at: Lsn) -> Arrival:
        """Return the arrival after leaves have left at an LSN."""
        if not self.leaves & gone:
            return self
        return replace(self, leaves=self.leaves - gone, until=max(self.until, Lsn(at + 1)))

    def to_json(self) -> list[Any]:
        """Return the list that `from_json` reads."""
        return [str(self.at), self.ordinal, {"leaves": sorted(map(int, self.leaves)), "until": str(self.until)}]

    @classmethod
    def from_json(cls, data: list[Any]) -> Arrival:
        """Parse the result of `to_json`."""
        at, ordinal, found = data
        return cls(Lsn.parse(at), ordinal, frozenset(map(TableId, found["leaves"])), Lsn.parse(found["until"]))


Move: TypeAlias = Removal | Arrival
"""Rows that leave or enter a table with their partition, which PostgreSQL does not stream."""


def move_from_json(data: list[Any]) -> Move:
    """Parse the result of a move's `to_json`."""
    return Arrival.from_json(data) if isinstance(data[2], dict) else Removal.from_json(data)


class KeyColumn(NamedTuple):
    """A column of the table that may be in a partition key. ``is_enum`` is True if its type is an enum."""

    attnum: int
    kind: Kind
    type_oid: int
    is_enum: bool


def region_of(
    gone: Iterable[TableId],
    paths: Mapping[TableId, Sequence[BoundAt]],
    keys: Mapping[TableId, PartitionKey],
    columns: Mapping[str, KeyColumn],
) -> Region | None:
    """Return the rows of the leaves ``gone``, or None if their bounds do not show them exactly.

    ``paths`` has those of all leaves before. ``columns`` has the replicated columns by name.
    """
    bounds: dict[TableId, set[str]] = {}
    for path in paths.values():
        for bound in path:
            bounds.setdefault(bound.parent, set()).add(bound.text)
    parts: dict[tuple[Condition, ...], None] = {}
    for leaf in gone:
        conditions = [_condition(bound, bounds[bound.parent], keys, columns) for bound in paths.get(leaf, ())]
        found = tuple(c for c in conditions if c is not None)
        if not conditions or len(found) < len(conditions):
            return None
        parts[found] = None
    return Region(tuple(parts)) if parts else None


def _condition(
    bound: BoundAt, siblings: Collection[str], keys: Mapping[TableId, PartitionKey], columns: Mapping[str, KeyColumn]
) -> Condition | None:
    key = keys.get(bound.parent)
    if key is None or not key.exact or key.strategy not in "rl" or not columns.keys() >= set(key.columns):
        return None
    own = [columns[name] for name in key.columns]
    if not all(_is_exact(c, key.strategy) for c in own):
        return None
    negated = bound.text == "DEFAULT"
    texts = sorted(set(siblings) - {"DEFAULT"}) if negated else [bound.text]
    boxes = [_box(text, key) for text in texts]
    if not all(b is not None and _is_clear(b, own) for b in boxes):
        return None
    return Condition(tuple(c.attnum for c in own), tuple(b for b in boxes if b is not None), negated)


def _is_exact(column: KeyColumn, strategy: str) -> bool:
    if column.kind in PLAIN | DATES:
        return True
    return column.kind is Kind.TEXT and (column.type_oid in _TEXTS or (strategy == "l" and column.is_enum))


def _is_clear(box: Box, columns: Sequence[KeyColumn]) -> bool:
    """Return True if no value that the destination has as NULL decides whether a row is in the box.

    A column of a range counts for rows whose earlier columns have a value of one of the ends.
    """
    ends = zip(box.low, box.high, strict=True) if box.low else ((v, v) for v in box.values)
    same = True
    for place, (low, high) in enumerate(ends):
        if columns[place if box.low else 0].kind in DATES and not (same and _is_moment(low) and _is_moment(high)):
            return False
        same = same and (not box.low or (low == high and not isinstance(low, End)))
    return True


def _is_moment(value: Value) -> bool:
    return value is not None and _MOMENT.fullmatch(value) is not None


def _box(text: str, key: PartitionKey) -> Box | None:
    """Parse the bound of a partition. Return None for one of another form."""
    if key.strategy == "l" and (found := _LIST.fullmatch(text)):
        values = _values(found[1])
        return None if values is None else Box(values=values)
    if key.strategy == "r" and (found := _RANGE.fullmatch(text)):
        low, high = _values(found[1]), _values(found[2])
        if low is None or high is None or None in (*low, *high) or len(low) != len(key.columns) != len(high):
            return None
        return Box(low, high)
    return None


def _values(text: str) -> tuple[Value, ...] | None:
    """Parse the values of a bound. Return None for text of another form."""
    found: list[Value] = []
    position = 0
    while match := _VALUE.match(text, position):
        quoted, bare, separator = match.groups()
        found.append(quoted.replace("''", "'") if quoted is not None else _bare(bare))
        position = match.end()
        if not separator:
            return tuple(found)
    return None


def _bare(word: str) -> Value:
    if word in (End.LOWEST, End.HIGHEST):
        return End(word)
    return None if word == "NULL" else {"true": "t", "false": "f"}.get(word, word)


def _box_to_json(box: Box) -> list[Any]:
    return [[_value_to_json(v) for v in values] for values in (box.low, box.high, box.values)]


def _box_from_json(data: list[Any]) -> Box:
    low, high, values = (tuple(_value_from_json(v) for v in part) for part in data)
    return Box(low, high, values)


def _value_to_json(value: Value) -> list[str] | str | None:
    return [value.value] if isinstance(value, End) else value


def _value_from_json(data: list[str] | str | None) -> Value:
    return End(data[0]) if isinstance(data, list) else data
