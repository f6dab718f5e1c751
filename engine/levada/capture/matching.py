"""Which of a table's columns (by attnum) the columns of a RELATION message are. Pure.

RELATION tells names and types in attnum order, but no attnum. Known are the version before it and a later catalog:
between the two anything may have been renamed, dropped, added or retyped. The assignment that needs the fewest
such steps is taken; two that need equally few are not told apart: a guess would put values into a wrong column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from levada.pgoutput.messages import RelationColumn
from levada.schema import Column

_Chain: TypeAlias = "tuple[_Chain, int] | None"


@dataclass(frozen=True, slots=True)
class _Best:
    """The cheapest assignment of the first columns: its cost, how many there are, the columns' attnums, last first."""

    cost: int
    count: int
    attnums: _Chain

    def plus(self, cost: int, attnum: int | None = None) -> _Best:
        return _Best(self.cost + cost, self.count, self.attnums if attnum is None else (self.attnums, attnum))


def match_columns(
    relation: Sequence[RelationColumn], before: Iterable[Column], after: Iterable[Column]
) -> tuple[int, ...] | None:
    """Return each column's attnum; None if more than one assignment is as likely.

    ``before`` are the columns of the last version that is known, ``after`` those that the catalog has now; either may
    be empty: not known. A column that is in both was there all the time.
    """
    earlier = {c.attnum: c for c in before}
    later = {c.attnum: c for c in after}
    end = max([0, *earlier, *later]) + len(relation)
    # By how many columns are assigned; and whether the last attnum was an unknown one that was passed over: of several
    # unknown attnums in a row the first are taken, as they cannot be told apart and need not be.
    states: dict[tuple[int, bool], _Best] = {(0, False): _Best(0, 1, None)}
    for attnum in range(1, end + 1):
        old, new = earlier.get(attnum), later.get(attnum)
        known = old is not None or new is not None
        following: dict[tuple[int, bool], _Best] = {}
        for (assigned, passed), best in states.items():
            if old is None or new is None:
                _offer(following, (assigned, not known), best.plus(1 if known else 0))
            if assigned < len(relation) and (known or not passed):
                cost = _assign_cost(relation[assigned], old, new)
                _offer(following, (assigned + 1, False), best.plus(cost, attnum))
        states = following
    whole: dict[tuple[int, bool], _Best] = {}
    for (assigned, _), best in states.items():
        _offer(whole, (assigned, False), best)
    found = whole.get((len(relation), False))
    return _unchained(found.attnums) if found is not None and found.count == 1 else None


def _offer(states: dict[tuple[int, bool], _Best], state: tuple[int, bool], best: _Best) -> None:
    """Keep the cheaper; of two that cost the same, remember that there are several."""
    other = states.get(state)
    if other is None or best.cost < other.cost:
        states[state] = best
    elif best.cost == other.cost:
        states[state] = _Best(best.cost, best.count + other.count, best.attnums)


def _assign_cost(column: RelationColumn, old: Column | None, new: Column | None) -> int:
    return sum(1 if side is None else _steps(column, side) for side in (old, new))


def _steps(column: RelationColumn, side: Column) -> int:
    retyped = (column.type_oid, column.typmod) != (side.type_oid, side.typmod)
    return (column.name != side.name) + retyped


def _unchained(chain: _Chain) -> tuple[int, ...]:
    attnums = []
    while chain is not None:
        chain, attnum = chain
        attnums.append(attnum)
    return tuple(reversed(attnums))


def same_look(relation: Sequence[RelationColumn], columns: Sequence[Column]) -> bool:
    """Tell whether RELATION shows these columns: names, types and modifiers, in this order."""
    return [(c.name, c.type_oid, c.typmod) for c in relation] == [(c.name, c.type_oid, c.typmod) for c in columns]
