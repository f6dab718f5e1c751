"""Verification of tables in DuckLake, whose checksums are computed from their data files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.rigs.replicated import InDuckLake, T, in_ducklake
from tests.rigs.table_writers import delete_some, insert_some, update_some, writers
from tests.rigs.waiting import until
from tests.verify.every_type import COLUMNS, TYPES, create, insert

from levada.destinations.ducklake import DuckLakeDestination
from levada.destinations.ducklake.fixed_table import DuckLakeVersion
from levada.destinations.ducklake.tables import read_content
from levada.errors import NeedsOperator, Transient
from levada.mask_keys import KeyFile, MaskKeyFiles
from levada.runtime.config import TableConfig, VerifyConfig
from levada.schema.masks import Mask, TableMasks
from levada.status import TableProgress
from levada.values import Deletes, MaskMethod, OnUnrepresentable, TableMode
from levada.verify.differences import Kind

__all__ = ["in_ducklake"]


@pytest.mark.nightly
def test_every_type_is_equal_and_its_smallest_change_is_found(in_ducklake: InDuckLake) -> None:
    """In copied and in streamed rows, and in rows from before a column. A change is found with its column alone."""
    shop = in_ducklake
    shop.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    shop.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    names, values = list(COLUMNS), [v[0] for _, v, _ in COLUMNS.values()]
    shop.start(on_unrepresentable=OnUnrepresentable.NULL)
    shop.db.execute(insert(11))  # type: ignore[arg-type]  # made of constants
    for i, name in enumerate(names):
        other = [COLUMNS[name][2] if n == name else v for n, v in zip(names, values, strict=True)]
        for row in (f"({100 + i}, {', '.join(values)})", f"({500 + i}, {', '.join(other)})"):
            shop.db.execute(f"INSERT INTO t VALUES {row}")  # type: ignore[arg-type]  # made of constants
    shop.db.execute("ALTER TABLE t ADD added text DEFAULT 'before'", "INSERT INTO t (id, added) VALUES (900, 'later')")
    shop.wait_caught_up()
    report = shop.verify()
    assert report.equal, report
    assert report.source_rows == report.lake_rows == 9 + 2 * len(names)
    for i, name in enumerate(names):
        shop.damage(f'UPDATE t SET "{name}" = (SELECT "{name}" FROM t WHERE id = {500 + i}) WHERE id = {100 + i}')
    found = shop.verify()
    assert {d.key[0]: d.columns for d in found.examples} == {str(100 + i): (name,) for i, name in enumerate(names)}
    repaired = shop.verify(repair=True)
    assert repaired.repaired_equal, repaired
    assert shop.verify().equal


def test_missing_added_and_repeated_rows_are_found(in_ducklake: InDuckLake) -> None:
    """With a composite key, after deletes that DuckDB has written, and in a table whose files it has compacted."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (a int, b text, v text, PRIMARY KEY (b, a))",
        "INSERT INTO t SELECT g, 'k' || g % 7, 'v' || g FROM generate_series(1, 3000) g",
    )
    shop.start()
    shop.db.execute("DELETE FROM t WHERE a > 2900", "UPDATE t SET v = 'new' WHERE a < 100")
    shop.wait_caught_up()
    assert shop.verify().equal
    shop.lake.sql("CALL ducklake_merge_adjacent_files('lake')")
    shop.lake.sql("CALL ducklake_rewrite_data_files('lake')")
    assert shop.verify().equal
    shop.damage(
        "DELETE FROM t WHERE a % 2 = 0; UPDATE t SET v = 'theirs' WHERE a = 5; UPDATE t SET a = -7 WHERE a = 7;"
        " INSERT INTO t SELECT * FROM t WHERE a = 9"
    )
    found = shop.verify(show_values=True, examples=2000)
    kinds = {Kind.MISSING: 1451, Kind.EXTRA: 1, Kind.CHANGED: 1, Kind.REPEATED: 1}
    assert {kind: n for kind, n in found.counts.items() if n} == kinds
    (changed,) = (d for d in found.examples if d.kind is Kind.CHANGED)
    assert changed.key == ("5", "k5")
    assert changed.values == (("new", "theirs"),)
    assert shop.verify(sample=0.01).counts[Kind.MISSING] == 1451
    repaired = shop.verify(repair=True)
    assert repaired.repaired_equal
    assert repaired.repaired == 1454
    shop.db.execute(
        "UPDATE t SET v = 'newer' WHERE a < 10", "DELETE FROM t WHERE a = 8", "UPDATE t SET a = -1 WHERE a = 20"
    )
    shop.wait_caught_up()
    assert shop.verify().equal
    assert shop.lake.sql("SELECT count(*), count(DISTINCT (a, b)) FROM shop_public.t") == [(2899, 2899)]


@pytest.mark.nightly
def test_a_table_under_writers_is_equal(in_ducklake: InDuckLake) -> None:
    """At the LSN of each comparison, while rows are inserted, changed and deleted, and files are compacted."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text, v int DEFAULT 0)",
        "INSERT INTO t (item) SELECT g::text FROM generate_series(1, 2000) g",
    )
    shop.start()
    with writers(shop.db, insert_some, update_some, delete_some):
        for _ in range(5):
            assert shop.verify().equal
            with suppress(duckdb.TransactionException):
                shop.lake.sql("CALL ducklake_merge_adjacent_files('lake')")


@pytest.mark.nightly
def test_a_shadow_copy_is_compared_before_the_swap(in_ducklake: InDuckLake) -> None:
    """With `verify.beforeSwap`, a resync swaps in what is equal to the source."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g FROM generate_series(1, 500) g"
    )
    shop.start(verify=VerifyConfig(before_swap=True))
    pipeline = shop.pipeline
    assert pipeline is not None
    pipeline.resync()
    shop.db.execute("DELETE FROM t WHERE id < 10", "UPDATE t SET v = 'x' WHERE id < 30")

    def compared(table: TableProgress) -> bool:
        return table.resync is None and table.verified is not None and table.verified.equal

    until(lambda: pipeline.progress().tables[0], compared)
    assert shop.verify().equal


def test_a_changelog_is_not_compared(in_ducklake: InDuckLake) -> None:
    """It has every change, and not the rows."""
    shop = in_ducklake
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop.start(tables={T: TableConfig(mode=TableMode.CHANGELOG)})
    with pytest.raises(NeedsOperator) as refused:
        shop.verify()
    assert refused.value.code == "verify_unsupported"


@pytest.mark.sampled
@pytest.mark.parametrize("deletes", [Deletes.MARK, Deletes.IGNORE])
def test_kept_rows_are_no_differences(in_ducklake: InDuckLake, deletes: Deletes) -> None:
    """With and without a mark. A row that lacks its mark, or has another value, is one."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g FROM generate_series(1, 300) g"
    )
    shop.start(tables={T: TableConfig(deletes=deletes)})
    shop.db.execute("DELETE FROM t WHERE id <= 100")
    shop.wait_caught_up()
    report = shop.verify()
    assert report.equal, report
    assert (report.source_rows, report.kept) == (200, 100)
    shop.damage("UPDATE t SET v = 'theirs' WHERE id = 200; DELETE FROM t WHERE id = 201")
    found = shop.verify()
    assert {kind: n for kind, n in found.counts.items() if n} == {Kind.CHANGED: 1, Kind.MISSING: 1}
    shop.damage("INSERT INTO t (id, v) VALUES (-1, 'theirs')")
    assert shop.verify(repair=True).repaired_equal
    report = shop.verify()
    assert report.equal
    assert (report.source_rows, report.kept) == (200, 101)


@pytest.mark.nightly
def test_masks_are_compared(in_ducklake: InDuckLake, tmp_path: Path) -> None:
    """The key, too, is masked at the destination, and only there."""
    shop = in_ducklake
    (tmp_path / "key").write_bytes(b"a key of at least sixteen bytes")
    file = KeyFile.open(tmp_path / "key")
    hashes, last = Mask(MaskMethod.HMAC, 0, file.key_id), Mask(MaskMethod.LAST, 2)
    shop.db.execute(
        "CREATE TABLE t (email text PRIMARY KEY, card text, gone int)",
        "INSERT INTO t SELECT 'e' || g, '1234-' || g, g FROM generate_series(1, 300) g",
    )
    masks = TableMasks.of({"email": hashes, "card": last, "gone": Mask(MaskMethod.NULL)})
    shop.start(mask_keys=MaskKeyFiles((file,)), tables={T: TableConfig(masks=masks)})
    shop.db.execute("UPDATE t SET card = card || 'x' WHERE email = 'e5'", "DELETE FROM t WHERE email = 'e6'")
    shop.wait_caught_up()
    report = shop.verify()
    assert report.equal, report
    assert report.source_rows == 299
    shop.damage("UPDATE t SET gone = 5 WHERE card = '99'")
    assert shop.verify().counts[Kind.CHANGED] > 0


def test_a_repair_that_does_not_end_leaves_the_table_parked(
    in_ducklake: InDuckLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit looks like that of another writer until the whole table was compared again, by another repair."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g FROM generate_series(1, 100) g"
    )
    shop.start()
    shop.damage("DELETE FROM t WHERE id = 7; UPDATE t SET v = 'theirs' WHERE id = 8")

    def ended(*_: object) -> None:
        raise Transient("destination_unavailable", "the process ended")

    with monkeypatch.context() as patched:
        patched.setattr(DuckLakeDestination, "accept_repair", ended)
        with pytest.raises(Transient):
            shop.verify(repair=True)
    pipeline = shop.pipeline
    assert pipeline is not None
    shop.db.execute("INSERT INTO t VALUES (101)")
    found = until(lambda: pipeline.progress().tables[0].error)
    assert found is not None
    assert found.code == "foreign_write"
    assert shop.verify(repair=True).repaired_equal
    shop.db.execute("INSERT INTO t VALUES (102)")
    until(lambda: shop.lake.sql("SELECT count(*) FROM shop_public.t"), lambda found: found == [(102,)])
    assert shop.verify().equal


def test_a_repair_that_does_not_end_leaves_an_intact_table_as_it_was(
    in_ducklake: InDuckLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that differ although no other writer came are written, and the table goes on, also in another process."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g FROM generate_series(1, 100) g"
    )
    shop.start()
    shop.damage("DELETE FROM t WHERE id = 7; UPDATE t SET v = 'theirs' WHERE id = 8")
    with shop.replica.connect() as connection:
        connection.execute("SET search_path = lake")
        [(number,)] = connection.execute("SELECT table_id FROM ducklake_table WHERE table_name = 't'").fetchall()
        now = read_content(connection, number)
        connection.execute("UPDATE levada_tables SET next_row_id = %s, row_count = %s", [now.next_row_id, now.rows])

    def ended(*_: object) -> None:
        raise Transient("destination_unavailable", "the process ended")

    with monkeypatch.context() as patched:
        patched.setattr(DuckLakeDestination, "accept_repair", ended)
        with pytest.raises(Transient):
            shop.verify(repair=True)
    shop.db.execute("INSERT INTO t VALUES (101)", "UPDATE t SET v = 'mine' WHERE id = 8")
    shop.wait_caught_up()
    assert shop.pipeline is not None
    shop.pipeline.stop()
    shop.start()
    shop.db.execute("INSERT INTO t VALUES (102)")
    shop.wait_caught_up()
    assert shop.verify().equal


@pytest.mark.nightly
def test_a_clean_up_during_a_repair_is_no_damage(in_ducklake: InDuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair reads again what a compaction has replaced and removed, and does not call the table damaged."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g FROM generate_series(1, 100) g"
    )
    shop.start(tables={T: TableConfig(deletes=Deletes.MARK)})
    for number in (-1, -2):
        shop.damage(f"INSERT INTO t (id, v) VALUES ({number}, 'theirs')")
    whole_rows = DuckLakeVersion.whole_rows

    def after_a_clean_up(*args: Any) -> Iterator[pa.RecordBatch]:
        with shop.lake.duckdb() as connection:
            connection.execute("CALL ducklake_merge_adjacent_files('lake')")
            connection.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
            connection.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        return whole_rows(*args)

    with monkeypatch.context() as patched:
        patched.setattr(DuckLakeVersion, "whole_rows", after_a_clean_up)
        assert shop.verify(repair=True).repaired_equal
    assert shop.verify().equal
