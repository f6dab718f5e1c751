"""Partitioned tables whose root and leaves are altered in any order, with rows between, in one pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table
from tests.rigs.waiting import until

from levada.testing.memory import MemoryDestination

_FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"
_DEFAULT = "ALTER TABLE {} REPLICA IDENTITY DEFAULT"

_HISTORIES = {
    "leaf_first": [_FULL.format("{}_1"), _FULL.format("{}_2"), _FULL],
    "root_first": [_FULL, _FULL.format("{}_1"), _FULL.format("{}_2")],
    "back": [_FULL.format("{}_1"), _FULL, _DEFAULT, _DEFAULT.format("{}_1")],
    "no_identity": ["ALTER TABLE {} REPLICA IDENTITY NOTHING", _DEFAULT],
    "renamed": [
        "ALTER TABLE {} RENAME TO {}_r",
        _FULL.format("{}_1"),
        _FULL.format("{}_r"),
        "ALTER TABLE {}_r RENAME TO {}",
    ],
    "detached": [
        _FULL.format("{}_1"),
        "ALTER TABLE {} DETACH PARTITION {}_2",
        _FULL,
        "ALTER TABLE {} ATTACH PARTITION {}_2 FOR VALUES FROM (10) TO (20)",
    ],
    "widened": [
        _FULL.format("{}_1"),
        _FULL.format("{}_2"),
        "ALTER TABLE {} ADD c int DEFAULT 3",
        _FULL,
        "ALTER TABLE {} DROP v",
    ],
}
"""Statements on each table. Rows are written after each of them."""
_EQUAL = ("leaf_first", "widened")
"""The histories that cost no copy with the event trigger. The guide to partitions advises the first one."""


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of a table for each history into memory, not started."""
    with db.connect() as c:
        for name in [*_HISTORIES, "quiet"]:
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
            c.execute(f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (10)")
            c.execute(f"CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (10) TO (20)")
            c.execute(f"INSERT INTO {name} VALUES (1, 1), (11, 1)")
    made = Rig(db, tmp_path)
    made.destination = MemoryDestination()  # type: ignore[assignment]  # the rig only passes it on
    made.change(selects=lambda table: table.schema == "public", copy_tables=8)
    yield made
    made.stop()


@pytest.mark.sampled
@pytest.mark.parametrize("announced", [True, False], ids=["trigger", "catalog"])
def test_no_alteration_of_partitions_ends_the_capture(rig: Rig, db: Database, announced: bool) -> None:
    """Each table is equal or parked, whatever it went through. Another table of the pipeline goes on in any case."""
    rig.change(ddl_trigger=announced)
    rig.start()
    rig.wait_caught_up()
    with db.connect() as c:
        for name, statements in _HISTORIES.items():
            _write(c, name)
            for statement in statements:
                c.execute(statement.format(*[name] * 9))
                _write(c, f"{name}_r" if statement.endswith("TO {}_r") else name)
                _write(c, "quiet")
    expected = {name: _at_source(db, name) for name in [*_HISTORIES, "quiet"]}

    def settled() -> bool:
        assert rig.running is not None
        assert not rig.running.wait(0)
        parked = {t.table.name.removesuffix("_r") for t in rig.running.progress().tables if t.error}
        held = _in_memory(rig)
        return all(name in parked or held.get(name) == rows for name, rows in expected.items())

    until(settled)
    assert rig.running is not None
    found = rig.running.progress()  # paced: a parked table stays parked
    good = ("quiet", *(_EQUAL if announced else ()))
    assert {name: table(found, name).error for name in good} == dict.fromkeys(good)


@pytest.mark.nightly
def test_a_root_that_is_streamed_as_its_partitions_waits(db: Database, tmp_path: Path) -> None:
    """It does not leave the pipeline when the publication no longer publishes through the root."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    )
    rig = Rig(db, tmp_path)
    rig.change(selects=Only("t"), discovery_s=0.2)
    try:
        rig.start()
        rig.wait_caught_up()
        with db.connect() as c:
            publication = sql.Identifier(rig.config.publication.name)
            c.execute(sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = false)").format(publication))
        error = table(rig.wait(lambda p: any(t.error for t in p.tables)), "t").error
        assert error is not None
        assert error.code == "table_not_published"
        assert "publish_via_partition_root = true" in error.solution
    finally:
        rig.stop()


def test_a_new_partition_of_a_root_without_a_key_costs_no_copy(db: Database, tmp_path: Path) -> None:
    """The trigger gives it the FULL identity of the root, so its rows are streamed with all others."""
    db.execute(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE t_1 REPLICA IDENTITY FULL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    rig = Rig(db, tmp_path)
    rig.change(selects=Only("t"))
    try:
        rig.start()
        rig.wait_caught_up()
        db.execute(
            "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
            "INSERT INTO t VALUES (1), (11)",
            "UPDATE t SET id = id + 1",
        )
        found = table(rig.wait_caught_up(), "t")
    finally:
        rig.stop()
    assert (found.phase, found.error, found.rows_applied) == ("Ready", None, 4)
    assert rig.destination.copies_of("t") == 1


@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while running"])
def test_a_foreign_partition_parks_its_table(db: Database, tmp_path: Path, running: bool) -> None:
    """Its rows are those of another server, and no change of them is in the WAL. Another table goes on."""
    db.execute(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE t_1 REPLICA IDENTITY FULL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE TABLE quiet (id int PRIMARY KEY)",
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
        "CREATE FOREIGN TABLE t_2 (id int) SERVER elsewhere",
    )
    rig = Rig(db, tmp_path)
    rig.change(selects=Only("t", "quiet"), discovery_s=0.2)
    attach: LiteralString = "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (10) TO (20)"
    try:
        if not running:
            db.execute(attach)
        rig.start()
        if running:
            rig.wait_caught_up()
            db.execute(attach)
        error = table(rig.wait(lambda p: any(t.error for t in p.tables)), "t").error
        assert error is not None
        assert error.code == "partition_foreign"
        assert error.solution.startswith("ALTER TABLE public.t DETACH PARTITION public.t_2; then levada resync")
        db.execute("INSERT INTO quiet VALUES (1)")
        rig.wait(lambda p: rig.destination.applied_rows.get("quiet") == 1)
    finally:
        rig.stop()


def _write(c: psycopg.Connection[Any], table: str) -> None:
    """Write rows, as far as PostgreSQL takes them: a table may lack an identity, or a partition."""
    for statement in (
        f"INSERT INTO {table} (id) SELECT max(id) + 1 FROM {table} WHERE id < 9",
        f"UPDATE {table} SET id = 10 + id WHERE id = 2",
        f"UPDATE {table} SET id = id WHERE id = 1",
        f"DELETE FROM {table} WHERE id IN (3, 12)",
    ):
        with suppress(psycopg.Error):
            c.execute(statement)  # type: ignore[call-overload]  # a name of this module


def _at_source(db: Database, name: str) -> list[dict[str, Any]]:
    rows = db.query(f"SELECT to_jsonb(of_row) FROM {name} of_row")  # type: ignore[arg-type]  # as above
    return sorted((row for (row,) in rows), key=lambda row: row["id"])


def _in_memory(rig: Rig) -> dict[str, list[dict[str, Any]]]:
    tables = rig.destination.place.tables.values()  # type: ignore[attr-defined]  # as above
    named = {t.schema.name.name: t.named() for t in tables}
    return {name: sorted(rows, key=lambda row: row["id"]) for name, rows in named.items()}
