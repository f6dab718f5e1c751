"""Erased keys in lakes that other writers have compacted, tagged and branched, and after a kill between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.foreign_commits import COMPACT, EXPIRE
from tests.destinations.memory import Stream
from tests.destinations.orders import ORDERS, apply, copy, items
from tests.rigs.clear_values import files_with
from tests.rigs.lake import Lake
from tests.servers.ducklake import DuckLake

from levada.destinations import Destination, TableTarget
from levada.destinations.data_files.key_search import KeySearch
from levada.destinations.erasure import Erased, Erasure
from levada.destinations.iceberg import IcebergDestination, erasing
from levada.destinations.iceberg.scan import live_files
from levada.destinations.iceberg.settings import TableSettings
from levada.testing.destinations import steps
from levada.testing.source import Source
from levada.values import Watermark

PERSON = "a-person-of-this-test"
KEYS = (10, 11, 12)


def persons(lake: Lake, destination: IcebergDestination) -> Stream:
    """Copy three rows, then add rows of persons, of which one is updated and one deleted."""
    stream = copy(lake, destination)
    for key in KEYS:
        stream.insert(id=key, item=f"{PERSON} {key}", note=PERSON)
    apply(lake, destination, stream)
    stream.update(id=11, item=f"{PERSON} updated", note=PERSON)
    stream.delete(id=12)
    apply(lake, destination, stream)
    return stream


def erasure(*keys: int) -> Erasure:
    """Return a request for keys, by default those of all persons."""
    return Erasure(pa.table({"id": pa.array(keys or KEYS, pa.int64())}))


def erase(destination: Destination, mark: Watermark, *keys: int, target: TableTarget | None = None) -> Erased:
    """Erase keys of the table of orders, by default those of all persons."""
    return destination.erase(target or TableTarget.of(ORDERS), erasure(*keys), mark)


def places(lake: Lake) -> list[str]:
    """Return the files of the lake and of the caches with a person."""
    folders = (Path(lake.manifest["catalog"]["warehouse"]), lake.context.work_dir)
    return [file for folder in folders for file in files_with(folder, PERSON.encode())]


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(COMPACT, marks=pytest.mark.nightly),
        f"{COMPACT}; {EXPIRE}",
        pytest.param("CALL {c}.system.rewrite_manifests({p})", marks=pytest.mark.nightly),
        pytest.param(
            "CALL {c}.system.rewrite_position_delete_files(table => {p}, options => map('rewrite-all', 'true'))",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default'='orc'); " + COMPACT, marks=pytest.mark.nightly
        ),
    ],
    ids=["compacted", "expired", "manifests", "deletes", "orc"],
)
def test_after_another_writer(hadoop: Lake, statements: str) -> None:
    """Rows that another tool has rewritten are erased too, also where it has removed the files of before."""
    destination = hadoop.destination()
    stream = persons(hadoop, destination)
    for statement in statements.split("; "):
        hadoop.sql(statement)
    assert erase(destination, hadoop.mark(0)).rows == 2
    assert places(hadoop) == []
    stream.insert(id=11, item="again", note=None)
    apply(hadoop, destination, stream)
    assert items(hadoop) == {1: "item 1", 2: "item 2", 3: "item 3", 11: "again"}


def test_a_tag_of_another_writer(hadoop: Lake) -> None:
    """It stays with its snapshot, and is reported. After it is dropped, the same erasure removes the rest."""
    destination = hadoop.destination()
    persons(hadoop, destination)
    hadoop.sql("ALTER TABLE {t} CREATE TAG theirs")
    first = erase(destination, hadoop.mark(0))
    assert [place.where for place in first.remaining] == ["the tag theirs of another writer"]
    assert {r["id"] for r in hadoop.rows_at("theirs")} == {1, 2, 3, 10, 11}
    assert set(items(hadoop)) == {1, 2, 3}
    hadoop.sql("ALTER TABLE {t} DROP TAG theirs")
    second = erase(destination, hadoop.mark(0))
    assert (second.rows, second.remaining) == (0, ())
    assert second.states > 0
    assert places(hadoop) == []


def test_a_table_that_must_keep_its_files(hadoop: Lake) -> None:
    """With gc.enabled=false the rows go from the table. That former snapshots keep them is reported."""
    destination = hadoop.destination()
    persons(hadoop, destination)
    hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('gc.enabled'='false')")
    found = erase(destination, hadoop.mark(0))
    assert (found.rows, found.states) == (2, 0)
    assert "gc.enabled=false" in found.remaining[0].where
    assert set(items(hadoop)) == {1, 2, 3}


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_partitions_by_the_erased_values(hadoop: Lake, version: int) -> None:
    """No manifest has the partition of erased rows any more, also of delete files. Those of other rows stay."""
    hadoop.manifest["formatVersion"] = version
    settings = TableSettings.model_validate({"partitionBy": ["note"]})
    destination = hadoop.destination()
    target = TableTarget.of(ORDERS, settings=settings)
    stream = copy(hadoop, destination)
    stream.settings = settings
    for key, note in ((10, PERSON), (11, PERSON), (20, "shared"), (21, "shared")):
        stream.insert(id=key, item="new", note=note)
    apply(hadoop, destination, stream)
    stream.delete(id=10)
    stream.delete(id=20)
    apply(hadoop, destination, stream)
    assert places(hadoop)
    erase(destination, hadoop.mark(0), 10, 11, 20, target=target)
    assert places(hadoop) == []
    assert {r["id"]: r["note"] for r in hadoop.rows() if r["id"] > 3} == {21: "shared"}


@pytest.mark.parametrize("done", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_kill_between_two_commits(hadoop: Lake, done: int) -> None:
    """The same erasure in another process does what an earlier one left: manifests, snapshots, files."""
    destination = hadoop.destination()
    persons(hadoop, destination)
    state = destination._known.of(TableTarget.of(ORDERS))
    table = destination._known.open(state)
    assert table is not None
    files, layout = live_files(table), table.metadata.layout.files
    live, search = {f.path for f in files}, KeySearch.of(ORDERS, layout, erasure().keys)
    survey = erasing.Survey.of(table, search, live)
    erasing._rewrite(state, table, [f for f in files if f.path in survey.held], survey.found)
    if done > 1:
        table.rewrite_manifests(sorted(erasing.Survey.of(table, search, live, survey.found).current))
    assert places(hadoop)
    later = hadoop.destination(work="later")
    assert later.applied(ORDERS.id) == hadoop.mark(table.metadata.lsn or 0)
    found = erase(later, hadoop.mark(0))
    assert (found.rows, found.files) == (0, 0)
    assert found.states > 0
    destination._known.states[ORDERS.id].index.forget()
    assert places(hadoop) == []
    assert set(items(hadoop)) == {1, 2, 3}


def test_files_that_no_snapshot_has(hadoop: Lake) -> None:
    """A file of a killed writer is removed if it has the rows. Others, and what is no data file, stay."""
    destination = hadoop.destination()
    persons(hadoop, destination)
    table = destination._known.states[ORDERS.id].table
    assert table is not None
    storage = table.storage()
    paths = [f.path for f in live_files(table)]
    for number, path in enumerate(paths):
        with storage.open(path) as file, storage.create(f"{storage.folder}left-{number}.parquet") as sink:
            sink.write(file.read())
    with storage.create(f"{storage.folder}broken.parquet") as sink:
        sink.write(b"PAR1 of a process that was killed")
    found = erase(destination, hadoop.mark(0))
    assert 0 < found.unreferenced < len(paths)
    assert "1 incomplete file" in found.remaining[-1].where
    assert places(hadoop) == []
    assert storage.exists(f"{storage.folder}broken.parquet")


def test_many_keys(hadoop: Lake) -> None:
    """Thousands of keys are found in one pass over the files that may have them."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=20_000)
    erased = erase(destination, hadoop.mark(0), *range(5_001, 15_001), *range(100_000, 101_000))
    assert erased.rows == 10_000
    stream.delete(id=1)
    stream.insert(id=7_000, item="again", note=None)
    apply(hadoop, destination, stream)
    found = items(hadoop)
    assert len(found) == 10_000
    assert found[7_000] == "again"


def versions(ducklake: DuckLake) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of the table at each snapshot of the catalog, as DuckDB reads them."""
    found = {}
    [(first,)] = ducklake.db.query("SELECT min(begin_snapshot) FROM lake.ducklake_table")
    with ducklake.duckdb() as connection:
        listed = connection.execute("SELECT snapshot_id FROM ducklake_snapshots('lake') ORDER BY 1").fetchall()
        for version in (number for (number,) in listed if number >= first):
            rows = connection.execute(f"SELECT * FROM shop_public.orders AT (VERSION => {version}) ORDER BY id")
            found[version] = rows.to_arrow_table().to_pylist()
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(
    "statement",
    [
        "",
        pytest.param("CALL ducklake_merge_adjacent_files('lake')", marks=pytest.mark.nightly),
        "CALL ducklake_rewrite_data_files('lake', 'orders', schema => 'shop_public', delete_threshold => 0.0)",
        pytest.param(
            "SELECT count(*) FROM ducklake_expire_snapshots('lake', older_than => now())", marks=pytest.mark.nightly
        ),
    ],
    ids=["as it was", "merged", "rewritten", "expired"],
)
def test_snapshots_of_ducklake_stay(ducklake: DuckLake, statement: str) -> None:
    """Each snapshot has its rows but the erased ones, also after compactions, and later changes apply."""
    destination, source = ducklake.destination(), Source()
    destination.startup()
    orders = steps.copied(destination, source)
    for key in KEYS:
        orders.insert(id=key, item=f"{PERSON} {key}", note=PERSON)
        steps.apply(destination, source, orders)
    orders.update(id=11, item=f"{PERSON} updated", note=None, unchanged=[3])
    orders.delete(id=12)
    orders.delete(id=2)
    steps.apply(destination, source, orders)
    if statement:
        ducklake.sql(statement)
    before = versions(ducklake)
    erased = erase(destination, source.mark(0))
    assert erased.rows == 2
    after = versions(ducklake)
    for version, rows in before.items():
        assert after[version] == [r for r in rows if r["id"] not in KEYS]
    assert files_with(ducklake.folder, PERSON.encode()) == []
    assert ducklake.sql(f"SELECT count(*) FROM shop_public.orders WHERE item = '{PERSON} 10'") == [(0,)]
    orders.insert(id=11, item="again", note=None)
    orders.update(id=3, item="later", note=None, unchanged=[3])
    again = ducklake.destination(work="again")
    again.startup()
    steps.apply(again, source, orders)
    assert ducklake.items() == {1: "item 1", 3: "later", 11: "again"}


def test_the_servers_statistics_of_a_catalog(ducklake: DuckLake) -> None:
    """The catalog's server has no bound of an erased row among its statistics. The reported command runs as printed."""
    destination, source = ducklake.destination(), Source()
    destination.startup()
    orders = steps.copied(destination, source)
    orders.insert(id=10, item=PERSON, note=None)
    steps.apply(destination, source, orders)
    ducklake.db.execute("ANALYZE")
    stored = f"SELECT tablename FROM pg_stats WHERE pg_stats::text LIKE '%{PERSON}%'"
    with ducklake.db.connect() as connection:
        assert connection.execute(stored).fetchall(), "the search finds nothing, so the test shows nothing"  # type: ignore[call-overload]
        erased = erase(destination, source.mark(0))
        assert connection.execute(stored).fetchall() == []  # type: ignore[call-overload]
        [command] = [place.until for place in erased.remaining if "VACUUM" in place.until]
        connection.execute(command)  # type: ignore[call-overload]
