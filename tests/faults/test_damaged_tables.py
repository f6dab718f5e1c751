"""Tables that another writer damaged: `levada verify` finds each damage, names it and repairs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.verified_shop import Shop, shop

from levada.destinations.iceberg import IcebergDestination
from levada.errors import NeedsOperator, Transient
from levada.runtime.limits import Limits, VerificationLimits
from levada.status import TablePhase
from levada.values import Lsn
from levada.verify.differences import Kind
from levada.verify.report import TableReport
from levada.verify.table import CompareLimits

__all__ = ["shop"]

ROWS = 1000


def remove_file(shop: Shop) -> None:
    """Remove the largest data file from the disk."""
    path = shop.sql("SELECT file_path FROM {t}.data_files ORDER BY record_count DESC LIMIT 1")[0][0]
    Path(path.removeprefix("file:")).unlink()


def restore_old_snapshot(shop: Shop) -> None:
    """Make the table's first snapshot the current one."""
    first = shop.sql("SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at LIMIT 1")[0][0]
    shop.sql("CALL {c}.system.set_current_snapshot({p}, " + str(first) + ")")


def statements(text: str) -> Callable[[Shop], None]:
    """Return a damage by Spark's SQL."""
    return lambda shop: shop.sql(text) and None


def one(report: TableReport) -> tuple[Any, ...]:
    """Return the only difference: its kind, its key and its columns."""
    [found] = report.examples
    return found.kind, found.key, found.columns


DAMAGES: dict[str, tuple[Callable[[Shop], None], Callable[[TableReport], bool]]] = {
    "a data file is removed": (
        remove_file,
        lambda r: any(".parquet" in problem for problem in r.problems),
    ),
    "an old snapshot is restored": (
        restore_old_snapshot,
        lambda r: r.differences > 0 and ("2",) in {d.key for d in r.examples},
    ),
    "a row is missing": (
        statements("DELETE FROM {t} WHERE id = 5"),
        lambda r: one(r) == (Kind.MISSING, ("5",), ()),
    ),
    "a row is doubled": (
        statements("INSERT INTO {t} SELECT * FROM {t} WHERE id = 6"),
        lambda r: one(r) == (Kind.REPEATED, ("6",), ()),
    ),
    "a row is invented": (
        statements("INSERT INTO {t} VALUES (-1, 'theirs', NULL, 0, 0)"),
        lambda r: one(r) == (Kind.EXTRA, ("-1",), ()),
    ),
    "a text is changed": (
        statements("UPDATE {t} SET a = 'A7' WHERE id = 7"),
        lambda r: one(r) == (Kind.CHANGED, ("7",), ("a",)),
    ),
    "an empty text becomes NULL": (
        statements("UPDATE {t} SET b = NULL WHERE id = 8"),
        lambda r: one(r) == (Kind.CHANGED, ("8",), ("b",)),
    ),
    "a number is changed by its last bit": (
        statements("UPDATE {t} SET x = x + 2.220446049250313E-16D WHERE id = 1"),
        lambda r: one(r) == (Kind.CHANGED, ("1",), ("x",)),
    ),
    "the values of two columns are exchanged": (
        statements("UPDATE {t} SET a = b, b = a WHERE id = 9"),
        lambda r: one(r) == (Kind.CHANGED, ("9",), ("a", "b")),
    ),
    "a key is changed": (
        statements("UPDATE {t} SET id = 100010 WHERE id = 10"),
        lambda r: {(d.kind, d.key) for d in r.examples} == {(Kind.MISSING, ("10",)), (Kind.EXTRA, ("100010",))},
    ),
    "the values of two rows are exchanged": (
        statements("UPDATE {t} SET a = CASE WHEN id = 11 THEN 'a12' ELSE 'a11' END WHERE id IN (11, 12)"),
        lambda r: {d.key for d in r.examples} == {("11",), ("12",)} and r.counts[Kind.CHANGED] == 2,
    ),
    "the table is emptied": (
        statements("TRUNCATE TABLE {t}"),
        lambda r: r.counts[Kind.MISSING] == r.source_rows and r.lake_rows == 0,
    ),
    "two columns exchange their names": (
        statements(
            "ALTER TABLE {t} RENAME COLUMN a TO c; ALTER TABLE {t} RENAME COLUMN b TO a;"
            "ALTER TABLE {t} RENAME COLUMN c TO b"
        ),
        lambda r: len(r.problems) == 2 and "column a has the name b" in r.problems[0],
    ),
}


def prepare(shop: Shop) -> None:
    """Make a table with copied rows, streamed ones and deleted ones."""
    shop.db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, a text, b text, x double precision, n int)",
        "INSERT INTO t SELECT g, 'a' || g, CASE g WHEN 8 THEN '' ELSE 'b' || g END, g, g"
        f" FROM generate_series(1, {ROWS}) g",
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute("UPDATE t SET a = 'new' WHERE id = 2", "DELETE FROM t WHERE id > 990")
    shop.wait_caught_up()


def parked(shop: Shop) -> str:
    """Return the code of the table's error, empty without one."""
    assert shop.pipeline is not None
    [table] = shop.pipeline.progress().tables
    return "" if table.error is None else table.error.code


def wait_until_applied_or_parked(shop: Shop) -> None:
    """Wait until the table has every change so far, or is parked."""
    [(text,)] = shop.db.query("SELECT pg_current_wal_insert_lsn()")
    lsn = Lsn.parse(text)
    shop.wait(lambda p: p.tables[0].error is not None or p.has_reached(lsn))


@pytest.mark.parametrize("version", [2, 3])
def test_each_damage_is_found_named_and_repaired(shop: Shop, version: int) -> None:
    """Every damage is found at its key and column. After the repair the table is equal, and follows the source.

    For every other damage the pipeline notices the other writer first and parks the table. The repair resumes it.
    """
    shop.settings = {"formatVersion": version}
    prepare(shop)
    # Each version has half of the damages, as each takes seconds.
    some = list(DAMAGES.items())[version % 2 :: 2]
    for i, (name, (damage, is_found)) in enumerate(some):
        damage(shop)
        if i % 2:
            shop.db.execute("UPDATE t SET n = n + 1 WHERE id = 3")
            wait_until_applied_or_parked(shop)
        was_parked = parked(shop)
        report = shop.verify()
        assert report.parked or not was_parked
        if report.parked:
            report = without(report, "3")
        assert is_found(report), (name, report)
        repaired = shop.verify(repair=True)
        assert repaired.repaired_equal, (name, repaired)
        shop.wait(lambda p: p.tables[0].error is None)
        shop.db.execute(f"UPDATE t SET b = 'round {i}' WHERE id IN (4, 5, 6)", f"INSERT INTO t VALUES ({5000 + i})")
        shop.wait_caught_up()
    assert shop.verify().equal


def without(report: TableReport, key: str) -> TableReport:
    """Return the report without the change that a parked table has not applied."""
    from dataclasses import replace

    kept = tuple(d for d in report.examples if d.key != (key,))
    counts = dict(report.counts)
    if len(kept) != len(report.examples) and counts.get(Kind.CHANGED):
        counts[Kind.CHANGED] -= 1
    return replace(report, examples=kept, counts=counts)


def test_a_sample_finds_a_missing_range(shop: Shop) -> None:
    """A sample of 1% compares the values of few rows, but every key."""
    prepare(shop)
    shop.sql("DELETE FROM {t} WHERE id BETWEEN 300 AND 320")
    report = shop.verify(sample=0.01)
    assert report.counts[Kind.MISSING] == 21


def test_only_keyed_tables_are_repaired(shop: Shop) -> None:
    """A table without a key is compared by its rows. A repair is refused and changes nothing."""
    shop.db.execute(
        "CREATE TABLE t (a text, b int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT 'r' || g % 10, g % 3 FROM generate_series(1, 300) g",
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(
        "UPDATE t SET b = 7 WHERE a = 'r1'", "DELETE FROM t WHERE a = 'r2'", "INSERT INTO t VALUES ('r3', 0)"
    )
    report = shop.verify()
    assert report.equal, report
    assert report.source_rows == report.lake_rows == 271
    shop.db.execute("TRUNCATE t", "INSERT INTO t SELECT 'x', 1 FROM generate_series(1, 3)")
    assert shop.verify().equal
    shop.sql("INSERT INTO {t} SELECT * FROM {t} WHERE a = 'x' LIMIT 1")
    report = shop.verify()
    assert report.counts[Kind.REPEATED] == 1, report
    with pytest.raises(NeedsOperator) as refused:
        shop.verify(repair=True)
    assert refused.value.code == "verify_unrepairable"
    # The result of the comparison is kept.
    shop.wait(lambda p: p.tables[0].verified is not None and p.tables[0].verified.lsn > report.lsn)


def test_a_repair_that_does_not_end_is_no_repair(shop: Shop) -> None:
    """If the table still differs, or the process ends between two commits of a repair, the table is parked.

    It is not taken for one that equals the source, and another repair completes it.
    """
    shop.config["limits"] = Limits(verifications=VerificationLimits(rounds=1))
    prepare(shop)
    shop.sql("UPDATE {t} SET a = 'theirs' WHERE id > 500")
    with pytest.raises(NeedsOperator) as refused:
        shop.verify(repair=True, limits=CompareLimits(chunk_rows=10, repaired_rows=400))
    assert refused.value.code == "verify_unrepairable"
    shop.db.execute("UPDATE t SET n = n + 1 WHERE id = 3")
    shop.wait(lambda p: p.tables[0].is_parked)
    assert parked(shop) == "foreign_write"
    shop.stop()
    del shop.config["limits"]
    shop.start()
    shop.wait(lambda p: bool(p.tables) and p.tables[0].is_parked)
    assert shop.verify(repair=True).repaired_equal
    shop.wait_caught_up()
    assert shop.verify().equal


def test_a_repair_that_ends_before_its_watermark_is_completed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are all written, so that the next repair has nothing to write. The table goes on after it."""
    prepare(shop)
    shop.sql("UPDATE {t} SET a = 'theirs' WHERE id > 900")

    def killed(*_: Any) -> None:
        raise Transient("verify_cancelled", "killed before the watermark is written")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergDestination, "accept_repair", killed)
        with pytest.raises(Transient, match="killed before"):
            shop.verify(repair=True)
    shop.db.execute("UPDATE t SET n = n + 1 WHERE id = 3")
    shop.wait(lambda p: p.tables[0].is_parked)
    shop.db.execute("UPDATE t SET n = n - 1 WHERE id = 3")
    report = shop.verify(repair=True)
    assert (report.equal, report.repaired, report.parked) == (True, 0, "foreign_write")
    shop.wait_caught_up()
    shop.db.execute("UPDATE t SET n = n + 1 WHERE id = 3")
    shop.wait_caught_up()
    assert shop.verify().equal


def cut(path: Path) -> None:
    """Cut a file in half, as an interrupted upload does."""
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Change one bit of a value, and not the size. Spark lists delete files that are gone and apply to no file."""
    if not path.exists():
        return
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    content[20 if path.suffix == ".puffin" else len(content) - footer - 3] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("version", [2, 3])
def test_damaged_files_are_named_and_repaired(shop: Shop, version: int) -> None:
    """Files that are missing, cut, or have another bit, are differences. No deleted row returns."""
    shop.settings = {"formatVersion": version}
    prepare(shop)
    for i, (damage, files) in enumerate(
        [
            (Path.unlink, "delete_files"),
            (cut, "data_files"),
            (Path.unlink, "delete_files"),
            (flip, "delete_files"),
            (flip, "data_files"),
        ]
    ):
        for row in shop.sql("SELECT DISTINCT file_path FROM {t}." + files):
            damage(Path(row[0].removeprefix("file:")))
        report = shop.verify()
        assert not report.equal
        assert report.problems[0].startswith("a file of shop_public.t is missing or damaged: ")
        assert report.parked == "table_damaged"
        found = shop.wait(lambda p: p.tables[0].error is not None).tables[0].error
        assert found is not None
        assert "levada verify MANIFEST --table public.t --repair" in found.solution
        repaired = shop.verify(repair=True)
        assert repaired.repaired_equal
        assert repaired.source_rows == 990 - i
        shop.wait(lambda p: p.tables[0].phase is TablePhase.READY)
        shop.db.execute(f"UPDATE t SET b = 'round {i}' WHERE id < 5", f"DELETE FROM t WHERE id = {20 + i}")
        shop.wait_caught_up()
        assert shop.verify().equal
        assert shop.sql("SELECT count(*) FROM {t}")[0][0] == 989 - i
