"""The attnums of a RELATION's columns are found, or the change is reported as ambiguous. None is guessed."""

from __future__ import annotations

import cProfile
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.capture.attnums import identify_columns, match_columns
from levada.pgoutput.messages import Relation, RelationColumn
from levada.schema import Column, ColumnType, Kind
from levada.values import TableId

Table = dict[int, tuple[str, int]]
"""A table's living columns: attnum -> name, type OID."""


def columns(table: Table) -> list[Column]:
    """Return the columns of a version or of the catalog."""
    return [Column(a, name, ColumnType(Kind.TEXT), "text", oid) for a, (name, oid) in sorted(table.items())]


@dataclass(frozen=True)
class Changed:
    """A catalog in which these columns have changed, None if it must not be asked."""

    attnums: set[int] | None

    def newer(self, table: TableId, xid: int) -> set[int]:
        assert self.attnums is not None
        return self.attnums


def identified(now: Table, after: Table, newer: set[int] | None) -> tuple[int, ...] | None:
    """The attnums of a RELATION message, after a version with the columns of `_THREE`."""
    message = Relation(TableId(5), "public", "t", "d", tuple(relation(now)))
    return identify_columns(message, columns(_THREE), columns(after), Changed(newer), 700)


def relation(table: Table) -> list[RelationColumn]:
    """Return the columns of a RELATION message."""
    return [RelationColumn(name, oid, -1, False) for _, (name, oid) in sorted(table.items())]


def named(**names: int) -> Table:
    """Text columns."""
    return {attnum: (name, 25) for name, attnum in names.items()}


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        (named(id=1, a=2), named(id=1, a=2), named(id=1, a=2)),
        (named(id=1, a=2), named(id=1, b=2), named(id=1, b=2)),
        (named(id=1, a=2), named(id=1), named(id=1)),
        (named(id=1, a=2), named(id=1, a=2, b=3), named(id=1, a=2, b=3)),
        # A swap of names, a name that another column takes over, and a rename together with an addition.
        (named(id=1, a=2, b=3), named(id=1, b=2, a=3), named(id=1, b=2, a=3)),
        (named(id=1, a=2, b=3), named(id=1, a=3), named(id=1, a=3)),
        (named(id=1, a=2), named(id=1, b=2, a=3), named(id=1, b=2, a=3)),
        # The catalog is ahead: what was there meanwhile is gone, renamed, or joined by others.
        (named(id=1, a=2, b=3), named(id=1, a=2, b=3, c=4), named(id=1, a=3, c=4)),
        (named(id=1, a=2), named(id=1, b=2), named(id=1, z=2, y=7)),
        (named(id=1, a=2), named(id=1, a=2, b=3), named(id=1, a=2)),
        # Nothing was known before: a table that was just added.
        ({}, named(id=1, a=4), named(id=1, a=4)),
        # The table is gone already.
        (named(id=1, a=3), named(id=1, a=3), {}),
    ],
)
def test_what_can_be_told_is_told(before: Table, now: Table, after: Table) -> None:
    """Names, order, types and what must have been there all the time give the only likely assignment."""
    assert match_columns(relation(now), columns(before), columns(after)) == tuple(sorted(now))


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        # Renamed, then replaced by another column; or replaced, and that one renamed.
        (named(id=1, a=2), named(id=1, b=2), named(id=1, c=3)),
        # Dropped and added again under its name: the new column, or still the old one.
        (named(id=1, a=2), named(id=1, a=3), named(id=1, a=3)),
    ],
)
def test_what_cannot_be_told_is_not_guessed(before: Table, now: Table, after: Table) -> None:
    """Two stories that are as likely give no answer."""
    assert match_columns(relation(now), columns(before), columns(after)) is None


_INT = 23
_THREE: Table = {1: ("id", _INT), 2: ("a", 25), 3: ("b", _INT)}


@pytest.mark.parametrize(
    ("now", "after", "newer"),
    [
        # Added and dropped, then added again with the same name, which the row does not have yet.
        (_THREE | {4: ("z", _INT)}, _THREE | {5: ("z", _INT)}, {4, 5}),
        # Added and renamed, then another one added with its name.
        (_THREE | {4: ("z", _INT)}, _THREE | {4: ("y", _INT), 5: ("z", _INT)}, {4, 5}),
        # Renamed and dropped, then added with that name.
        ({1: ("id", _INT), 2: ("b", 25), 3: ("a", _INT)}, {1: ("id", _INT), 2: ("b", 25), 4: ("a", _INT)}, {2, 3, 4}),
        # Dropped and added again, then renamed, in one transaction with the row and in three.
        ({1: ("id", _INT), 2: ("a", 25), 4: ("b", _INT)}, {1: ("id", _INT), 2: ("a", 25), 4: ("c", _INT)}, {3, 4}),
        ({1: ("id", _INT), 2: ("a", 25), 4: ("b", _INT)}, {1: ("id", _INT), 2: ("a", 25), 4: ("c", _INT)}, {4}),
    ],
)
def test_a_name_that_another_column_had_is_not_guessed(now: Table, after: Table, newer: set[int]) -> None:
    """A row's column is not taken for another one of its name, if the catalog has changed since the row."""
    assert match_columns(relation(now), columns(_THREE), columns(after)) not in (None, tuple(sorted(now)))
    assert identified(now, after, newer) is None


@pytest.mark.parametrize(
    ("now", "newer"),
    [
        # A column is dropped and another one added, before the transaction of the row or of another type.
        ({1: ("id", _INT), 2: ("a", 25), 4: ("c", _INT)}, set()),
        ({1: ("id", _INT), 2: ("a", 25), 4: ("c", 25)}, {3, 4}),
        # The dropped column was before one that is still there.
        ({1: ("id", _INT), 3: ("b", _INT), 4: ("c", 25)}, {2, 4}),
    ],
)
def test_a_column_is_found_if_no_other_may_have_had_its_name(now: Table, newer: set[int]) -> None:
    """A column that is added after another one was dropped is found, so that no copy is needed."""
    assert identified(now, now, newer) == tuple(sorted(now))


def test_the_catalog_is_read_only_for_an_added_column() -> None:
    """A RELATION without an added column needs no second query of the catalog."""
    for after in (_THREE, {1: ("id", _INT), 3: ("c", _INT)}):
        assert identified(after, after, None) == tuple(after)


@given(
    before=st.dictionaries(st.integers(1, 6), st.tuples(st.sampled_from("abcdef"), st.sampled_from([20, 25]))),
    steps=st.lists(st.tuples(st.sampled_from("radt"), st.integers(0, 5), st.sampled_from("uvwxyz")), max_size=1),
)
def test_one_step_is_always_understood(before: Table, steps: list[tuple[str, int, str]]) -> None:
    """After any single ALTER that the catalog still shows, every column is found."""
    table = {a: (f"{name}{a}", oid) for a, (name, oid) in before.items()}
    now = dict(table)
    for step, which, name in steps:
        attnum = sorted(now)[which % len(now)] if now else 0
        if step == "a" or not now:
            now[max([*table, 0]) + 1] = (name, 25)
        elif step == "d":
            del now[attnum]
        else:
            now[attnum] = (name, now[attnum][1]) if step == "r" else (now[attnum][0], 23)
    assert match_columns(relation(now), columns(table), columns(now)) == tuple(sorted(now))


@given(
    before=st.dictionaries(st.integers(1, 4), st.tuples(st.sampled_from("abc"), st.sampled_from([20, 25])), max_size=3),
    now=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([20, 25])), max_size=3),
    after=st.dictionaries(st.integers(1, 5), st.tuples(st.sampled_from("abc"), st.sampled_from([20, 25])), max_size=4),
)
def test_the_only_cheapest_assignment_is_found(before: Table, now: list[tuple[str, int]], after: Table) -> None:
    """The result is the only assignment with the fewest steps of all that are possible."""
    found = match_columns([RelationColumn(n, oid, -1, False) for n, oid in now], columns(before), columns(after))
    assert found == only_cheapest(before, now, after)


def only_cheapest(before: Table, now: list[tuple[str, int]], after: Table) -> tuple[int, ...] | None:
    """Compare all assignments."""
    known = before.keys() | after.keys()
    last = max([0, *known]) + len(now)
    costs: dict[tuple[int, ...], int] = {}
    for attnums in itertools.combinations(range(1, last + 1), len(now)):
        leaves_out_existing = (before.keys() & after.keys()) - set(attnums)
        unknown = [a for a in attnums if a not in known]
        # Of a run of unknown attnums the first ones are taken, as all are equivalent.
        jumps = any(a - 1 > 0 and a - 1 not in known and a - 1 not in attnums for a in unknown)
        if not leaves_out_existing and not jumps:
            sides = [(column, side.get(a)) for a, column in zip(attnums, now, strict=True) for side in (before, after)]
            steps = [1 if had is None else (name != had[0]) + (oid != had[1]) for (name, oid), had in sides]
            costs[attnums] = sum(steps) + len(known - set(attnums))
    cheapest = [a for a, cost in costs.items() if cost == min(costs.values())]
    return cheapest[0] if len(cheapest) == 1 else None


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_the_work_grows_as_the_columns(seen: int) -> None:
    """Four times as many columns take four times as many calls, also if a column was added."""

    def calls(count: int) -> int:
        wide: Table = {a: (f"c{a}", 25) for a in range(1, count + 1)}
        former = {a: wide[a] for a in range(1, count)} if seen == 2 else wide
        profile = cProfile.Profile()
        with profile:
            assert match_columns(relation(wide), columns(former) if seen else [], columns(wide)) == tuple(wide)
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(200) < 6 * calls(50)


def test_a_wide_table_takes_no_time() -> None:
    """PostgreSQL's widest table is matched without a search."""
    wide: Table = {a: (f"c{a}", 25) for a in range(1, 1601)}
    assert match_columns(relation(wide), columns(wide), columns(wide)) == tuple(range(1, 1601))
