"""The rows that the changes of a changelog add up to."""

from __future__ import annotations

from typing import Any

from levada.schema import Kind
from levada.schema.changes import COMMIT_LSN, OP, ORDINAL, UNCHANGED
from levada.testing import column, fold_changelog, table

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


def change(op: str, lsn: int, ordinal: int | None, **values: Any) -> dict[str, Any]:
    """Return a row of a changelog."""
    return {OP: op, COMMIT_LSN: lsn, ORDINAL: ordinal, UNCHANGED: None, "item": None, "note": None, **values}


def test_a_moved_key_keeps_its_unchanged_values() -> None:
    """The delete and the insert of one ordinal are one row, also if both were written twice, or keys are exchanged."""
    copied = [change("I", 5, None, id=1, note="one"), change("I", 5, None, id=2, note="two")]
    moves = [
        change("D", 9, 0, id=1), change("I", 9, 0, id=3, **{UNCHANGED: ["note"]}),
        change("D", 9, 1, id=2), change("I", 9, 1, id=1, **{UNCHANGED: ["note"]}),
        change("D", 9, 2, id=3), change("I", 9, 2, id=2, **{UNCHANGED: ["note"]}),
        change("U", 9, 3, id=2, item="x", **{UNCHANGED: ["note"]}),
    ]  # fmt: skip
    found = fold_changelog(ORDERS, [*moves, *copied, *moves])
    assert sorted((row["id"], row["item"], row["note"]) for row in found) == [(1, None, "two"), (2, "x", "one")]


def test_a_deleted_row_has_no_values_for_a_later_one() -> None:
    """An insert of another ordinal begins without them."""
    changes = [
        change("I", 5, None, id=1, note="one"),
        change("D", 9, 0, id=1),
        change("U", 9, 1, id=1, **{UNCHANGED: ["note"]}),
    ]
    assert [row["note"] for row in fold_changelog(ORDERS, changes)] == [None]
