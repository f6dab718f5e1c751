"""Rows of older versions of a table, as the newest version has them."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.segments.changes import batch, changes, column, delete, insert, table, update

from levada.errors import NeedsOperator, Unrepresentable
from levada.pgoutput.changes import RelationChange, TableChanges, Truncate
from levada.schema import Column, ColumnType, IdentityKind, Kind, TableTarget
from levada.schema.changes import OLD, OLD_KIND, OP, UNCHANGED, UNREPRESENTABLE
from levada.segments import StagedBatch, StagedTable, Staging, TableStart
from levada.segments.log import SegmentLog
from levada.segments.projection import check_old_keys, layout, widens
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, TableId

NAMES = (QualifiedTable("public", "t"),)

ID = column(1, "id", Kind.INT8)


def staged(
    path: Path,
    *items: TableChanges | RelationChange | Truncate,
    start: Any,
    after: int = 0,
    until: int = 1000,
    policy: OnUnrepresentable = OnUnrepresentable.ERROR,
) -> StagedTable:
    """The changes of ``start``'s table in one segment of ``items``."""
    staging = Staging.open(str(path))
    log = SegmentLog(staging, "shop")
    writer = log.writer(1, Lsn(0))
    writer.add(batch(*items, end=1000))
    writer.commit(Lsn(1000))
    starts = [TableStart(TableTarget.of(start), Lsn(after))]
    return StagedBatch(staging, log.list(), starts, Lsn(until), policy).changes(start.id)


def test_columns_follow_their_attnum(tmp_path: Path) -> None:
    """A rename keeps the values, a drop leaves them out, an added column has its constant, from PostgreSQL's text."""
    before = table(1, ID, column(2, "name"), column(3, "gone"))
    now = table(1, ID, column(2, "title"), column(4, "since", Kind.DATE, missing_value="2024-02-03"), at=100)
    rows = changes(before, [insert(8, 0, id=1, name="a", gone="x"), delete(8, 1, id=2)])
    newer = changes(now, [insert(100, 0, id=3, title="c", since=None)])
    got = staged(tmp_path, rows, RelationChange(Lsn(100), 0, now), newer, start=before)
    assert [v.snapshot_id for v in got.versions] == [0, 100]
    assert got.schema == now
    assert [(r["id"], r["title"], r["since"]) for b in got.scan() for r in b.to_pylist()] == [
        (1, "a", date(2024, 2, 3)),
        (2, None, None),
        (3, "c", None),
    ]
    everything = got.read()
    assert everything is not None
    assert everything.schema == layout(now)


def test_old_images_follow_as_well(tmp_path: Path) -> None:
    """The old row has the newest version as well. A value that a key image lacks stays unknown."""
    before = table(1, ID, column(2, "n", Kind.INT4), column(3, "gone"))
    more = column(4, "more", Kind.INT4, missing_value="7")
    now = table(1, ID, column(2, "m", Kind.INT8), more, at=100)
    rows = [
        update(8, 0, {"id": 1, "n": 5, "gone": "x"}, "O", id=1, n=6),
        {**update(8, 1, {"id": 2}, "K", id=3, n=6), UNCHANGED: [2, 3]},
        update(8, 2, id=3),
        delete(8, 3, "O", id=3, n=1),
    ]
    got = staged(tmp_path, changes(before, rows), RelationChange(Lsn(100), 0, now), start=before).read()
    assert got is not None
    assert got[OLD].to_pylist() == [{"id": 1, "m": 5, "more": 7}, {"id": 2, "m": None, "more": None}, None, None]
    assert got[OLD_KIND].to_pylist() == ["O", "K", None, "O"]
    assert got[UNCHANGED].to_pylist() == [None, [2], None, None]
    assert got["more"].to_pylist() == [7, 7, 7, 7]
    assert got["m"].to_pylist() == [6, 6, None, 1]
    assert got[OP].to_pylist() == ["U", "U", "U", "D"]


def test_a_swap_of_names_is_no_swap_of_values(tmp_path: Path) -> None:
    """Two columns that exchanged their names keep their values."""
    before = table(1, ID, column(2, "a"), column(3, "b"))
    now = table(1, ID, column(2, "b"), column(3, "a"), at=100)
    rows = changes(before, [update(8, 0, {"id": 1, "a": "A", "b": "B"}, "O", id=1, a="x", b="y")])
    got = staged(tmp_path, rows, RelationChange(Lsn(100), 0, now), start=before).read()
    assert got is not None
    assert (got["a"].to_pylist(), got["b"].to_pylist()) == (["y"], ["x"])
    assert got[OLD].to_pylist() == [{"id": 1, "b": "A", "a": "B"}]


def decimal(precision: int, scale: int) -> ColumnType:
    """A numeric of that precision and scale."""
    return ColumnType(Kind.DECIMAL, precision, scale)


@pytest.mark.parametrize(
    ("before", "after", "safe"),
    [
        (ColumnType(Kind.INT2), ColumnType(Kind.INT8), True),
        (ColumnType(Kind.INT8), ColumnType(Kind.INT4), False),
        (ColumnType(Kind.FLOAT4), ColumnType(Kind.FLOAT8), True),
        (ColumnType(Kind.FLOAT8), ColumnType(Kind.FLOAT4), False),
        (decimal(10, 2), decimal(12, 2), True),
        (decimal(10, 2), decimal(11, 4), False),
        (decimal(10, 2), decimal(9, 2), False),
        (ColumnType(Kind.INT4), ColumnType(Kind.TEXT), False),
        (ColumnType(Kind.TIMESTAMP), ColumnType(Kind.DATE), False),
        (ColumnType(Kind.UUID), ColumnType(Kind.TEXT), True),
        (ColumnType(Kind.TEXT), ColumnType(Kind.JSON), False),
        (
            ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT4)),
            ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT8)),
            True,
        ),
    ],
)
def test_types_widen_or_ask(tmp_path: Path, before: ColumnType, after: ColumnType, safe: bool) -> None:
    """A type that holds every old value is cast to. Any other asks for a resync, and only when the column is read."""
    assert widens(before, after) is safe
    old = table(1, ID, column(2, "x", type=before))
    now = table(1, ID, column(2, "x", type=after), at=100)
    rows = changes(old, [insert(8, 0, id=1)])
    got = staged(tmp_path, rows, RelationChange(Lsn(100), 0, now), start=old)
    assert [b.num_rows for b in got.scan(["id"])] == [1]
    if safe:
        assert [b.schema.field("x").type for b in got.scan()] == [after.arrow]
        return
    with pytest.raises(NeedsOperator) as refused:
        list(got.scan())
    assert refused.value.code == "schema_change_unsupported"
    assert "resync" in refused.value.hint


ODD: Column = column(2, "day", Kind.DATE)


def test_odd_values_meet_the_policy(tmp_path: Path) -> None:
    """An error names table, column and position, never the value.

    Null counts them. Columns that are not read do not matter.
    """
    schema = table(1, ID, ODD)
    rows = changes(
        schema, [insert(8, 0, id=1), {**insert(16, 0, id=2), UNREPRESENTABLE: [(2, "infinity")]}, insert(24, 0, id=3)]
    )
    strict = staged(tmp_path / "a", rows, start=schema)
    with pytest.raises(Unrepresentable) as refused:
        list(strict.scan())
    assert "public.t1: column day" in str(refused.value)
    assert "0/10" in str(refused.value)
    assert "infinity" not in str(refused.value)
    assert 'set spec.onUnrepresentable to "Null" (in quotes), which copies tables' in refused.value.hint
    assert refused.value.hint.endswith("copy the table again: levada resync MANIFEST public.t1")
    assert strict.read(["id"]) is not None
    lenient = staged(tmp_path / "b", rows, start=schema, policy=OnUnrepresentable.NULL)
    got = lenient.read()
    assert got is not None
    assert got["day"].to_pylist() == [None, None, None]
    assert lenient.nulled == 1
    next(lenient.scan())
    list(lenient.items())
    assert lenient.nulled == 1, "a destination that scans a batch again, as after a conflict, counts its values twice"
    assert staged(tmp_path / "c", rows, start=schema, until=16).read() is not None


def test_odd_keys_are_refused_by_each_policy(tmp_path: Path) -> None:
    """Rows whose keys become NULL would be one row, so that Null stops at them too, and does not advise it."""
    schema = replace(table(1, ID, ODD), key=(2,), identity_attnums=(2,))
    rows = changes(schema, [insert(8, 0, id=1), {**insert(16, 0, id=2), UNREPRESENTABLE: [(2, "infinity")]}])
    for policy in (OnUnrepresentable.ERROR, OnUnrepresentable.NULL):
        with pytest.raises(Unrepresentable) as refused:
            list(staged(tmp_path / policy, rows, start=schema, policy=policy).scan())
        assert "column day" in refused.value.message
        assert "Null" not in refused.value.hint


def test_a_later_version_may_have_forgotten_the_constant(tmp_path: Path) -> None:
    """The constant is the one that the column was added with: rewriting the table forgets it in the catalog."""
    before = table(1, ID)
    added = table(1, ID, column(2, "n", Kind.INT4, missing_value="7"), at=100)
    now = table(1, ID, column(2, "n", Kind.INT8), at=200)
    rows = changes(before, [insert(8, 0, id=1)])
    items = [RelationChange(v.snapshot_id, 0, v) for v in (added, now)]
    got = staged(tmp_path, rows, *items, start=before).read(["n"])
    assert got is not None
    assert got.to_pydict() == {"n": [7]}


N_WITH_7 = column(2, "n", Kind.INT4, missing_value="7")
N_AT_RANDOM = column(2, "n", Kind.INT4, rewritten=True)
F_WITH_0_1 = column(2, "n", Kind.FLOAT4, missing_value="0.1")


@pytest.mark.parametrize(
    ("added", "later", "expected"),
    [
        (N_WITH_7, replace(N_WITH_7, missing_value=None), N_WITH_7),
        (N_WITH_7, replace(N_WITH_7, missing_value=None, rewritten=True), N_WITH_7),
        (N_WITH_7, column(2, "n", Kind.INT8, rewritten=True), column(2, "n", Kind.INT8, missing_value="7")),
        (column(2, "n"), column(2, "n", rewritten=True), column(2, "n")),
        (N_AT_RANDOM, column(2, "n", Kind.INT4), N_AT_RANDOM),
        (F_WITH_0_1, replace(F_WITH_0_1, type=ColumnType(Kind.FLOAT8), type_oid=701, missing_value=None), None),
    ],
    ids=["default dropped", "table rewritten", "widened", "default set later", "computed", "another text"],
)
def test_a_destination_gets_a_column_as_it_was_added(
    tmp_path: Path, added: Column, later: Column, expected: Column | None
) -> None:
    """The value of existing rows in a new column comes from the version that added it, not from a later catalog."""
    before = table(1, ID)
    versions = [table(1, ID, added, at=100), table(1, ID, later, at=200)]
    rows = changes(versions[1], [insert(200, 0, id=1, n=None)])
    got = staged(tmp_path, *(RelationChange(v.snapshot_id, 0, v) for v in versions), rows, start=before)
    assert got.schema.columns[1] == (expected or replace(later, rewritten=True))
    assert [c.schema for c in got.items()] == [versions[1]], "the version of a row does not depend on the batch"


@pytest.mark.parametrize(
    ("identity", "columns", "key", "problem"),
    [
        (IdentityKind.PRIMARY_KEY, (1,), (1,), ""),
        (IdentityKind.INDEX, (2,), (2,), "the old value of id"),
        (IdentityKind.INDEX, (1, 2), (1, 2), "several rows could have the same id"),
        (IdentityKind.PRIMARY_KEY, (1, 2), (2, 1), "several rows could have the same id"),
        (IdentityKind.FULL, (1, 2), (1,), ""),
        (IdentityKind.FULL, (1, 2), (), "several rows could have the same id"),
        (IdentityKind.FULL, (2,), (1,), "the old value of id"),
        (IdentityKind.MISSING, (), (), ""),
    ],
)
def test_old_rows_need_the_key(
    identity: IdentityKind, columns: tuple[int, ...], key: tuple[int, ...], problem: str
) -> None:
    """Changes of a time with another identity or key are taken only if each of them shows which row it is for."""
    newest = table(1, ID, column(2, "n"), at=100)
    with pytest.raises(NeedsOperator, match=problem) if problem else nullcontext() as refused:
        check_old_keys(newest, [replace(newest, identity=identity, identity_attnums=columns, key=key)])
    assert refused is None or refused.value.code == "key_changed"


def test_values_that_nobody_told_ask_for_a_resync(tmp_path: Path) -> None:
    """Rows from before a column whose default was computed row by row cannot be completed."""
    before = table(1, ID)
    now = table(1, ID, column(2, "at", Kind.TIMESTAMPTZ, rewritten=True), at=100)
    got = staged(tmp_path, changes(before, [insert(8, 0, id=1)]), RelationChange(Lsn(100), 0, now), start=before)
    assert got.read(["id"]) is not None
    with pytest.raises(NeedsOperator) as refused:
        got.read()
    assert refused.value.code == "schema_change_unsupported"


def test_events_are_in_one_order(tmp_path: Path) -> None:
    """Rows of several tables, truncates and schema changes are walked in the order of the stream."""
    one, two = table(1, ID), table(2, ID)
    newer = table(1, ID, column(2, "x"), at=16)
    truncate = Truncate(Lsn(16), 1, (TableId(2),), False, False, 16, 16, NAMES)
    staging = Staging.open(str(tmp_path))
    log = SegmentLog(staging, "shop")
    writer = log.writer(1, Lsn(0))
    writer.add(
        batch(
            changes(one, [insert(8, 0, id=1), insert(8, 2, id=2)]),
            changes(two, [insert(8, 1, id=1), insert(16, 2, id=2)]),
            truncate,
            RelationChange(Lsn(16), 0, newer),
            changes(newer, [insert(16, 0, id=3)]),
            end=24,
        )
    )
    writer.commit(Lsn(24))
    starts = [TableStart(TableTarget.of(one), Lsn(0)), TableStart(TableTarget.of(two), Lsn(0))]
    walked = [(type(e).__name__, e.commit_lsn, e.ordinal) for e in StagedBatch(staging, log.list(), starts, Lsn(24))]
    assert walked == [
        ("Begin", 8, 0),
        ("Insert", 8, 0),
        ("Insert", 8, 1),
        ("Insert", 8, 2),
        ("Commit", 8, 3),
        ("Begin", 16, 0),
        ("RelationEvent", 16, 0),
        ("Insert", 16, 0),
        ("TruncateEvent", 16, 1),
        ("Insert", 16, 2),
        ("Commit", 16, 3),
    ]


def test_the_start_decides_what_is_known(tmp_path: Path) -> None:
    """A version from before the start is no news: the copy's version is the newest, whatever its number."""
    early = table(1, ID, at=50)
    copied = table(1, ID, column(2, "more"))
    rows = changes(early, [insert(60, 0, id=1), insert(300, 0, id=2)])
    got = staged(tmp_path, RelationChange(Lsn(50), 0, early), rows, start=copied, after=200)
    assert got.versions == (copied,)
    found = got.read()
    assert found is not None
    assert (found["id"].to_pylist(), found["more"].to_pylist()) == ([2], [None])


def test_truncates_and_relations_outside_of_the_range_are_left_out(tmp_path: Path) -> None:
    """``after`` is inclusive, ``until`` exclusive, for what is not a row as well."""
    schema = table(1, ID)
    versions = [table(1, ID, column(2, "x"), at=at) for at in (8, 16, 24)]
    truncates = [Truncate(Lsn(at), 1, (TableId(1),), False, False, 0, 0, NAMES) for at in (8, 16, 24)]
    items = [RelationChange(v.snapshot_id, 0, v) for v in versions]
    got = staged(tmp_path, *items, *truncates, start=schema, after=16, until=24)
    assert got.versions == (schema, versions[1])
    assert got.truncates == (truncates[1],)
    assert got.read() is None


def test_tables_travel_to_tasks(tmp_path: Path) -> None:
    """A task gets a few names, and opens the files where it runs."""
    schema = table(1, ID)
    got = staged(tmp_path, changes(schema, [insert(8, 0, id=i) for i in range(1000)]), start=schema)
    sent = pickle.dumps(got)
    assert len(sent) < 4096
    there = pickle.loads(sent)
    assert sum(b.num_rows for b in there.scan(["id"], files=got.files[:1])) == 1000


def test_unknown_columns_are_refused(tmp_path: Path) -> None:
    """Asking for a column that the table has not is a mistake of the caller."""
    schema = table(1, ID)
    got = staged(tmp_path, changes(schema, [insert(8, 0, id=1)]), start=schema)
    with pytest.raises(ValueError, match="nope"):
        list(got.scan(["nope"]))
