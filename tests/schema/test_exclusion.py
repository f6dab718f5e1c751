"""A column that is excluded stays excluded under any name, until the manifest no longer has its name."""

from __future__ import annotations

import pytest

from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, ExcludedColumn, IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.exclusion import excluded_attnums, require_excluded, require_same_exclusion
from levada.values import QualifiedTable, TableId

SEC = frozenset({"sec"})
BEFORE = ReplicatedTableSchema(
    TableId(1),
    QualifiedTable("public", "t"),
    (Column(1, "id", ColumnType(Kind.INT4), "integer", 23), Column(3, "pub", ColumnType(Kind.TEXT), "text", 25)),
    IdentityKind.PRIMARY_KEY,
    (1,),
    (1,),
    excluded_columns=SEC,
    excluded=(ExcludedColumn(2, "sec", 25, -1),),
)
"""A version of (id, sec, pub) without sec."""


def refused(excluded: frozenset[str], names: dict[int, str], *, copy: bool) -> str:
    """Return the message of the error, empty if there is none."""
    try:
        (require_excluded if copy else require_same_exclusion)(BEFORE, excluded, names)
    except NeedsOperator as caught:
        error = caught
    else:
        return ""
    assert error.code == "excluded_column_renamed"
    assert "columns.exclude of the table's TableSync" in error.hint
    assert "resync" in error.hint
    return error.message


@pytest.mark.parametrize("copy", [False, True], ids=["stream", "copy"])
@pytest.mark.parametrize(
    ("excluded", "names", "renamed"),
    [
        ({"sec"}, {1: "id", 2: "sec", 3: "pub"}, False),
        ({"sec"}, {1: "id", 2: "sec", 3: "other"}, False),
        ({"sec"}, {1: "id", 3: "pub"}, False),
        ({"sec"}, {1: "id", 3: "pub", 4: "sec"}, False),
        ({"sec"}, {1: "id", 2: "sec2", 3: "pub"}, True),
        ({"sec"}, {1: "id", 2: "pub", 3: "sec"}, True),
        ({"sec"}, {1: "id", 2: "sec2", 3: "pub", 4: "sec"}, True),
        ({"sec", "more"}, {1: "id", 2: "sec2", 3: "pub"}, True),
        ({"sec", "sec2"}, {1: "id", 2: "sec2", 3: "pub"}, False),
        ({"sec2"}, {1: "id", 2: "sec2", 3: "pub"}, False),
        ({"more"}, {1: "id", 2: "sec2", 3: "pub"}, False),
        (set(), {1: "id", 2: "sec", 3: "pub"}, False),
    ],
)
def test_an_excluded_column_is_not_replicated_by_a_rename(
    excluded: set[str], names: dict[int, str], renamed: bool, copy: bool
) -> None:
    """It is replicated once the manifest lacks its former name. Removing that name asks for the column."""
    message = refused(frozenset(excluded), names, copy=copy)
    new = names.get(2)
    expected = f"public.t: the excluded column sec was renamed to {new}, which columns.exclude does not have"
    assert message == (expected if renamed else "")


def test_a_replicated_column_is_not_excluded_by_a_rename() -> None:
    """The stream stops. A copy follows the manifest, and so does the stream of a table whose manifest changed."""
    names = {1: "id", 3: "sec"}
    expected = "public.t: the column pub was renamed to sec, which columns.exclude has"
    assert refused(SEC, names, copy=False) == expected
    assert refused(SEC, names, copy=True) == ""
    assert refused(frozenset({"sec", "more"}), names, copy=False) == ""


@pytest.mark.parametrize(
    ("before", "excluded", "names", "now", "found"),
    [
        (None, {"sec"}, {1: "id", 2: "sec"}, {1: "id", 2: "sec"}, {2}),
        (None, {"sec"}, {1: "id", 2: "early"}, {1: "id", 2: "sec"}, {2}),
        (None, {"sec"}, {1: "id", 2: "sec"}, {1: "id", 2: "late"}, {2}),
        (BEFORE, {"sec"}, {1: "id", 2: "between", 3: "pub"}, {1: "id", 2: "sec", 3: "pub"}, {2}),
        (BEFORE, {"sec"}, {1: "id", 2: "late", 3: "pub"}, {1: "id", 2: "late", 3: "pub"}, set()),
        (BEFORE, {"sec"}, {1: "id", 2: "sec", 3: "pub"}, {1: "id", 2: "pub", 3: "sec"}, {2}),
        (BEFORE, {"new"}, {1: "id", 2: "sec", 3: "pub"}, {1: "id", 2: "new", 3: "pub"}, {2}),
        (BEFORE, {"new"}, {1: "id", 2: "sec", 3: "pub"}, {1: "id", 2: "sec", 3: "new"}, {3}),
    ],
)
def test_the_catalog_shows_columns_that_will_be_excluded(
    before: ReplicatedTableSchema | None,
    excluded: set[str],
    names: dict[int, str],
    now: dict[int, str],
    found: set[int],
) -> None:
    """They are excluded under an earlier name too, unless they have been replicated until now."""
    assert excluded_attnums(names, frozenset(excluded), before, now) == found


def test_a_version_keeps_its_excluded_columns_in_json() -> None:
    """A restart knows their attnums."""
    assert ReplicatedTableSchema.from_json(BEFORE.to_json()) == BEFORE
