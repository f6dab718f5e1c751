"""Excluded columns that are renamed. Their values never reach the lake, and no value of another column is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString, cast

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.equality import lake_table

SWAP = ("ALTER TABLE {} RENAME sec TO t", "ALTER TABLE {} RENAME pub TO sec", "ALTER TABLE {} RENAME t TO pub")
RENAMED: dict[str, tuple[tuple[str, ...], ...]] = {
    "renamed": (("ALTER TABLE {} RENAME sec TO sec2",), ("UPDATE {} SET pub = 'x' WHERE id = 1",)),
    "exchanged": (SWAP, ("UPDATE {} SET sec = 'x' WHERE id = 1",)),
    "exchanged_back": (
        (
            *("ALTER TABLE {} RENAME pub TO t", "ALTER TABLE {} RENAME sec TO pub2", "ALTER TABLE {} RENAME t TO sec"),
            "UPDATE {} SET sec = 'new' WHERE id = 1",
            *("ALTER TABLE {} RENAME sec TO pub", "ALTER TABLE {} RENAME pub2 TO sec"),
        ),
    ),
    "replaced": (("ALTER TABLE {} DROP sec", "ALTER TABLE {} RENAME pub TO sec", "INSERT INTO {} VALUES (3, 'p3')"),),
}
"""Transactions after which the excluded names are those of other columns, or were while a row was written."""
ANNOUNCED: dict[str, tuple[tuple[str, ...], ...]] = {
    "idle": (("ALTER TABLE {} RENAME sec TO sec2",),),
    "undone": (
        (
            "ALTER TABLE {} RENAME sec TO away",
            "INSERT INTO {} VALUES (3, 'secret', 'p3')",
            "ALTER TABLE {} RENAME away TO sec",
        ),
    ),
}
"""Transactions that only an announcement shows, and without which no row is misread."""
CONTINUED: dict[str, tuple[tuple[str, ...], ...]] = {
    "dropped": (("ALTER TABLE {} DROP sec",), ("INSERT INTO {} VALUES (3, 'p3')",)),
    "added_again": (("ALTER TABLE {} DROP sec",), ("ALTER TABLE {} ADD sec text DEFAULT 'secret'", "DELETE FROM {}")),
    "both_names": (("ALTER TABLE {} RENAME sec TO sec2",), ("INSERT INTO {} VALUES (3, 'secret', 'p3')",)),
}
"""Transactions that leave the excluded columns excluded."""
TABLES = {**RENAMED, **ANNOUNCED, **CONTINUED}


def table_sync(table: str, *excluded: str) -> dict[str, Any]:
    """Return the TableSync of a table with excluded columns."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": table.replace("_", "-")},
        "spec": {
            "pipelineRef": {"name": "shop"},
            "table": {"name": table},
            "columns": {"exclude": list(excluded)},
        },
    }


def wait_settled(engine: Engine, db: Database, *, settled: Callable[[dict[str, Any]], bool]) -> dict[str, str]:
    """Wait until each table has an error or all changes, and is settled. Return the codes of those with an error."""
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    found = engine.wait_for(
        lambda p: (
            len(p["tables"]) == len(TABLES)
            and all(t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in p["tables"])
            and all(map(settled, p["tables"]))
        )
    )
    return {t["name"]: t["error"]["code"] for t in found["tables"] if t["error"]}


def lake(engine: Engine, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table in the lake, in the order of their ids. None has a value of the excluded column."""
    rows = lake_table(engine.warehouse, "shop_public", table).to_pylist()
    assert not [row for row in rows if "secret" in row.values()], table
    return sorted(rows, key=lambda row: row["id"])


def source(db: Database, table: str, *columns: str) -> list[dict[str, Any]]:
    """Return these columns of the rows at the source."""
    query = cast("LiteralString", f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")
    return [dict(zip(columns, row, strict=True)) for row in db.query(query)]


@pytest.mark.parametrize("triggers", [True, False], ids=["announced", "read from the catalog"])
def test_excluded_values_never_reach_the_lake(engine: Engine, db: Database, triggers: bool) -> None:
    """A table whose excluded column has another name is parked, also by a copy, until its TableSync has that name."""
    for name in TABLES:
        statements = f"CREATE TABLE {name} (id int PRIMARY KEY, sec text, pub text)"
        rows = f"INSERT INTO {name} VALUES (1, 'secret', 'p1'), (2, 'secret', 'p2')"
        db.execute(cast("LiteralString", statements), cast("LiteralString", rows))
    syncs = {name: table_sync(name, "sec") for name in TABLES}
    syncs["both_names"] = table_sync("both_names", "sec", "sec2")
    engine.write_manifest(*syncs.values())
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    if not triggers:
        db.execute("DROP EVENT TRIGGER levada_ddl CASCADE")
    for name, transactions in TABLES.items():
        for statements in transactions:
            with db.connect() as connection, connection.transaction():
                for statement in statements:
                    connection.execute(statement.format(name).encode())
    engine.start()
    parked = wait_settled(engine, db, settled=lambda t: True)
    expected = {**RENAMED, **ANNOUNCED} if triggers else RENAMED
    assert parked == dict.fromkeys(expected, "excluded_column_renamed")
    for name in RENAMED:
        assert [row["id"] for row in lake(engine, name)] == [1, 2]
    for name in TABLES.keys() - expected.keys() - {"idle"}:
        assert lake(engine, name) == source(db, name, "id", "pub")
    assert all("sec2" not in row for row in lake(engine, "idle"))
    assert "excluded_column_missing" in engine.levada("check", *engine.options(), check=False).stderr

    for name in ("renamed", "exchanged", "idle"):
        engine.levada("resync", *engine.options(), f"public.{name}")
    for name in ("renamed", "exchanged", "idle"):
        engine.wait_log(f"public.{name} is parked: " if name in parked else f"public.{name}: the resync failed, ")
    for name in ("renamed", "exchanged", "idle"):
        assert [row["id"] for row in lake(engine, name)] == [1, 2]
    assert engine.stop() == 0

    syncs["renamed"] = table_sync("renamed", "sec", "sec2")
    syncs["idle"] = table_sync("idle", "sec2")
    syncs["exchanged"] = table_sync("exchanged", "pub")
    engine.write_manifest(*syncs.values())
    engine.start()
    for name in parked.keys() - {"renamed", "idle", "exchanged"}:
        engine.levada("resync", *engine.options(), f"public.{name}")
    assert wait_settled(engine, db, settled=lambda t: t["error"] is None) == {}
    for name in TABLES.keys() - {"exchanged", "replaced"}:
        assert lake(engine, name) == source(db, name, "id", "pub")
    assert lake(engine, "exchanged") == source(db, "exchanged", "id", "sec")
    assert lake(engine, "replaced") == source(db, "replaced", "id")
    assert engine.stop() == 0
