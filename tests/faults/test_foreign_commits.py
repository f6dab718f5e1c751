"""Every way in which another tool may change a table, each with a decided end: followed, or parked by a code."""

from __future__ import annotations

import pytest
from tests.destinations.conftest import Lake, hadoop
from tests.destinations.foreign_commits import FOLLOWED, PARKED, check_followed, check_parked

__all__ = ["hadoop"]


@pytest.mark.parametrize("statements", FOLLOWED.values(), ids=FOLLOWED.keys())
@pytest.mark.parametrize("when", ["running", "stopped"])
def test_what_changes_no_row_is_followed(hadoop: Lake, statements: str, when: str) -> None:
    """Rewrites, expiry, branches, properties and added columns neither park the table nor lose a row."""
    check_followed(hadoop, statements, when)


@pytest.mark.parametrize(("code", "statements"), PARKED.values(), ids=PARKED.keys())
def test_what_may_change_rows_is_noticed(hadoop: Lake, code: str, statements: str) -> None:
    """It is noticed without a batch, by a batch, and after a restart; a new copy repairs the table."""
    check_parked(hadoop, code, statements)
