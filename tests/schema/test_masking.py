"""A masked column stays masked under any name, and no column has rows of two masks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.masking import chosen_masks, missing_masks, plain_column, require_same_masks, with_masks
from levada.schema.masks import NO_KEYS, Mask, TableMasks
from levada.values import MaskMethod, QualifiedTable, TableId

NULL, FIRST = Mask(MaskMethod.NULL), Mask(MaskMethod.TRUNCATE, 4)
SEC = TableMasks.of({"sec": NULL})
TEXT = ColumnType(Kind.TEXT)


def version(*names: str) -> ReplicatedTableSchema:
    """Return a version in clear, whose first column is the key. An empty name is a dropped column."""
    columns = tuple(Column(a, name, TEXT, "text", 25) for a, name in enumerate(names, 1) if name)
    return ReplicatedTableSchema(
        TableId(1), QualifiedTable("public", "t"), columns, IdentityKind.PRIMARY_KEY, (1,), (1,)
    )


BEFORE = with_masks(version("id", "sec", "pub"), SEC, None, NO_KEYS)


@pytest.mark.parametrize(
    ("names", "masked"),
    [
        ({1: "id", 2: "sec", 3: "pub"}, {2}),
        ({1: "id", 2: "other", 3: "pub"}, {2}),
        ({1: "id", 2: "pub", 3: "sec"}, {2, 3}),
        ({1: "id", 3: "pub", 4: "sec"}, {4}),
        ({1: "id", 2: "other", 3: "pub", 4: "sec"}, {2, 4}),
    ],
)
def test_a_masked_column_stays_masked(names: dict[int, str], masked: set[int]) -> None:
    """Under each name, and so is each column that gets the name of a masked one."""
    assert chosen_masks(names, SEC, BEFORE).keys() == masked
    assert chosen_masks(names, TableMasks(), BEFORE) == {}


def test_a_column_that_is_masked_in_the_catalog_is_masked_before() -> None:
    """A new column that is renamed later is masked from its first row on."""
    names, now = {1: "id", 2: "sec", 3: "pub", 4: "draft"}, {1: "id", 2: "old", 3: "pub", 4: "sec"}
    assert chosen_masks(names, SEC, BEFORE, now).keys() == {2, 4}


def test_rows_of_one_column_never_have_two_masks() -> None:
    """A rename across masks and a change of the type that may change texts park the table, and no other change does."""

    def refused(now: ReplicatedTableSchema, before: ReplicatedTableSchema = BEFORE) -> str:
        try:
            require_same_masks(before, now)
        except NeedsOperator as error:
            return error.code if "levada resync MANIFEST" in error.hint else "no hint"
        return ""

    def masked(*names: str, masks: TableMasks = SEC, before: ReplicatedTableSchema = BEFORE) -> ReplicatedTableSchema:
        return with_masks(version(*names), masks, before, NO_KEYS)

    assert refused(masked("id", "other", "pub")) == ""
    assert refused(masked("id", "", "pub", "sec")) == ""
    assert refused(masked("id", "pub", "sec")) == "masked_column_renamed"
    assert refused(masked("id", "sec", "pub", masks=TableMasks.of({"sec": FIRST}))) == ""
    both = TableMasks.of({"sec": NULL, "pub": FIRST})
    before = masked("id", "sec", "pub", masks=both)
    assert refused(masked("id", "pub", "sec", masks=both, before=before), before) == "masked_column_renamed"

    def retyped(oid: int, typmod: int = -1) -> ReplicatedTableSchema:
        columns = tuple(replace(c, type_oid=oid, typmod=typmod) if c.attnum == 3 else c for c in before.columns)
        return replace(before, columns=columns)

    assert refused(retyped(1043, 44), before) == ""
    assert refused(retyped(1042, 9), before) == "masked_column_retyped"
    numbers = [replace(before, columns=retyped(oid).columns) for oid in (23, 20, 1700)]
    assert refused(numbers[1], numbers[0]) == ""
    assert refused(numbers[2], numbers[1]) == "masked_column_retyped"


def test_masks_that_a_column_cannot_have() -> None:
    """A key that would not be one, and characters of what is no text."""
    number = replace(version("id", "n"), columns=(version("id").columns[0], Column(2, "n", TEXT, "inet", 869)))
    for schema, masks in ((BEFORE, {"id": NULL}), (BEFORE, {"id": FIRST}), (number, {"n": FIRST})):
        with pytest.raises(NeedsOperator) as error:
            with_masks(schema, TableMasks.of(masks), None, NO_KEYS)
        assert error.value.code == "mask_refused"
        assert "columns.mask" in error.value.hint


def test_a_name_that_is_no_column() -> None:
    """A column that had it at the last copy, and is renamed or dropped since, is known."""
    assert missing_masks(SEC, ["id", "pub"], None) == {"sec"}
    assert missing_masks(SEC, ["id", "other", "pub"], BEFORE) == set()


def test_a_masked_column_is_plain_where_its_values_are_masked_already() -> None:
    """It is not masked again, and is text unless its values are NULL."""
    number = Column(2, "n", ColumnType(Kind.INT4), "integer", 23)
    masked = with_masks(
        replace(version("id"), columns=(version("id").columns[0], number)), TableMasks.of({"n": NULL}), None, NO_KEYS
    )
    assert plain_column(masked.columns[1]) == number
    short = with_masks(version("id", "sec"), TableMasks.of({"sec": FIRST}), None, NO_KEYS).columns[1]
    assert (plain_column(short).mask, plain_column(short).type_name) == (None, "text")
