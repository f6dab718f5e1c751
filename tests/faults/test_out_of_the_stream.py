"""Tables whose changes are not in the stream for a while, or not under their names: no row is wrong under Ready."""

from __future__ import annotations

from typing import LiteralString, cast

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn

ATTACH = "ALTER TABLE root ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
LEFT = "table_not_published"


def execute(db: Database, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    db.execute(*(cast("LiteralString", statement) for statement in statements))


def errors(engine: Engine) -> dict[str, str]:
    """Wait until each table has an error, or all that is committed now. Return the codes of the errors."""
    [(target,)] = engine.db.query("SELECT pg_current_wal_insert_lsn()::text")
    found = engine.wait_for(
        lambda p: all(
            t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in p["tables"]
        )
    )
    return {t["name"]: t["error"]["code"] for t in found["tables"] if t["error"]}


def wait_for_errors(engine: Engine, expected: dict[str, str]) -> None:
    """Wait until each of the tables has its error, and check that no other table has one."""
    engine.wait_for(lambda p: {t["name"] for t in p["tables"] if t["error"]} >= expected.keys())
    assert errors(engine) == expected


def repair(engine: Engine, *tables: str) -> None:
    """Copy the tables again."""
    engine.levada("resync", *engine.options(), *(f"public.{name}" for name in tables))
    engine.wait_caught_up()


def unlog(table: str, *, together: bool = False) -> list[str]:
    """Return the statements that change a table while it is unlogged."""
    statements = [
        f"ALTER TABLE {table} SET UNLOGGED",
        f"UPDATE {table} SET v = 'unlogged' WHERE id < 5",
        f"DELETE FROM {table} WHERE id = 6",
        f"ALTER TABLE {table} SET LOGGED",
        f"INSERT INTO {table} VALUES (100, 'logged')",
    ]
    return ["; ".join(["BEGIN", *statements, "COMMIT"])] if together else statements


@pytest.mark.parametrize("scope", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_tables_that_are_unlogged_for_a_while(engine: Engine, db: Database, scope: str) -> None:
    """No catalog row of such a publication shows afterwards that a table was left out. The event trigger does."""
    names = ("live", "together", "stopped", "quiet")
    for name in names:
        execute(
            db,
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 20) i",
        )
    execute(db, f"CREATE PUBLICATION every FOR {scope} WITH (publish_via_partition_root = true)")
    engine.spec["source"] = {
        "host": "127.0.0.1",
        "port": db.server.port,
        "database": db.name,
        "credentialsSecretRef": {"name": "pg"},
        "tls": {"mode": "Disable"},
        "slot": {"name": f"levada_{db.name}"},
        "publication": {"name": "every", "management": "External"},
    }
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    execute(db, *unlog("live"), *unlog("together", together=True), "INSERT INTO quiet VALUES (100, 'q')")
    wait_for_errors(engine, {"live": LEFT, "together": LEFT})
    assert engine.stop() == 0
    execute(db, *unlog("stopped"))
    engine.start()
    wait_for_errors(engine, {"live": LEFT, "together": LEFT, "stopped": LEFT})
    repair(engine, "live", "together", "stopped")
    engine.assert_equal(*names)
    engine.assert_verified(*names)


def test_tables_that_are_partitions_for_a_while(engine: Engine, db: Database) -> None:
    """A replicated table is parked or forgotten when it is attached, and copied again when it is a table again.

    Its root gets its rows while it is a partition, and loses them afterwards.
    """
    execute(
        db,
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "INSERT INTO root SELECT i, 'r' FROM generate_series(1, 20) i",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("long", "short", "stopped", "kept")),
        "CREATE TABLE sub (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE sub_1 PARTITION OF sub DEFAULT",
        "INSERT INTO sub VALUES (501, 's')",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    for place, name in enumerate(("long", "short", "sub", "kept"), 1):
        first = place * 1000
        steps = [ATTACH.format(name, first, first + 1000), f"INSERT INTO root VALUES ({first}, 'as root')"]
        if name == "sub":
            steps.insert(0, "DELETE FROM sub")
        if name in ("short", "sub"):
            steps += [f"ALTER TABLE root DETACH PARTITION {name}", f"INSERT INTO {name} VALUES ({first + 1}, 'own')"]
        execute(db, *steps)
    engine.wait_for(lambda p: not {"long", "kept"} & {t["name"] for t in p["tables"]})
    wait_for_errors(engine, {"short": LEFT, "sub": LEFT})
    engine.assert_equal("root")
    execute(db, "ALTER TABLE root DETACH PARTITION long", "INSERT INTO long VALUES (1001, 'own')")
    engine.wait_for(lambda p: any(t["name"] == "long" and t["phase"] == "Ready" for t in p["tables"]))
    errors(engine)
    engine.assert_equal("long")
    assert engine.stop() == 0
    execute(
        db,
        ATTACH.format("stopped", 7000, 8000),
        "INSERT INTO root VALUES (7000, 'as root')",
        "ALTER TABLE root DETACH PARTITION stopped",
        "INSERT INTO stopped VALUES (7001, 'own')",
    )
    engine.start()
    wait_for_errors(engine, {"short": LEFT, "sub": LEFT, "stopped": LEFT})
    engine.assert_equal("root")
    repair(engine, "short", "sub", "stopped")
    engine.assert_equal("root", "long", "short", "sub", "stopped")
    engine.assert_verified("root", "long", "short", "sub", "stopped")


def test_statements_that_hide_earlier_ones(engine: Engine, db: Database) -> None:
    """A widened root hides no truncated partition, and ALTER TYPE ... CASCADE changes a table of that type."""
    names = ("widened_live", "widened_stopped")
    for name in names:
        execute(
            db,
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int) PARTITION BY HASH (id)",
            f"CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
            f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 40) i",
        )
    execute(
        db,
        "CREATE TYPE row_of AS (id int, a text, b text)",
        "CREATE TABLE typed OF row_of (PRIMARY KEY (id))",
        "INSERT INTO typed SELECT i, 'a', 'old' FROM generate_series(1, 10) i",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    execute(
        db,
        "ALTER TYPE row_of DROP ATTRIBUTE b CASCADE",
        "ALTER TYPE row_of ADD ATTRIBUTE b text CASCADE",
        "INSERT INTO typed VALUES (11, 'a', 'new')",
        "UPDATE typed SET a = 'changed' WHERE id = 3",
    )
    wait = {}
    for name in names:
        if name == "widened_stopped":
            assert engine.stop() == 0
        execute(
            db,
            f"TRUNCATE {name}_0",
            f"ALTER TABLE {name} ALTER v TYPE bigint",
            f"INSERT INTO {name} VALUES (1000, 5000000000)",
        )
        if name == "widened_stopped":
            engine.start()
        wait[name] = "partition_changed"
        wait_for_errors(engine, wait)
    engine.assert_equal("typed")
    repair(engine, *names)
    engine.assert_equal("typed", *names)
    engine.assert_verified("typed", *names)
