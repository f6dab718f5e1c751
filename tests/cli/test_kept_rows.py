"""Tables that keep the rows which the source deletes, through the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "kept-rows.md"
LONG = "x" * 9000
LIVE = "SELECT id, note FROM replica.orders WHERE _levada_deleted_at IS NULL ORDER BY id"
GONE = "SELECT id, note FROM replica.orders WHERE _levada_deleted_at IS NOT NULL ORDER BY id"


@pytest.fixture
def orders(manifest: Path, db: Database) -> Path:
    """A manifest of a table with three orders, one of which has a long note."""
    db.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",
        f"INSERT INTO orders VALUES (1, 'one'), (2, '{LONG}'), (3, 'three')",
    )
    return manifest


def write(path: Path, db: Database, deletes: str, **spec: Any) -> None:
    """Write the manifest with this effect of deletes."""
    tables = {"include": [{"schema": "public", "name": "*"}], "deletes": deletes}
    path.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}}, tables=tables, **spec)))


def verified(path: Path, *options: str, table: str = "public.orders") -> dict[str, Any]:
    """Return the result of the comparison of a table."""
    shown = on(path, "verify", "--table", table, "--output", "json", *options)
    [found] = json.loads(shown.stdout)["tables"]
    return dict(found)


def test_deleted_rows_are_marked(orders: Path, db: Database) -> None:
    """By deletes, new keys and TRUNCATE. A resync keeps them, an insert revives them, and both sides are equal."""
    [(found,)] = [re.findall(r"deletes: (\w+)", PAGE.read_text())[:1]]
    write(orders, db, found)
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 1", "UPDATE orders SET id = 20 WHERE id = 2")
    run(orders)
    assert db.query(LIVE) == [(3, "three"), (20, LONG)]
    assert db.query(GONE) == [(1, "one"), (2, LONG)]
    assert [verified(orders)[name] for name in ("equal", "kept")] == [True, 2]
    marks = "SELECT id, _levada_deleted_at FROM replica.orders WHERE id < 3 ORDER BY id"
    before = db.query(marks)
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    db.execute("DELETE FROM orders WHERE id = 3", "BEGIN; DELETE FROM orders; INSERT INTO orders VALUES (20, 'b'); END")
    run(orders)
    assert db.query(marks) == before
    assert (db.query(LIVE), db.query(GONE)) == ([(20, "b")], [(1, "one"), (2, LONG), (3, "three")])
    db.execute("BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (1, 'again'); END")
    run(orders)
    assert (db.query(LIVE), db.query(GONE)) == ([(1, "again")], [(2, LONG), (3, "three"), (20, "b")])
    assert [verified(orders)[name] for name in ("equal", "kept")] == [True, 3]


@pytest.mark.sampled
@pytest.mark.parametrize("lost", ["cleanup", "table"])
def test_a_first_copy_replaces_no_kept_rows(orders: Path, db: Database, lost: str) -> None:
    """After a clean-up, or of a table that was created again. The ways of the error keep the rows, or remove them."""
    db.execute("DROP TABLE items")
    write(orders, db, "Mark")
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 1")
    run(orders)
    if lost == "cleanup":
        cleaned = on(orders, "cleanup", "--yes")
        assert cleaned.exit_code == Exit.OK
        assert "will stay: the kept rows of 1 table: a later Pipeline does not copy to these places" in cleaned.output
    else:
        db.execute("BEGIN; DROP TABLE orders; CREATE TABLE orders (id int PRIMARY KEY, note text); END")
    checked = json.loads(on(orders, "check", "-o", "json").stdout)["problems"]
    foretold = [p for p in checked if p["code"] == "kept_rows_replaced"]
    assert [p["severity"] for p in foretold] == ["Error" if lost == "cleanup" else "Warning"]
    assert foretold[0]["hint"].endswith("Then: levada retry MANIFEST public.orders")
    planned = json.loads(on(orders, "plan", "-o", "json").stdout)["problems"]
    assert foretold[0] in planned, "the plan foretells what the check does"
    for _ in range(2):
        refused = on(orders, "run", "--until", "caught-up")
        assert refused.exit_code == Exit.TABLE_ERRORED
        assert "[kept_rows_replaced]" in refused.output
        assert db.query(GONE) == [(1, "one")]
    if lost == "cleanup":
        db.execute("ALTER TABLE replica.orders RENAME TO earlier_orders")
    else:
        write(orders, db, "Apply")
    assert on(orders, "retry", "public.orders").exit_code == Exit.OK
    run(orders)
    if lost == "cleanup":
        assert db.query(LIVE) == db.query("SELECT id, note FROM orders ORDER BY id")
        assert db.query("SELECT count(*) FROM replica.earlier_orders") == [(3,)]
    else:
        assert db.query("SELECT id, note FROM replica.orders") == []


@pytest.mark.parametrize("deletes", ["Mark", pytest.param("Ignore", marks=pytest.mark.nightly)])
def test_a_resync_of_a_part_keeps_what_the_source_deleted(orders: Path, db: Database, deletes: str) -> None:
    """A copy that leaves out rows which the source has takes over none of these, and marks none of them as deleted."""
    write(orders, db, deletes, copy={"mode": "None"})
    run(orders)
    db.execute("UPDATE orders SET note = 'uno' WHERE id = 1", "INSERT INTO orders VALUES (4, 'four'), (5, 'five')")
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 4")
    run(orders)
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    run(orders)
    assert db.query("SELECT id, note FROM replica.orders") == [(4, "four")]
    assert deletes == "Ignore" or db.query(GONE) == [(4, "four")]


def test_kept_rows_that_do_not_fit_into_a_new_copy(orders: Path, db: Database) -> None:
    """The hint's first way keeps them under another name, and the table is copied without them."""
    db.execute("ALTER TABLE orders ADD at timestamp DEFAULT '2024-01-01'")
    write(orders, db, "Mark")
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 1")
    run(orders)
    db.execute("ALTER TABLE orders ALTER at TYPE timestamptz USING at AT TIME ZONE 'Europe/Berlin'")
    refused = on(orders, "run", "--until", "caught-up")
    assert refused.exit_code == Exit.TABLE_ERRORED
    assert "[kept_rows_unmovable]" in refused.output
    assert "to keep these rows, rename the table at the destination" in refused.output
    db.execute("ALTER TABLE replica.orders RENAME TO earlier_orders")
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    run(orders)
    assert db.query("SELECT id FROM replica.earlier_orders ORDER BY id") == [(1,), (2,), (3,)]
    assert db.query(LIVE) == db.query("SELECT id, note FROM orders ORDER BY id")
    assert [verified(orders)[name] for name in ("equal", "kept")] == [True, 0]


@pytest.mark.parametrize("deletes", ["Mark", pytest.param("Ignore", marks=pytest.mark.nightly)])
def test_a_key_that_becomes_an_equal_one(orders: Path, db: Database, deletes: str) -> None:
    """The row of a kept key and a later one with an equal key, of another text, are one row with the later values."""
    keys = {"numeric": ("1.0", "1.00"), "interval": ("'1 mon'", "'30 days'"), "numeric[]": ("'{1.0}'", "'{1.00}'")}
    for number, (kind, (first, _)) in enumerate(keys.items()):
        table = f"k{number}"
        db.execute(
            f"CREATE TABLE {table} (k {kind} PRIMARY KEY, n int, note text)",
            f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",
            f"INSERT INTO {table} VALUES ({first}, 1, '{LONG}')",
        )
    write(orders, db, deletes)
    run(orders)
    steps = (
        "UPDATE {t} SET k = {b}",
        "BEGIN; DELETE FROM {t}; INSERT INTO {t} VALUES ({a}, 2, 'two'); END",
        "BEGIN; UPDATE {t} SET k = {b}; UPDATE {t} SET k = {a}, n = 3; UPDATE {t} SET k = {b}; END",
    )
    for step in steps:
        for number, (first, second) in enumerate(keys.values()):
            db.execute(step.format(t=f"k{number}", a=first, b=second))
        run(orders)
        for number in range(len(keys)):
            [wanted] = db.query(f"SELECT k::text, n, note FROM k{number}")
            assert db.query(f"SELECT k::text, n, note FROM replica.k{number}") == [wanted]
    if deletes == "Mark":
        db.execute("DELETE FROM k0")
        run(orders)
        assert db.query("SELECT k::text, _levada_deleted_at IS NOT NULL FROM replica.k0") == [("1.00", True)]


@pytest.mark.nightly
def test_a_repair_marks_and_revives(orders: Path, db: Database) -> None:
    """A row that only the destination has is marked, and one that is marked by mistake gets its values again."""
    write(orders, db, "Mark")
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 3")
    run(orders)
    db.execute(
        "ALTER TABLE replica.orders DISABLE TRIGGER ALL",
        "UPDATE replica.orders SET _levada_deleted_at = now() WHERE id = 1",
        "INSERT INTO replica.orders VALUES (9, 'strange')",
        "ALTER TABLE replica.orders ENABLE TRIGGER ALL",
    )
    assert verified(orders)["differences"] == {"missing": 1, "extra": 1}
    assert verified(orders, "--repair")["repairedEqual"]
    assert (db.query(LIVE), db.query(GONE)) == ([(1, "one"), (2, LONG)], [(3, "three"), (9, "strange")])


@pytest.mark.nightly
def test_deletes_are_ignored(orders: Path, db: Database) -> None:
    """Rows stay as they were, a resync and a repair keep them, and the other setting marks or removes them."""
    write(orders, db, "Ignore")
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 1", "UPDATE orders SET id = 20 WHERE id = 2", "TRUNCATE orders")
    db.execute("INSERT INTO orders VALUES (3, 'back')")
    run(orders)
    kept = [(1, "one"), (2, LONG), (3, "back"), (20, LONG)]
    shown = "SELECT id, note FROM replica.orders ORDER BY id"
    assert db.query(shown) == kept
    assert [verified(orders)[name] for name in ("equal", "kept")] == [True, 3]
    db.execute(
        "ALTER TABLE replica.orders DISABLE TRIGGER ALL",
        "UPDATE replica.orders SET note = 'wrong' WHERE id = 3",
        "ALTER TABLE replica.orders ENABLE TRIGGER ALL",
    )
    assert verified(orders)["differences"] == {"changed": 1}
    assert verified(orders, "--repair")["repairedEqual"]
    assert db.query(shown) == kept
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    run(orders)
    assert db.query(shown) == kept
    write(orders, db, "Mark")
    run(orders)
    assert (db.query(LIVE), db.query(GONE)) == ([(3, "back")], [kept[0], kept[1], kept[3]])
    write(orders, db, "Apply")
    run(orders)
    assert db.query(shown) == [(3, "back")]


@pytest.mark.parametrize(
    ("destination", "problem"),
    [
        ({"bigquery": {"project": "shop", "location": "EU"}}, "must be Apply, except with a destination of"),
        ({"opensearch": {"urls": ["http://search:9200"]}}, "must be Apply, except with a destination of"),
        ({"postgres": {"host": "h", "database": "d", "ordering": "Pipeline"}}, "must be Apply with ordering: Pipeline"),
    ],
)
def test_destinations_that_keep_nothing(
    manifest: Path, db: Database, destination: dict[str, Any], problem: str
) -> None:
    """The manifest is refused, for the setting of all tables and for that of one."""
    for one in (False, True):
        write(manifest, db, "Apply" if one else "Ignore", destination=destination)
        if one:
            [pipeline] = yaml.safe_load_all(manifest.read_text())
            spec = {"pipelineRef": pipeline["metadata"], "table": {"name": "orders"}, "deletes": "Mark"}
            table = {"apiVersion": pipeline["apiVersion"], "kind": "TableSync", "metadata": {"name": "t"}, "spec": spec}
            manifest.write_text(yaml.safe_dump_all([pipeline, table]))
        refused = on(manifest, "check")
        assert refused.exit_code == Exit.USAGE
        where = "spec.deletes" if one else "spec.tables.deletes"
        assert f"{where}: {problem}" in " ".join(refused.output.split())


@pytest.mark.nightly
def test_rows_of_partitions_are_kept(orders: Path, db: Database) -> None:
    """A verification and a repair know them, also with marks, and another setting removes them with the next copy."""
    db.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts SELECT i, 'n' FROM generate_series(8, 11) i",
    )
    tables = {"include": [{"schema": "public", "name": "*"}], "onPartitionGone": "Keep", "deletes": "Mark"}
    orders.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}}, tables=tables)))
    run(orders)
    db.execute("DROP TABLE parts_1", "DELETE FROM parts WHERE id = 10")
    run(orders)
    shown = "SELECT id, _levada_deleted_at IS NULL FROM replica.parts ORDER BY id"
    kept = [(8, True), (9, True), (10, False), (11, True)]
    assert db.query(shown) == kept
    found = verified(orders, "--repair", table="public.parts")
    assert (found["equal"], found["kept"]) == (True, 3)
    assert on(orders, "resync", "public.parts").exit_code == Exit.OK
    run(orders)
    assert db.query(shown) == kept
    write(orders, db, "Apply")
    run(orders)
    assert db.query("SELECT id FROM replica.parts") == [(11,)]


KEYS = {
    "int[]": "array[{}, 1]",
    "text[]": "array['{}', NULL]",
    "jsonb": "jsonb_build_object('a', {})",
    "interval": "make_interval({})",
    "bytea": "int4send({})",
    "float8": "{}::float8",
    "numeric": "{}::numeric",
    "uuid": "lpad('{}', 32, '0')::uuid",
    "int4range": "int4range({}, 999)",
    "timestamptz": "timestamptz '2020-01-01' + make_interval({})",
    "timetz": "timetz '00:00Z' + make_interval(mins => {})",
    "inet": "inet '10.0.0.0' + {}",
    "bit(8)": "{}::bit(8)",
    "pair": "row({}, 'x')::pair",
}


@pytest.mark.nightly
def test_keys_of_any_type_move(manifest: Path, db: Database) -> None:
    """Onto new, deleted and former keys, and after a TRUNCATE. The rows and the marks are those of the source."""
    db.execute("CREATE TYPE pair AS (a int, b text)")
    keys = {f"k{number}": (kind, key) for number, (kind, key) in enumerate(KEYS.items())}
    for name, (kind, key) in keys.items():
        rows = ", ".join(f"({key.format(i)}, {i}, repeat('{i}', 9000))" for i in range(1, 7))
        db.execute(
            f"CREATE TABLE {name} (k {kind} PRIMARY KEY, n int, note text)",
            f"ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL",
            f"INSERT INTO {name} VALUES {rows}",
        )
    write(manifest, db, "Mark")
    run(manifest)
    for name, (_, key) in keys.items():
        of = key.format
        db.execute(
            f"UPDATE {name} SET k = {of(101)} WHERE n = 1",
            f"UPDATE {name} SET k = {of(102)} WHERE n = 1",
            f"DELETE FROM {name} WHERE n = 2",
            f"UPDATE {name} SET k = {of(2)} WHERE n = 3",
            f"UPDATE {name} SET k = k, n = n + 10 WHERE n = 4",
        )
    run(manifest)
    for name in keys:
        rows_of = f"SELECT md5(k::text || n || note) FROM {{}}.{name} {{}} ORDER BY 1"
        live = db.query(rows_of.format("replica", "WHERE _levada_deleted_at IS NULL"))
        assert live == db.query(rows_of.format("public", "")), name
        gone = f"SELECT count(*) FROM replica.{name} WHERE _levada_deleted_at IS NOT NULL"
        assert db.query(gone) == [(3,)], name
        db.execute(f"TRUNCATE {name}")
    run(manifest)
    for name in keys:
        assert db.query(f"SELECT count(*), count(_levada_deleted_at) FROM replica.{name}") == [(8, 8)], name
