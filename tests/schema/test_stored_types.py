"""The types that a manifest chooses, and the columns that do not take them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema, TypeInfo, resolve_type
from levada.schema.masking import MASKED_TEXT, with_masks
from levada.schema.masks import NO_KEYS, Mask, TableMasks
from levada.schema.stored_types import ColumnChoice, StoredTypes, with_stored_types
from levada.schema.types import Notation
from levada.values import MaskMethod, QualifiedTable, TableId

PRICE, VECTOR = 90_001, 90_002
CATALOG = {PRICE: TypeInfo(PRICE, "price", "d", base_oid=1700, base_typmod=-1)}
TYPES = {
    "id": (23, "integer"), "f": (701, "double precision"), "n": (1700, "numeric"),
    "m": (1700, "numeric(9,2)"), "p": (PRICE, "price"),
    "v": (VECTOR, 'public."vector"(3)'), "h": (VECTOR + 1, "halfvec"), "o": (VECTOR + 2, "sparsevec(3)"),
    "u": (2950, "uuid"), "t": (1184, "timestamp with time zone"), "a": (1231, "numeric(9,2)[]"),
    "r": (3912, "daterange"), "mr": (4535, "datemultirange"), "s": (VECTOR + 3, "hstore"),
    "g": (VECTOR + 4, '"Geo"."geometry"(Point,4326)'),
}  # fmt: skip
MODIFIERS = dict.fromkeys("ma", ((9 << 16) | 2) + 4)


def version(*key: str) -> ReplicatedTableSchema:
    """Return a version of a table with these columns in its key."""
    columns = tuple(
        Column(i, name, resolve_type(oid, MODIFIERS.get(name, -1), CATALOG), kind, oid, MODIFIERS.get(name, -1))
        for i, (name, (oid, kind)) in enumerate(TYPES.items(), 1)
    )
    numbers = tuple(c.attnum for c in columns if c.name in key)
    return ReplicatedTableSchema(TableId(1), QualifiedTable("s", "t"), columns, IdentityKind.FULL, numbers, numbers)


def chosen(column: str, name: str, *key: str) -> ColumnType:
    """Return the type of a column with the choice ``name``."""
    found = with_stored_types(version(*key), StoredTypes.of({column: name}), CATALOG)
    assert ReplicatedTableSchema.from_json(found.to_json()) == found
    return next(c.type for c in found.columns if c.name == column)


def test_types_that_columns_take() -> None:
    """Also through a domain, and for a type of an extension in any schema. Every column takes Text."""
    for name in TYPES:
        assert chosen(name, "Text") == ColumnType(Kind.TEXT)
    for name in ("n", "p"):
        assert chosen(name, "Decimal(38, 9)") == chosen(name, "Decimal(38,9)") == ColumnType(Kind.DECIMAL, 38, 9)
    assert chosen("v", "List").notation is Notation.VECTOR
    assert chosen("h", "List").notation is Notation.HALFVEC
    assert chosen("r", "Range") == ColumnType(Kind.RANGE, element=ColumnType(Kind.DATE))
    ranges = ColumnType(Kind.ARRAY, element=chosen("r", "Range"), notation=Notation.MULTIRANGE)
    assert chosen("mr", "Multirange") == ranges
    assert chosen("s", "Map") == ColumnType(Kind.MAP)
    assert chosen("g", "Wkb") == ColumnType(Kind.BYTEA, notation=Notation.EWKB)
    nested = chosen("a", "List(3)")
    assert (nested.depth, nested.scalar) == (3, ColumnType(Kind.DECIMAL, 9, 2))
    assert str(nested.arrow) == f"list<element: {chosen('a', 'List(2)').arrow}>"
    assert chosen("u", "Uuid", "u") == ColumnType(Kind.UUID, native=True)
    assert chosen("t", "Text", "t") == ColumnType(Kind.TEXT)
    assert chosen("n", "Decimal(9, 0)", "n") == ColumnType(Kind.DECIMAL, 9, 0)


@pytest.mark.parametrize(
    ("column", "name", "key"),
    [
        ("id", "Decimal(9, 0)", ()), ("t", "Decimal(9, 0)", ()), ("n", "Decimal(2, 3)", ()), ("n", "List", ()),
        ("o", "List", ()), ("p", "List", ()), ("v", "Uuid", ()), ("id", "Uuid", ()),
        ("mr", "Range", ()), ("r", "Multirange", ()), ("mr", "Multirange", ("mr",)), ("id", "Multirange", ()),
        ("s", "Map", ("s",)), ("g", "Map", ()), ("s", "Wkb", ()), ("g", "Wkb", ("g",)), ("s", "List", ()),
        ("r", "Range", ("r",)), ("id", "Range", ()), ("r", "List(2)", ()),
        ("a", "List", ()), ("id", "List(2)", ()), ("v", "List(2)", ()), ("a", "List(2)", ("a",)), ("t", "List(2)", ()),
        ("v", "List", ("v",)), ("f", "Text", ("f",)), ("m", "Text", ("id", "m")),
    ],
)  # fmt: skip
def test_types_that_columns_do_not_take(column: str, name: str, key: tuple[str, ...]) -> None:
    """The message names the table, the column and its type. Nothing is stored as something else."""
    with pytest.raises(NeedsOperator) as raised:
        chosen(column, name, *key)
    assert raised.value.code == "stored_type_refused"
    assert f"s.t: columns.types has {name} for column {column} of type {TYPES[column][1]}" in raised.value.message


def test_a_masked_column_with_the_name_of_a_choice_stays_masked() -> None:
    """A rename can give it that name. Its values are those of the mask, and the version belongs to the whole choice."""
    masks = TableMasks.of({"t": Mask(MaskMethod.HMAC)})
    before = with_masks(version("id"), masks, None, NO_KEYS)
    named = {"t": "old", "n": "t", "u": "n"}
    renamed = replace(before, columns=tuple(replace(c, name=named.get(c.name, c.name)) for c in version("id").columns))
    types = StoredTypes.of({"old": "Text", "m": "Text"})
    found = with_masks(with_stored_types(renamed, types, CATALOG), masks, before, NO_KEYS)
    assert {c.name for c in found.columns if c.mask is not None} == {"old", "t"}
    assert {c.name: c.type for c in found.columns}["old"] == MASKED_TEXT
    assert ColumnChoice.of(found) == ColumnChoice(types=types, masks=masks)
    assert ReplicatedTableSchema.from_json(found.to_json()) == found


def test_a_version_without_a_choice_is_the_same_json() -> None:
    """State of an engine that knew no choices is read as before, and written as before."""
    assert "storedTypes" not in version("id").to_json()
    assert with_stored_types(version(), StoredTypes(), CATALOG) == version()
