"""Names at the source against names in the lake: each table has one of its own, whatever the source calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql
from pyiceberg.table import StaticTable
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.manifests import table_sync

PATHS = ["../../x", "..", "a/b", "a#b?c%d\\e", "tab\tnew\nline", " a ", "metadata", "v1.orders", "ü" * 31]


def in_one_namespace(engine: Engine) -> None:
    """Give all tables of two schemas one namespace."""
    engine.spec["tables"] = {"include": [{"schema": "s1", "name": "*"}, {"schema": "s2", "name": "*"}]}
    engine.spec["destination"] = {
        "iceberg": {
            "catalog": {"type": "Hadoop", "warehouse": f"file://{engine.warehouse}"},
            "namespace": "lake",
        }
    }


def lake(engine: Engine, name: str, namespace: str = "shop_public") -> list[dict[str, Any]]:
    """Return the rows of a table in the lake, by its folder."""
    metadata = engine.warehouse / namespace / name / "metadata"
    version = (metadata / "version-hint.text").read_text()
    rows: pa.Table = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json")).scan().to_arrow()
    return sorted(rows.to_pylist(), key=lambda row: int(row["id"]))


def ids(engine: Engine, name: str, namespace: str = "shop_public") -> list[int]:
    """Return the ids of the rows of a table in the lake."""
    return [row["id"] for row in lake(engine, name, namespace)]


def by_name(progress: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables of the progress by their names at the source."""
    return {f"{t['schema']}.{t['name']}": t for t in progress["tables"]}


def collides(progress: dict[str, Any], table: str) -> bool:
    """Return True if the table is parked because another table has its place."""
    error = by_name(progress).get(table, {}).get("error")
    return error is not None and error["code"] == "destination_collision"


def is_ready(progress: dict[str, Any], *tables: str) -> bool:
    """Return True if these tables stream."""
    return all(by_name(progress).get(t, {}).get("phase") == "Ready" for t in tables)


def test_two_tables_of_one_name_are_refused(engine: Engine, db: Database) -> None:
    """Before anything is copied, with both names, by the check and by the start."""
    db.execute(
        "CREATE SCHEMA s1; CREATE TABLE s1.t (id int PRIMARY KEY); INSERT INTO s1.t VALUES (1)",
        "CREATE SCHEMA s2; CREATE TABLE s2.t (id int PRIMARY KEY); INSERT INTO s2.t VALUES (2)",
    )
    in_one_namespace(engine)
    engine.write_manifest()
    for command in ("check", "run"):
        refused = engine.levada(command, *engine.options(), check=False)
        assert refused.returncode != 0, command
        assert "destination_collision" in refused.stdout + refused.stderr
        assert "s1.t and s2.t" in refused.stdout + refused.stderr
    assert not (engine.warehouse / "lake").exists()


def test_a_table_that_comes_later_waits_for_a_name_of_its_own(engine: Engine, db: Database) -> None:
    """The first one goes on, over a restart as well. With another destinationTable, the second one is copied."""
    db.execute(
        "CREATE SCHEMA s1; CREATE TABLE s1.t (id int PRIMARY KEY); INSERT INTO s1.t VALUES (1)", "CREATE SCHEMA s2"
    )
    in_one_namespace(engine)
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    db.execute("CREATE TABLE s2.t (id int PRIMARY KEY); INSERT INTO s2.t VALUES (2)")
    # A change of the selectors has the tables looked for without a wait.
    engine.spec["tables"]["include"].append({"schema": "s3", "name": "*"})
    engine.write_manifest()
    engine.wait_for(lambda p: collides(p, "s2.t") and is_ready(p, "s1.t"))
    engine.stop()
    # The operator checks before each start.
    assert "destination_collision" in engine.levada("check", *engine.options()).stderr
    engine.start()
    db.execute("INSERT INTO s1.t VALUES (10)")
    engine.wait_for(lambda p: collides(p, "s2.t") and is_ready(p, "s1.t") and ids(engine, "t", "lake") == [1, 10])
    engine.write_manifest(table_sync("t", "s2", destinationTable="t2"))
    engine.wait_for(lambda p: is_ready(p, "s1.t", "s2.t") and by_name(p)["s2.t"]["destinationTable"] == "lake.t2")
    assert ids(engine, "t", "lake") == [1, 10]
    assert ids(engine, "t2", "lake") == [2]


def create_numbered(db: Database, *tables: str) -> None:
    """Create tables, each with a row of its number, from 1 on."""
    with db.connect() as connection:
        for number, name in enumerate(tables, start=1):
            connection.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES ({number})".encode()
            )


def test_renamed_tables_keep_their_lake_tables(engine: Engine, db: Database) -> None:
    """After a rename, a drop, and restarts in between. A swap that the manifest holds changes no place either."""
    create_numbered(db, "a", "b", "c", "d")
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    db.execute(
        "BEGIN; ALTER TABLE a RENAME TO tmp; ALTER TABLE b RENAME TO a; ALTER TABLE tmp RENAME TO b; COMMIT",
        "ALTER TABLE c RENAME TO c_old; CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (30)",
        "DROP TABLE d; CREATE TABLE d (id int PRIMARY KEY); INSERT INTO d VALUES (40)",
        "INSERT INTO a VALUES (20); INSERT INTO b VALUES (10); INSERT INTO c_old VALUES (33)",
    )
    engine.stop()
    for _ in range(2):
        engine.start()
        found = engine.wait_for(
            lambda p: (
                is_ready(p, "public.a", "public.b", "public.c_old", "public.d")
                and collides(p, "public.c")
                and ids(engine, "a") == [1, 10]
                and ids(engine, "b") == [2, 20]
                and ids(engine, "c") == [3, 33]
                and ids(engine, "d") == [40]
            )
        )
        places = {name: t["destinationTable"] for name, t in by_name(found).items()}
        assert (places["public.a"], places["public.b"]) == ("shop_public.b", "shop_public.a")
        assert places["public.c_old"] == "shop_public.c"
        engine.stop()
    status = engine.levada("status", *engine.options(), "--work-dir", str(engine.folder / "none"), check=False)
    assert "public.a: named shop_public.b at the destination" in status.stdout
    db.execute("DROP TABLE c_old")
    engine.start()
    engine.wait_for(lambda p: is_ready(p, "public.c") and ids(engine, "c") == [30])


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["running", "stopped"])
def test_swapped_tables_have_the_names_of_the_source(engine: Engine, db: Database, stopped: bool) -> None:
    """By default: after the swap of a nightly build, and after a new table or another one took a name."""
    create_numbered(db, "c", "t", "t_new", "u", "u_new", "moved")
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "*"}]}
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    if stopped:
        engine.stop()
    db.execute(
        "ALTER TABLE c RENAME TO c_old; CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (30)",
        "BEGIN; ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t; COMMIT",
        "BEGIN; DROP TABLE u; ALTER TABLE u_new RENAME TO u; COMMIT",
        "ALTER TABLE moved RENAME TO moved_v2",
        "INSERT INTO c_old VALUES (33); INSERT INTO t VALUES (50); INSERT INTO t_old VALUES (40)",
        "INSERT INTO u VALUES (70)",
    )
    if stopped:
        engine.start()
    names = {"c": [30], "c_old": [1, 33], "t": [3, 50], "t_old": [2, 40], "u": [5, 70]}
    expected = {f"public.{name}": f"shop_public.{name}" for name in names} | {"public.moved_v2": "shop_public.moved"}
    engine.wait_for(lambda p: {n: t["destinationTable"] for n, t in by_name(p).items()} == expected)
    engine.wait_caught_up()
    assert {name: ids(engine, name) for name in names} == names
    assert not (engine.warehouse / "shop_public" / "t_new").exists()
    engine.stop()
    engine.start()
    db.execute("INSERT INTO t VALUES (51)")
    engine.wait_caught_up()
    assert ids(engine, "t") == [3, 50, 51]


def test_names_that_would_be_paths(engine: Engine, db: Database) -> None:
    """Each is a table below its namespace, also after a resync. Nothing else in the warehouse changes."""
    with db.connect() as connection:
        for number, name in enumerate(PATHS):
            table = sql.Identifier(name)
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(table))
            connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(table, number))
    precious = engine.warehouse / "shop_public" / "precious"
    precious.mkdir(parents=True)
    (precious / "kept").write_text("kept")
    outside = engine.warehouse.parent / "x"
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    engine.levada("resync", *engine.options(), "--all")
    engine.wait_for(lambda p: p["ready"] and all(t["copy"] is not None for t in p["tables"]))
    engine.stop()
    engine.start()
    with db.connect() as connection:
        for name in PATHS:
            connection.execute(sql.SQL("INSERT INTO {} VALUES (100)").format(sql.Identifier(name)))
    found = engine.wait_caught_up()
    places = {t["name"]: t["destinationTable"] for t in found["tables"]}
    for number, name in enumerate(PATHS):
        folder = places[name].removeprefix("shop_public.")
        assert Path(folder).name == folder
        assert ids(engine, folder) == [number, 100]
    assert (precious / "kept").read_text() == "kept"
    assert not outside.exists()
