"""Files of a table that are missing or damaged: noticed by a code, and repaired by a new copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.destinations.foreign_commits import look, resync, two_batches
from tests.destinations.memory import MemoryRows
from tests.destinations.orders import ORDERS, apply, copy, items
from tests.rigs.damage import damage, folder, newest_metadata
from tests.rigs.lake import Lake

from levada.destinations.iceberg.java import java_errors
from levada.errors import DestinationChanged, LevadaError, NeedsOperator
from levada.schema import TableTarget
from levada.values import QualifiedTable, TableId

OTHER = replace(ORDERS, id=TableId(16500), name=QualifiedTable("public", "other"))


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "how"), [("hadoop", "cut"), ("jdbc", "gone")])
def test_the_newest_metadata(request: pytest.FixtureRequest, kind: str, how: str) -> None:
    """Only that table is parked, and a new copy takes its place: an earlier version shows whose it is."""
    lake: Lake = request.getfixturevalue(kind)
    destination = lake.destination()
    stream = two_batches(lake, destination)
    copy(lake, destination, OTHER)
    damage(newest_metadata(lake), how)
    restarted = lake.destination()
    assert restarted.applied(OTHER.id) == lake.mark(1000)
    with pytest.raises(DestinationChanged) as caught:
        restarted.applied(ORDERS.id)
    assert caught.value.code == "table_damaged"
    assert caught.value.hint
    resync(lake, restarted, stream)


@pytest.mark.nightly
def test_all_metadata(jdbc: Lake) -> None:
    """If nothing shows the owner of a table, it is refused with a remedy, and nothing is removed."""
    destination = jdbc.destination()
    two_batches(jdbc, destination)
    for file in (folder(jdbc) / "metadata").glob("*.metadata.json"):
        damage(file, "gone")
    before = sorted(folder(jdbc).rglob("*"))
    restarted = jdbc.destination()
    assert restarted.applied(ORDERS.id) is None
    with pytest.raises(NeedsOperator) as caught:
        restarted.drop_table_for_copy(TableTarget.of(ORDERS))
    assert caught.value.code == "table_damaged"
    assert "remove shop_public.orders from the catalog" in caught.value.hint
    assert sorted(folder(jdbc).rglob("*")) == before


def test_metadata_of_another(jdbc: Lake) -> None:
    """A table of another pipeline is left alone, also if its newest metadata is damaged."""
    copy(jdbc, jdbc.destination())
    jdbc.sql("ALTER TABLE {t} SET TBLPROPERTIES ('levada.pipeline'='other')")
    jdbc.sql("ALTER TABLE {t} SET TBLPROPERTIES ('more'='yes')")
    damage(newest_metadata(jdbc), "gone")
    with pytest.raises(NeedsOperator) as caught:
        jdbc.destination().drop_table_for_copy(TableTarget.of(ORDERS))
    assert caught.value.code == "table_damaged"
    assert list(folder(jdbc).rglob("*.parquet"))


@pytest.mark.nightly
def test_a_renamed_table_outlives_the_next_one(jdbc: Lake) -> None:
    """A table that was renamed in its catalog keeps its files, also if the next one of its name is damaged."""
    destination = jdbc.destination()
    two_batches(jdbc, destination)
    jdbc.sql("ALTER TABLE {t} RENAME TO shop_public.orders_kept")
    destination = jdbc.destination()
    copy(jdbc, destination, n=1)
    kept = jdbc.rows("orders_kept")
    damage(Path(jdbc.iceberg().metadata_location.removeprefix("file:")), "gone")
    jdbc.sql("INSERT INTO {t}_kept VALUES (100, 'later', 'n')")
    jdbc.destination().drop_table_for_copy(TableTarget.of(ORDERS))
    assert len(jdbc.rows("orders_kept")) == len(kept) + 1


@pytest.mark.sampled
@pytest.mark.parametrize("pattern", ["metadata/snap-*.avro", "metadata/*-m*.avro"], ids=["manifest list", "manifests"])
def test_lists_of_files(hadoop: Lake, pattern: str) -> None:
    """A table whose lists of files are gone is dropped before it is copied again."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    for file in folder(hadoop).glob(pattern):
        damage(file, "gone")
    resync(hadoop, hadoop.destination(), stream)


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["gone", "zeros"])
def test_a_data_file_that_a_batch_reads(hadoop: Lake, how: str) -> None:
    """A value that is in no file any more parks the table with a code, not as a lake that is away."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    for file in folder(hadoop).rglob("*.parquet"):
        damage(file, how)
    stream.update(id=2, item="B", note=None, unchanged=[3])
    with pytest.raises(DestinationChanged) as caught:
        apply(hadoop, destination, stream)
    assert caught.value.code == "table_damaged"
    resync(hadoop, hadoop.destination(), stream)


@pytest.mark.nightly
def test_the_newest_metadata_while_running(hadoop: Lake) -> None:
    """It is noticed without a batch."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    damage(newest_metadata(hadoop), "gone")
    with pytest.raises(DestinationChanged) as caught:
        look(destination)
    assert caught.value.code == "table_damaged"
    resync(hadoop, destination, stream)


def test_rows_are_those_of_the_copy(hadoop: Lake) -> None:
    """The table that takes the place of a damaged one has nothing of it."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    damage(newest_metadata(hadoop), "gone")
    destination = hadoop.destination()
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, []), hadoop.mark(stream.taken, 2))
    assert items(hadoop) == {}
    assert len(list(folder(hadoop).rglob("*.parquet"))) == 0


@pytest.mark.nightly
def test_a_bit_that_changed(hadoop: Lake) -> None:
    """Spark compares the checksums of pages. It reads the rows as they were written, or none."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    file = next(folder(hadoop).rglob("*.parquet"))
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    whole, codes = sorted(hadoop.sql("SELECT * FROM {t}")), set()
    for at in range(8, footer, footer // 12):
        damage(file, "gone")
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            with java_errors("read the table"):
                assert sorted(hadoop.sql("SELECT * FROM {t}")) == whole, at
        except LevadaError as error:
            codes.add(error.code)
    assert "table_damaged" in codes
