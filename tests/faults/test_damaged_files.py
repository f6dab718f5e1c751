"""Every kind of file of a table in the lake, missing or damaged: a resync repairs the table."""

from __future__ import annotations

import pytest
from tests.destinations.foreign_commits import resync, two_batches
from tests.destinations.orders import ORDERS
from tests.rigs.damage import damage, folder, newest_metadata
from tests.rigs.lake import Lake, hadoop, jdbc

from levada.errors import DestinationChanged

__all__ = ["hadoop", "jdbc"]


@pytest.fixture(params=["hadoop", "jdbc"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """Each kind of catalog whose files are in a folder."""
    found: Lake = request.getfixturevalue(request.param)
    return found


FILES = {
    "manifest list": "metadata/snap-*.avro",
    "manifests": "metadata/*-m*.avro",
    "data files": "data/**/*[0-9a-f].parquet",
    "delete files": "data/**/*-deletes.parquet",
}


@pytest.mark.parametrize("pattern", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_other_files(lake: Lake, pattern: str, how: str) -> None:
    """A table without its files is copied again, in place or, where its lists of files are gone, dropped first."""
    destination = lake.destination()
    stream = two_batches(lake, destination)
    wanted = [p for p in folder(lake).glob(pattern) if not p.name.endswith("-deletes.parquet") or "deletes" in pattern]
    assert wanted
    for file in wanted:
        damage(file, how)
    resync(lake, lake.destination(), stream)


@pytest.mark.parametrize("how", ["gone", "cut", "zeros"])
def test_the_newest_metadata(hadoop: Lake, how: str) -> None:
    """The table is parked, and a new copy takes its place."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    damage(newest_metadata(hadoop), how)
    restarted = hadoop.destination()
    with pytest.raises(DestinationChanged, match="missing or damaged"):
        restarted.applied(ORDERS.id)
    resync(hadoop, restarted, stream)
