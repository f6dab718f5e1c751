"""Assigns attnums to the columns of a RELATION message. Pure.

A RELATION message has names and types in attnum order, but no attnums. Two states of the table are known: the version
before the message, and the catalog, which is read later. Columns may have been renamed, dropped, added or retyped
between the two. The assignment with the fewest such steps wins. If several need equally few, there is no result,
because a guess could write values into the wrong column. Nor is there one if the catalog has changed since the message
so that a column may have had the name of another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from levada.pgoutput.messages import Relation, RelationColumn
from levada.schema import Column, ExcludedColumn
from levada.values import TableId

KnownColumn: TypeAlias = Column | ExcludedColumn
_Chain: TypeAlias = "tuple[_Chain, int] | None"


@dataclass(frozen=True, slots=True)
class _Best:
    """The cheapest assignment of the first columns.

    ``cost`` is its number of steps, ``count`` the number of assignments of this cost. ``attnums`` is a linked list of
    the columns' attnums, the last one first.
    """

    cost: int
    count: int
    attnums: _Chain

    def plus(self, cost: int, attnum: int | None = None) -> _Best:
        return _Best(self.cost + cost, self.count, self.attnums if attnum is None else (self.attnums, attnum))


class ChangedColumns(Protocol):
    """The catalog of the source, asked for columns that were changed lately."""

    def newer(self, table: TableId, xid: int) -> Collection[int]:
        """Return the attnums, also of dropped columns, whose rows may have been written after ``xid`` was committed."""


def identify_columns(
    relation: Relation, before: Iterable[KnownColumn], after: Iterable[KnownColumn], catalog: ChangedColumns, xid: int
) -> tuple[int, ...] | None:
    """Return the attnum of each column, or None if another column may have had its name.

    ``before`` and ``after`` are as for `match_columns`, and ``xid`` is the RELATION's transaction. The catalog is asked
    only if a column was added since ``before``.
    """
    earlier, later = {c.attnum: c for c in before}, {c.attnum: c for c in after}
    found = match_columns(relation.columns, earlier.values(), later.values())
    if found is None or not earlier or later.keys() <= earlier.keys():
        return found
    newer = catalog.newer(relation.oid, xid)
    left, stayed = sorted(set(newer).difference(found)), earlier.keys() & later.keys()
    for column, attnum in zip(relation.columns, found, strict=True):
        if attnum in stayed or (attnum in later and attnum not in newer):
            continue
        # Either the column was added since, and one with a smaller attnum may have had its name before it was dropped
        # or renamed. Or it is dropped, and one that was added then may have had its name before it was renamed.
        low = max((a for a in found if a in stayed and a < attnum), default=0)
        high = min((a for a in found if a in stayed and a > attnum), default=left[-1] + 1 if left else 0)
        others = [a for a in left if (low < a < attnum if attnum in later else attnum < a < high and a in later)]
        if any(_may_be(column, earlier.get(a) or later.get(a)) for a in others):
            return None
    return found


def _may_be(column: RelationColumn, known: KnownColumn | None) -> bool:
    """Return True if a column of the message may be a known one under another name. Dropped ones may be unknown."""
    return known is None or (column.type_oid, column.typmod) == (known.type_oid, known.typmod)


def match_columns(
    relation: Sequence[RelationColumn], before: Iterable[KnownColumn], after: Iterable[KnownColumn]
) -> tuple[int, ...] | None:
    """Return the attnum of each column, or None if several assignments need the fewest steps.

    ``before`` has the columns of the last known version, ``after`` those in the catalog now, both with those that are
    excluded, because a RELATION has them too. Either is empty if it is unknown. A column in both existed all the time,
    because PostgreSQL never reuses an attnum.
    """
    earlier = {c.attnum: c for c in before}
    later = {c.attnum: c for c in after}
    # Each column costs this in any case. Assignments that cost more than a limit are not followed, so the time grows
    # with the columns and with the number of steps between the states, and not with the square of the columns.
    least = len(relation) * ((not earlier) + (not later))
    most = len(relation) * 4 + len(earlier.keys() | later.keys())
    limit = least
    while (found := _cheapest(relation, earlier, later, limit)) is None:
        if limit >= most:
            return None
        limit = least + max(1, 2 * (limit - least))
    return _unchained(found.attnums) if found.count == 1 else None


def _cheapest(
    relation: Sequence[RelationColumn], earlier: Mapping[int, KnownColumn], later: Mapping[int, KnownColumn], limit: int
) -> _Best | None:
    """Return the cheapest assignment of all columns, or None if each costs more than ``limit``."""
    end = max([0, *earlier, *later]) + len(relation)
    least = (not earlier) + (not later)
    # The key is the number of assigned columns, and whether the last attnum is an unknown one that was skipped. In a
    # run of unknown attnums the first ones are assigned: they are equivalent, so this does not count as ambiguous.
    states: dict[tuple[int, bool], _Best] = {(0, False): _Best(0, 1, None)}
    for attnum in range(1, end + 1):
        old, new = earlier.get(attnum), later.get(attnum)
        known = old is not None or new is not None
        following: dict[tuple[int, bool], _Best] = {}
        for (assigned, skipped), best in states.items():
            left = limit - best.cost - least * (len(relation) - assigned)
            if (old is None or new is None) and left >= known:
                _offer(following, (assigned, not known), best.plus(1 if known else 0))
            if assigned < len(relation) and (known or not skipped):
                cost = _assign_cost(relation[assigned], old, new)
                if cost - least <= left:
                    _offer(following, (assigned + 1, False), best.plus(cost, attnum))
        states = following
    complete: dict[tuple[int, bool], _Best] = {}
    for (assigned, _), best in states.items():
        _offer(complete, (assigned, False), best)
    return complete.get((len(relation), False))


def _offer(states: dict[tuple[int, bool], _Best], state: tuple[int, bool], best: _Best) -> None:
    """Keep the cheaper assignment of a state, and add up the counts if both have the same cost."""
    other = states.get(state)
    if other is None or best.cost < other.cost:
        states[state] = best
    elif best.cost == other.cost:
        states[state] = _Best(best.cost, best.count + other.count, best.attnums)


def _assign_cost(column: RelationColumn, old: KnownColumn | None, new: KnownColumn | None) -> int:
    return sum(1 if side is None else _steps(column, side) for side in (old, new))


def _steps(column: RelationColumn, side: KnownColumn) -> int:
    retyped = (column.type_oid, column.typmod) != (side.type_oid, side.typmod)
    return (column.name != side.name) + retyped


def _unchained(chain: _Chain) -> tuple[int, ...]:
    attnums = []
    while chain is not None:
        chain, attnum = chain
        attnums.append(attnum)
    return tuple(reversed(attnums))


def same_columns(relation: Sequence[RelationColumn], columns: Sequence[Column]) -> bool:
    """Return True if RELATION has the same names, types and type modifiers as these columns, in the same order."""
    return [(c.name, c.type_oid, c.typmod) for c in relation] == [(c.name, c.type_oid, c.typmod) for c in columns]
