"""Every way in which another tool may change a table, each with a decided end: followed, or parked by a code."""

from __future__ import annotations

import pytest
from tests.destinations.foreign_commits import FOLLOWED, PARKED, check_followed, check_parked
from tests.rigs.lake import Lake, hadoop

__all__ = ["hadoop"]

PARKED_IN = [(2, *parked) for parked in PARKED.items()] + [
    (3, *parked) for parked in PARKED.items() if parked[0] != "format version 3"
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("statements", FOLLOWED.values(), ids=FOLLOWED.keys())
@pytest.mark.parametrize("when", ["running", "stopped"])
def test_what_changes_no_row_is_followed(hadoop: Lake, statements: str, when: str, version: int) -> None:
    """Rewrites, expiry, branches, properties and added columns neither park the table nor lose a row."""
    hadoop.manifest["formatVersion"] = version
    check_followed(hadoop, statements, when)


@pytest.mark.parametrize(
    ("version", "code", "statements"),
    [(version, *parked) for version, _, parked in PARKED_IN],
    ids=[f"{name}, version {version}" for version, name, _ in PARKED_IN],
)
def test_what_may_change_rows_is_noticed(hadoop: Lake, version: int, code: str, statements: str) -> None:
    """It is found without a batch, by a batch, and after a restart. A new copy repairs the table."""
    hadoop.manifest["formatVersion"] = version
    check_parked(hadoop, code, statements)
