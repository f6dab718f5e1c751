"""Tags of cuts in Iceberg tables: what keeps them, and what other writers do to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.destinations.foreign_commits import EXPIRE
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations import NamedCut, TableTarget
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.maintenance import FileLimits
from levada.errors import DestinationChanged, LevadaError, NeedsOperator
from levada.schema import Kind
from levada.testing import column
from levada.values import Lsn, TableId


def cut(lake: Lake, destination: IcebergDestination, name: str, lsn: int, removed: tuple[str, ...] = ()) -> None:
    """Tag the table."""
    kept = destination.update_cuts(ORDERS.id, NamedCut(name, Lsn(lsn)), removed, lake.mark(0))
    assert kept[name] == lsn


def items_at(lake: Lake, tag: str) -> dict[int, str]:
    """Return the items of the table at a tag, by id."""
    return {r["id"]: r["item"] for r in lake.rows_at(tag)}


def test_a_cut_survives_maintenance(hadoop: Lake) -> None:
    """Neither compaction nor expiry, Levada's or another's, takes a cut's snapshot and its files away."""
    destination = hadoop.destination(
        maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 1},
        files=FileLimits(data_files=2, delete_files=1),
        retention=CURRENT_SNAPSHOT_ONLY,
    )
    stream = copy(hadoop, destination)
    cut(hadoop, destination, "copied", 1000)
    expected = {"copied": items(hadoop)}
    for round_ in range(3):
        stream.update(id=1, item=f"round {round_}", note=None)
        stream.insert(id=10 + round_, item="new", note=None)
        apply(hadoop, destination, stream)
        name = f"cut{round_}"
        cut(hadoop, destination, name, stream.taken)
        expected[name] = items(hadoop)
        state = destination._known.states[ORDERS.id]
        state.maintained_at = -1e9
        destination.maintain(ORDERS.id)
    table = destination._known.states[ORDERS.id].table
    assert table is not None
    assert len(table.metadata.snapshots) < 9, "nothing has expired, so the test shows nothing"
    hadoop.sql(EXPIRE)
    for name, rows in expected.items():
        assert items_at(hadoop, name) == rows
    assert set(table.metadata.cuts) == set(expected)
    cut(hadoop, destination, "last", stream.taken, tuple(expected))
    state.maintained_at = -1e9
    destination.maintain(ORDERS.id)
    assert set(table.metadata.refs) == {"main", "last"}
    assert items_at(hadoop, "last") == items(hadoop)


@pytest.mark.nightly
def test_a_cut_survives_a_resync(hadoop: Lake) -> None:
    """A swap keeps the table and its tags. A copy into a new table begins without tags."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    cut(hadoop, destination, "before", 1000)
    before = items(hadoop)
    target = TableTarget.of(ORDERS)
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "again", "note": None}])
    assert destination.copy_replacement(target, rows, hadoop.mark(2000))
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(2000))
    assert items(hadoop) == {7: "again"}
    assert items_at(hadoop, "before") == before
    assert destination.update_cuts(ORDERS.id, None, (), hadoop.mark(0)) == {"before": 1000}
    destination.drop_table_for_copy(target, 1)
    copy(hadoop, destination)
    assert destination.update_cuts(ORDERS.id, None, (), hadoop.mark(0)) == {}


@pytest.mark.sampled
@pytest.mark.parametrize("who", ["Levada", "others"])
def test_a_limit_of_the_age_of_tags(hadoop: Lake, who: str) -> None:
    """A cut outlives the table property that lets tags expire by their age, whichever tool expires snapshots."""
    settings = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 1}
    destination = hadoop.destination(maintenance=settings, retention=CURRENT_SNAPSHOT_ONLY)
    stream = copy(hadoop, destination)
    hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1')")
    cut(hadoop, destination, "copied", 1000)
    expected = items(hadoop)
    for round_ in range(3):
        stream.update(id=1, item=f"round {round_}", note=None)
        apply(hadoop, destination, stream)
    if who == "Levada":
        destination._known.states[ORDERS.id].maintained_at = -1e9
        destination.maintain(ORDERS.id)
    else:
        hadoop.sql(EXPIRE)
    assert len(hadoop.sql("SELECT * FROM {t}.snapshots")) < 4, "nothing has expired, so the test shows nothing"
    assert items_at(hadoop, "copied") == expected


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["TAG", "BRANCH"])
def test_names_of_others(hadoop: Lake, form: str) -> None:
    """A branch or tag of another writer is neither moved nor removed."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    hadoop.sql(f"ALTER TABLE {{t}} CREATE {form} `noon`")
    with pytest.raises(NeedsOperator) as caught:
        cut(hadoop, destination, "noon", 1000)
    assert caught.value.code == "cut_name_taken"
    assert destination.update_cuts(ORDERS.id, None, ("noon",), hadoop.mark(0)) == {}
    assert len(hadoop.sql("SELECT * FROM {t} VERSION AS OF 'noon'")) == 3


MEDDLING: dict[str, Callable[[Lake], object]] = {
    "dropped": lambda lake: lake.sql("ALTER TABLE {t} DROP TAG `noon`"),
    "moved": lambda lake: lake.sql("ALTER TABLE {t} REPLACE TAG `noon`"),
    "property removed": lambda lake: lake.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('levada.cut.noon')"),
    "property damaged": lambda lake: lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('levada.cut.noon' = '1')"),
    "property of another state": lambda lake: lake.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('levada.cut.noon' = '0/3E8 1')"
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("how", MEDDLING)
def test_a_tag_that_others_changed_is_no_cut(hadoop: Lake, how: str) -> None:
    """A tag that another writer removed or moved is no longer reported as a cut."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    cut(hadoop, destination, "noon", 1000)
    stream.insert(id=4, item="d", note=None)
    apply(hadoop, destination, stream)
    MEDDLING[how](hadoop)
    assert destination.update_cuts(ORDERS.id, None, (), hadoop.mark(0)) == {}
    assert set(items(hadoop)) == {1, 2, 3, 4}


def test_a_table_that_another_writer_changed(hadoop: Lake) -> None:
    """Rows of another writer never get into a cut."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    hadoop.sql("INSERT INTO {t} VALUES (9, 'foreign', NULL)")
    with pytest.raises(DestinationChanged) as caught:
        cut(hadoop, destination, "noon", 1000)
    assert caught.value.code == "foreign_write"


@pytest.mark.nightly
def test_a_tag_after_another_writers_compaction(hadoop: Lake) -> None:
    """A cut after a compaction by others, which changes no rows, is right, also if it happens in between."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    stream.delete(id=2)
    apply(hadoop, destination, stream)
    hadoop.sql("CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'))")
    cut(hadoop, destination, "noon", stream.taken)
    assert set(items_at(hadoop, "noon")) == {1, 3}


def test_a_missing_table(hadoop: Lake) -> None:
    """A table that is not there has no cuts, which is an error of that table."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    for table in (TableId(1), ORDERS.id):
        if table == ORDERS.id:
            hadoop.sql("DROP TABLE {t}")
        with pytest.raises(LevadaError) as caught:
            destination.update_cuts(table, NamedCut("noon", Lsn(1000)), (), hadoop.mark(0))
        assert caught.value.code == "destination_table_missing"


def test_columns_at_a_cut(hadoop: Lake) -> None:
    """A column that was added after a cut is not in it. One that was dropped after it is still there."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    cut(hadoop, destination, "before", 1000)
    columns = (*ORDERS.columns[:2], column(4, "price", Kind.INT4))
    stream.alter(replace(ORDERS, columns=columns))
    stream.insert(id=4, item="d", price=5)
    apply(hadoop, destination, stream)
    assert {tuple(r) for r in hadoop.rows_at("before")} == {("id", "item", "note")}
    cut(hadoop, destination, "after", stream.taken)
    assert {tuple(r) for r in hadoop.rows_at("after")} == {("id", "item", "price")}


def test_an_empty_table(hadoop: Lake) -> None:
    """A table that was copied without rows has a state to keep."""
    destination = hadoop.destination()
    copy(hadoop, destination, n=0)
    cut(hadoop, destination, "empty", 1000)
    stream = Stream(ORDERS)
    stream.insert(id=1, item="a", note=None)
    apply(hadoop, destination, stream)
    assert hadoop.rows_at("empty") == []
    assert len(hadoop.rows()) == 1
