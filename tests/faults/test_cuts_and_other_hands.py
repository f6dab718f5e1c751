"""Cuts of a table that another tool changes in every way: a cut has its rows, or is no longer reported."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.destinations.foreign_commits import FOLLOWED, PARKED, current, resync, two_batches
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply
from tests.rigs.lake import Lake, hadoop

from levada.destinations import NamedCut
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.maintenance import FileLimits
from levada.errors import DestinationChanged, NeedsOperator
from levada.values import Lsn

__all__ = ["hadoop"]

STATEMENTS = {**FOLLOWED, **{name: statements for name, (_, statements) in PARKED.items()}}
AGAIN = {"dropped", "made again"}
"""Statements that leave no table for a copy to replace in place."""


def rows(lake: Lake) -> list[tuple[object, ...]]:
    """Return the rows at the cut. Columns that another tool added are not in it."""
    return sorted(tuple(row) for row in lake.sql("SELECT id, item, note FROM {t} VERSION AS OF 'noon'"))


def check(lake: Lake, destination: IcebergDestination, before: list[tuple[object, ...]], epoch: int = 1) -> bool:
    """Let maintenance remove all that it may. Return True if the cut is reported, and then assert that it is right."""
    for state in destination._known.states.values():
        state.maintained_at = state.files_due_at = -1e9
    with suppress(DestinationChanged):
        destination.maintain(ORDERS.id)
    try:
        if destination.update_cuts(ORDERS.id, None, (), lake.mark(0, epoch)) != {"noon": Lsn(5000)}:
            return False
    except (DestinationChanged, NeedsOperator):
        return False
    assert rows(lake) == before
    return True


@pytest.mark.parametrize("how", STATEMENTS)
@pytest.mark.parametrize("version", [2, 3])
def test_no_other_hand_changes_a_cut(hadoop: Lake, how: str, version: int) -> None:
    """Whatever was done to the table, a reported cut has its rows: after maintenance, a restart, and a new copy."""
    hadoop.manifest["formatVersion"] = version
    limits = FileLimits(data_files=2, delete_files=1, orphan_age_s=-60)
    settings = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 1}
    destination = hadoop.destination(maintenance=settings, files=limits, retention=CURRENT_SNAPSHOT_ONLY)
    stream = two_batches(hadoop, destination)
    destination.update_cuts(ORDERS.id, NamedCut("noon", Lsn(5000)), (), hadoop.mark(0))
    before, first = (
        rows(hadoop),
        str(min(r.snapshot_id for r in hadoop.sql("SELECT * FROM {t}.snapshots WHERE parent_id IS NULL"))),
    )
    stream.delete(id=2)
    stream.update(id=3, item="after", note=None)
    apply(hadoop, destination, stream)
    assert current(hadoop)
    for statement in STATEMENTS[how].split("; "):
        if version == 3 and "'format-version'='3'" in statement:
            continue
        hadoop.sql(statement.replace("{first}", str(first)))
    kept = check(hadoop, destination, before)
    assert kept or how in {*AGAIN, "replaced"}
    destination = hadoop.destination(maintenance=settings, files=limits, retention=CURRENT_SNAPSHOT_ONLY)
    check(hadoop, destination, before)
    if how not in {"made again", *FOLLOWED}:
        resync(hadoop, destination, stream)
        check(hadoop, destination, before, epoch=2)
