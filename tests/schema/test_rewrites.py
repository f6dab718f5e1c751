"""Decides from two states of a table's storage whether rows that existed are still right at the destination."""

from __future__ import annotations

from dataclasses import replace

import pytest

from levada.schema.retypes import Cast, read_retypes
from levada.schema.rewrites import Witness, find_change
from levada.schema.storage import ColumnStorage, LeafStorage, TableStorage, TypeStorage
from levada.values import TableId

TABLE = TableId(100)
NAMES = {1: "id", 2: "v"}
QUIET = Witness()
MOOD = TypeStorage("e", "mood", {"1": "good", "2": "bad"}, 0)
PAIR = TypeStorage("c", "pair", {"1": "23 -1", "2": "25 -1"}, 0)
BEFORE = TableStorage(
    {TABLE: LeafStorage(500, 10, False, False)},
    {1: ColumnStorage(23, -1, 10, False), 2: ColumnStorage(23, -1, 10, False), 3: ColumnStorage(23, -1, 10, True)},
    {7: MOOD, 8: PAIR},
)
ROOT = TableStorage(
    {TableId(201): LeafStorage(501, 10, False, True), TableId(202): LeafStorage(502, 10, False, True)},
    BEFORE.columns,
    {},
)


def changed(
    before: TableStorage = BEFORE,
    *,
    column: ColumnStorage | None = None,
    leaf: LeafStorage | None = None,
    witness: Witness = QUIET,
) -> str:
    """Return the code of the change, empty for none."""
    now = replace(
        before,
        columns={**before.columns, **({2: column} if column else {})},
        leaves={**before.leaves, **({min(before.leaves): leaf} if leaf else {})},
    )
    found = find_change(TABLE, NAMES, before, now, witness)
    return found.code if found else ""


def test_new_files_alone_leave_values_as_they_are() -> None:
    """VACUUM FULL, CLUSTER, a streamed TRUNCATE, SET TABLESPACE: no column is touched."""
    assert changed(leaf=LeafStorage(999, 20, False, False)) == ""


def test_new_versions_of_columns_alone_leave_values_as_they_are() -> None:
    """SET NOT NULL, SET DEFAULT, RENAME, and a longer varchar or numeric rewrite no row."""
    assert changed(column=ColumnStorage(23, -1, 20, False)) == ""
    assert changed(column=ColumnStorage(23, 14, 20, False)) == ""


def test_a_rewrite_with_a_touched_column_changes_values() -> None:
    """The same type or another: without the statement nothing says which values the rows have now."""
    leaf = LeafStorage(999, 20, False, False)
    assert changed(column=ColumnStorage(23, -1, 20, False), leaf=leaf) == "table_rewritten"
    assert changed(column=ColumnStorage(20, -1, 20, False), leaf=leaf) == "table_rewritten"


@pytest.mark.parametrize(
    ("default", "type_oid", "found"), [(70, 23, ""), (71, 23, "table_rewritten"), (70, 20, "table_rewritten")]
)
def test_a_rewrite_writes_the_values_of_added_columns(default: int, type_oid: int, found: str) -> None:
    """VACUUM FULL writes the default of a column that was added into older rows. A new type makes the default again."""
    before = replace(BEFORE, columns={**BEFORE.columns, 2: ColumnStorage(23, -1, 10, False, missing=True, default=70)})
    column, leaf = ColumnStorage(type_oid, -1, 20, False, default=default), LeafStorage(999, 20, False, False)
    assert changed(before, column=column, leaf=leaf) == found
    assert changed(before, column=replace(column, default=0), leaf=leaf) == "table_rewritten"


@pytest.mark.parametrize(
    ("old", "new", "safe"),
    [(21, 20, True), (23, 20, True), (700, 701, True), (20, 23, False), (23, 23, False), (114, 3802, False)],
)
def test_a_plain_widening_is_safe(old: int, new: int, safe: bool) -> None:
    """By PostgreSQL's own cast, and only where every value of the old type is one of the new type."""
    before = replace(BEFORE, columns={**BEFORE.columns, 2: ColumnStorage(old, -1, 10, False)})
    column, leaf = ColumnStorage(new, -1, 20, False), LeafStorage(999, 20, False, False)
    for announced in (True, False):
        told = Witness(announced=announced, casts={2: Cast.OWN})
        assert changed(before, column=column, leaf=leaf, witness=told) == ("" if safe else "table_rewritten")
        other = changed(before, column=column, leaf=leaf, witness=replace(told, casts={1: Cast.OWN}))
        assert other == ("" if announced and old == new else "table_rewritten")


def test_a_plain_statement_rewrites_no_other_column() -> None:
    """A rewrite that fills in an added column's default writes the column's catalog row as well. That is no change."""
    before = replace(BEFORE, columns={**BEFORE.columns, 3: ColumnStorage(700, -1, 10, False)})
    now = replace(
        before,
        columns={**before.columns, 2: replace(before.columns[2], xmin=20), 3: ColumnStorage(701, -1, 20, False)},
        leaves={TABLE: LeafStorage(999, 20, False, False)},
    )
    names = {**NAMES, 3: "d"}
    assert find_change(TABLE, names, before, now, Witness(announced=True, casts={3: Cast.OWN})) is None
    assert find_change(TABLE, names, before, now, Witness(announced=True)) is not None


def test_an_announced_statement_is_judged_by_its_own_file() -> None:
    """A file that is new because of an earlier TRUNCATE does not make a rewrite of a later SET NOT NULL."""
    column, leaf = ColumnStorage(23, -1, 21, False), LeafStorage(999, 20, False, False)
    assert changed(column=column, leaf=leaf, witness=Witness(announced=True)) == ""
    within = ColumnStorage(23, -1, 20, False, cmin=5), LeafStorage(999, 21, False, False, cmin=3)
    assert changed(column=within[0], leaf=within[1], witness=Witness(announced=True)) == ""
    assert changed(column=column, leaf=leaf) == "table_rewritten"


def test_a_table_without_rows_is_not_rewritten() -> None:
    """An announced statement that leaves its new files without a block has changed no row. Another may have."""
    column, empty = ColumnStorage(20, -1, 20, False), LeafStorage(999, 20, True, False)
    announced = Witness(announced=True)
    assert changed(column=column, leaf=empty, witness=announced) == ""
    assert changed(column=column, leaf=replace(empty, empty=False), witness=announced) == "table_rewritten"
    assert changed(column=column, leaf=empty) == "table_rewritten"
    assert changed(ROOT, column=column, leaf=empty, witness=announced) == "table_rewritten"


def test_a_statement_whose_relation_the_trigger_has_written_again() -> None:
    """REPLICA IDENTITY of the trigger gives the relation's row the number of a savepoint, and a later command."""
    announced = Witness(announced=True)
    for xmin, cmin, found in ((22, 7, "table_rewritten"), (22, -1, "table_rewritten"), (22, 3, ""), (19, 7, "")):
        column, leaf = ColumnStorage(23, -1, 20, False, cmin=5), LeafStorage(999, xmin, False, False, cmin=cmin)
        assert changed(column=column, leaf=leaf, witness=announced) == found
    column, leaf = ColumnStorage(23, -1, 2**32 - 1, False), LeafStorage(999, 5, False, False)
    assert changed(column=column, leaf=leaf, witness=announced) == "table_rewritten"


@pytest.mark.parametrize("announced", [True, False])
def test_a_rewrite_after_another_statement_of_its_transaction(announced: bool) -> None:
    """SET NOT NULL, then TYPE ... USING, in one transaction: the column's row had this transaction before the file."""
    before = replace(BEFORE, columns={**BEFORE.columns, 2: ColumnStorage(23, -1, 20, False)})
    column, leaf = ColumnStorage(23, -1, 20, False), LeafStorage(999, 20, False, False)
    assert changed(before, column=column, leaf=leaf, witness=Witness(announced=announced)) == "table_rewritten"


def test_types_that_read_otherwise_are_changes() -> None:
    """Without a rewrite the bytes are the same, but the text of cidr and inet differs.

    That of text and varchar does not.
    """
    for old, new, found in ((650, 869, "table_rewritten"), (25, 1043, ""), (1043, 25, "")):
        before = replace(BEFORE, columns={**BEFORE.columns, 2: ColumnStorage(old, -1, 10, False)})
        assert changed(before, column=ColumnStorage(new, -1, 20, False)) == found


def test_a_domain_reads_as_its_base_type() -> None:
    """A column that becomes a domain over its type, or the other way, has the values that it had."""
    types = {9: TypeStorage("d", "positive", {}, 23)}
    assert changed(replace(BEFORE, types=types), column=ColumnStorage(9, -1, 20, False)) == ""
    types = {9: TypeStorage("d", "address", {}, 869)}
    assert changed(replace(BEFORE, types=types), column=ColumnStorage(9, -1, 20, False)) == "table_rewritten"


def test_columns_that_are_not_replicated_may_change() -> None:
    """A change of a column that the destination lacks makes no difference there."""
    now = replace(
        BEFORE,
        columns={**BEFORE.columns, 2: ColumnStorage(20, -1, 20, False)},
        leaves={TABLE: LeafStorage(999, 20, False, False)},
    )
    assert find_change(TABLE, {1: "id"}, BEFORE, now, QUIET) is None
    assert find_change(TABLE, NAMES, BEFORE, now, QUIET) is not None


def test_generated_columns() -> None:
    """DROP EXPRESSION adds a replicated column whose older values are unknown.

    A new expression changes no replicated one.
    """
    dropped = replace(BEFORE, columns={**BEFORE.columns, 3: ColumnStorage(23, -1, 20, False)})
    assert find_change(TABLE, NAMES, BEFORE, dropped, QUIET) is not None
    expressed = replace(
        BEFORE,
        columns={**BEFORE.columns, 3: ColumnStorage(23, -1, 20, True)},
        leaves={TABLE: LeafStorage(999, 20, False, False)},
    )
    assert find_change(TABLE, NAMES, BEFORE, expressed, QUIET) is None


def test_a_column_added_and_rewritten_between_two_looks() -> None:
    """The values of a new column are not known if the table got a new file as well, unless one statement did both."""
    now = replace(
        BEFORE,
        columns={**BEFORE.columns, 4: ColumnStorage(23, -1, 20, False)},
        leaves={TABLE: LeafStorage(999, 20, False, False)},
    )
    assert find_change(TABLE, NAMES, BEFORE, now, QUIET) is not None
    assert find_change(TABLE, NAMES, BEFORE, now, Witness(announced=True)) is None


def test_definitions_of_types() -> None:
    """A renamed label and another attribute change every old row. A label that is added changes none."""

    def found(oid: int, **parts: str) -> bool:
        changed_type = replace(BEFORE.types[oid], parts={k[1:]: v for k, v in parts.items()})
        now = replace(BEFORE, types={**BEFORE.types, oid: changed_type})
        return find_change(TABLE, NAMES, BEFORE, now, QUIET) is not None

    assert found(7, _1="good", _2="worse")
    assert not found(7, _1="good", _2="bad", _3="new")
    assert found(8, _1="23 -1", _2="25 -1", _3="25 -1")
    assert found(8, _1="23 -1")


@pytest.mark.parametrize(
    ("leaves", "found"),
    [
        ({202: None}, True),
        ({203: LeafStorage(503, 20, True, False)}, False),
        ({203: LeafStorage(503, 20, False, True)}, False),
        ({203: LeafStorage(503, 20, False, False)}, True),
        ({202: LeafStorage(999, 20, False, True)}, True),
    ],
    ids=["gone", "attached empty", "created", "attached with rows", "truncated"],
)
def test_partitions(leaves: dict[int, LeafStorage | None], found: bool) -> None:
    """Rows that come or go with a partition are not streamed as the root's."""
    now = replace(ROOT, leaves={k: v for k, v in {**ROOT.leaves, **leaves}.items() if v is not None})  # type: ignore[dict-item]
    change = find_change(TABLE, NAMES, ROOT, now, QUIET)
    assert (change is not None and change.code == "partition_changed") == found


def test_a_streamed_truncate_of_the_root_explains_every_partition() -> None:
    """New files by the transaction of a streamed TRUNCATE are no change. One by another transaction is a change."""
    leaves = {TableId(201): LeafStorage(901, 30, True, True), TableId(202): LeafStorage(902, 30, True, True)}
    truncated = Witness(truncates=frozenset({30}))
    assert find_change(TABLE, NAMES, ROOT, replace(ROOT, leaves=leaves), truncated) is None
    assert find_change(TABLE, NAMES, ROOT, replace(ROOT, leaves=leaves), QUIET) is not None
    leaves[TableId(202)] = LeafStorage(903, 31, True, True)
    assert find_change(TABLE, NAMES, ROOT, replace(ROOT, leaves=leaves), truncated) is not None
    # Each TRUNCATE of the root would have made both files.
    both = Witness(truncates=frozenset({30, 31}))
    assert find_change(TABLE, NAMES, ROOT, replace(ROOT, leaves=leaves), both) is not None


def test_a_truncate_within_a_savepoint_has_another_number() -> None:
    """It explains new files of one number to a later statement of its transaction, or if the table is empty since."""
    leaves = {TableId(201): LeafStorage(901, 31, True, True), TableId(202): LeafStorage(902, 31, True, True)}
    apart = {**leaves, TableId(202): LeafStorage(902, 32, True, True)}
    alone = {**ROOT.leaves, TableId(202): LeafStorage(902, 31, True, True)}
    for witness, found in (
        (Witness(truncates=frozenset({30})), (True, True, True)),
        (Witness(announced=True, truncated=True), (False, True, False)),
        (Witness(emptied=True), (False, False, False)),
    ):
        changes = [find_change(TABLE, NAMES, ROOT, replace(ROOT, leaves=k), witness) for k in (leaves, apart, alone)]
        assert tuple(c is not None for c in changes) == found
    together = [find_change(TABLE, NAMES, ROOT, replace(ROOT, leaves=k), QUIET) for k in (leaves, apart, alone)]
    assert [c is not None and c.together for c in together] == [True, False, False]


def test_a_widened_root_hides_no_truncated_partition() -> None:
    """ALTER COLUMN TYPE of a root writes every partition again, also one that was truncated before."""
    root = replace(ROOT, columns={**ROOT.columns, 2: ColumnStorage(23, -1, 10, False)})
    leaves = {TableId(201): LeafStorage(901, 30, True, True), TableId(202): LeafStorage(902, 30, True, True)}
    now = replace(root, leaves=leaves, columns={**root.columns, 2: ColumnStorage(20, -1, 30, False)})
    change = find_change(TABLE, NAMES, root, now, Witness(announced=True, casts={2: Cast.OWN}))
    assert change is not None
    assert change.code == "partition_changed"


def test_storage_is_kept_as_text() -> None:
    """The store gives back what was kept, and what a version without the facts about defaults has kept."""
    filled = replace(BEFORE, columns={2: ColumnStorage(23, -1, 10, False, "v", 4, True, 70)})
    for storage in (BEFORE, ROOT, filled):
        assert TableStorage.from_text(storage.to_text()) == storage
    earlier = TableStorage.from_text('{"leaves":{},"columns":{"2":[23,-1,10,false,"v",4]},"types":{}}')
    assert earlier.columns == {2: ColumnStorage(23, -1, 10, False, "v", 4)}


@pytest.mark.parametrize(
    ("old", "new", "typmod", "found"),
    [
        (500, 25, -1, ""),
        (25, 501, -1, ""),
        (500, 501, -1, ""),
        (1043, 501, -1, ""),
        (25, 1043, -1, ""),
        (25, 1043, 9, "table_rewritten"),
        (1042, 25, -1, "table_rewritten"),
        (1042, 501, -1, "table_rewritten"),
        (600, 25, -1, "table_rewritten"),
        (500, 600, -1, "table_rewritten"),
    ],
)
def test_a_cast_by_text_is_safe_for_enums(old: int, new: int, typmod: int, found: str) -> None:
    """The text of an enum's value is its label. Types that pad, cut or rewrite texts are not safe."""
    types = {500: TypeStorage("e", "mood", {}, 0), 501: TypeStorage("e", "new_mood", {}, 0)}
    before = replace(BEFORE, columns={**BEFORE.columns, 2: ColumnStorage(old, -1, 10, False)}, types=types)
    now = replace(
        before,
        columns={**before.columns, 2: ColumnStorage(new, typmod, 20, False)},
        leaves={TABLE: LeafStorage(999, 20, False, False)},
    )
    for cast, expected in ((Cast.OWN, found), (Cast.TEXT, found), (Cast.OTHER, "table_rewritten")):
        change = find_change(TABLE, NAMES, before, now, Witness(announced=True, casts={2: cast}))
        assert ("" if change is None else change.code) == expected


@pytest.mark.parametrize(
    ("old", "new", "safe"),
    [
        ((1114, -1), (1184, -1), True),
        ((1184, -1), (1114, -1), True),
        ((1114, 3), (1184, 6), True),
        ((1114, 3), (1184, -1), True),
        ((1114, 3), (1184, 2), False),
        ((1114, -1), (1184, 6), False),
        ((1114, -1), (1114, -1), False),
        ((1082, -1), (1184, -1), False),
    ],
)
def test_moments_in_utc_keep_their_microseconds(old: tuple[int, int], new: tuple[int, int], safe: bool) -> None:
    """By the expression, or without a new file, and only if the destination stores them as times."""
    before = replace(BEFORE, columns={**BEFORE.columns, 2: ColumnStorage(*old, 10, False)})
    column, leaf = ColumnStorage(*new, 20, False), LeafStorage(999, 20, False, False)
    for announced in (True, False):
        told = Witness(announced=announced, casts={2: Cast.UTC}, moments=frozenset({2}))
        assert changed(before, column=column, leaf=leaf, witness=told) == ("" if safe else "table_rewritten")
        for other in (replace(told, casts={2: Cast.OWN}), replace(told, casts={}), replace(told, moments=frozenset())):
            assert changed(before, column=column, leaf=leaf, witness=other) == "table_rewritten"
    in_place = changed(before, column=column, witness=replace(told, casts={}))
    assert in_place == ("" if safe or old[0] == new[0] else "table_rewritten")


@pytest.mark.parametrize(
    ("query", "casts"),
    [
        ("ALTER TABLE t ALTER v TYPE timestamptz USING v AT TIME ZONE 'utc'", {"v": Cast.UTC}),
        ("ALTER TABLE t ALTER v TYPE timestamp USING (t.v AT TIME ZONE 'Etc/UTC')", {"v": Cast.UTC}),
        ("ALTER TABLE t ALTER v TYPE timestamptz USING v AT TIME ZONE 'CET'", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE timestamptz USING v AT TIME ZONE zone", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE timestamptz USING w AT TIME ZONE 'UTC'", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE timestamptz USING timezone('UTC', v)", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE timestamptz USING v AT TIME ZONE 'UTC' + '1 h'", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE timestamptz USING (v AT TIME ZONE 'UTC')::timestamptz", {"v": Cast.OTHER}),
        (
            "ALTER TABLE t ALTER v TYPE timestamptz USING v AT TIME ZONE 'UTC'; ALTER TABLE u ALTER v TYPE timestamptz",
            {"v": Cast.OTHER},
        ),
        ("ALTER TABLE t ALTER v TYPE bigint", {"v": Cast.OWN}),
        (
            "alter table if exists only public.T\n alter column V set data type INT8, alter id type bigint",
            {"v": Cast.OWN, "id": Cast.OWN},
        ),
        ('ALTER TABLE "public"."t" ALTER "Odd, name" TYPE double  precision', {"Odd, name": Cast.OWN}),
        ('ALTER TABLE "t" ALTER COLUMN "id" TYPE bigint USING "id"::bigint', {"id": Cast.OWN}),
        ("ALTER TABLE t ALTER v TYPE bigint USING (CAST (t.v AS bigint))", {"v": Cast.OWN}),
        ("ALTER TABLE t ALTER v TYPE bigint USING v", {"v": Cast.OWN}),
        ("ALTER TABLE t ALTER v TYPE a.mood USING v::text::a.mood", {"v": Cast.TEXT}),
        ("ALTER TABLE t ALTER v TYPE text USING v::text", {"v": Cast.OWN}),
        ("/* ; */ ALTER TABLE t ALTER v TYPE bigint -- x", {"v": Cast.OWN}),
        ("INSERT INTO t VALUES ('ALTER TABLE t ALTER w TYPE int'); ALTER TABLE t ALTER v TYPE bigint", {"v": Cast.OWN}),
        ("ALTER TABLE t ALTER v TYPE jsonb", {"v": Cast.OWN}),
        ("ALTER TABLE t ALTER v TYPE a.mood USING v::text::b.mood", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE bigint USING v * 10", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE bigint USING w", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE bigint USING v::int::bigint", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE bigint USING (v).v::bigint", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE varchar(3) USING v::varchar(3)", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE text[] USING v::text[]", {"v": Cast.OTHER}),
        ('ALTER TABLE t ALTER v TYPE text COLLATE "C"', {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE bigint, ALTER w TYPE bigint USING v", {"v": Cast.OWN, "w": Cast.OTHER}),
        ("ALTER TABLE u ALTER v TYPE int USING 1; ALTER TABLE t ALTER v TYPE bigint", {"v": Cast.OTHER}),
        ("ALTER TABLE t ALTER v TYPE bigint; ALTER TABLE u ALTER v TYPE int USING 1", {"v": Cast.OTHER}),
        ("ALTER TABLE t ADD w int, DROP x", {}),
        ("ALTER TABLE t ALTER v TYPE bigint; SELEC", {}),
        (f"SELECT {'1+' * 999}1; ALTER TABLE t ALTER v TYPE bigint", {}),
        ("SELECT f()", {}),
        ("", {}),
    ],
)
def test_casts_of_a_query(query: str, casts: dict[str, Cast]) -> None:
    """Each column that a query retypes has a cast that covers what its statements give to columns of its name."""
    assert read_retypes(query) == casts
