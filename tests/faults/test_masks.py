"""Masked columns under kills and DDL: no value of them is on the disk in clear, and the lake has their masks."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString, cast

import pytest
from tests.rigs.clear_values import files_with
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.waiting import until
from tests.servers.ducklake import DuckLake

from levada.destinations import DestinationContext
from levada.local.postgres import temporary_postgres

KEY = "a key of sixteen bytes or more"
CLEAR, OPEN = "zzclearzz", "zzopenzz"
MASKS: dict[str, dict[str, Any]] = {
    "people": {
        "email": {"method": "HMAC"},
        "ssn": {"method": "Null"},
        "note": {"method": "Truncate", "length": 4},
        "card": {"method": "Last", "length": 4},
    },
    "accounts": {"email": {"method": "HMAC"}},
    "swapped": {"sec": {"method": "Null"}},
    "typo": {"sceret": {"method": "Null"}},
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DuckLake]:
    """A server of its own for the catalog."""
    with temporary_postgres() as server:
        yield DuckLake(Database(server, "postgres"), tmp_path / "lake", DestinationContext("shop", tmp_path / "unused"))


def hashed(text: str) -> str:
    """Return the mask of a text by HMAC."""
    return hmac.digest(KEY.encode(), text.encode(), hashlib.sha256).hex()


def table_sync(table: str) -> dict[str, Any]:
    """Return the TableSync of a table with its masks."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": table},
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"name": table}, "columns": {"mask": MASKS[table]}},
    }


def run(db: Database, *statements: str) -> None:
    """Run statements in one transaction."""
    with db.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(statement.encode())


def write(db: Database, number: int, ssn: str = "ssn") -> None:
    """Write rows whose masked values have `CLEAR`, in several transactions."""
    run(
        db,
        f"INSERT INTO people (id, email, {ssn}, note, card) SELECT n, 'm{number}@{CLEAR}', '{CLEAR}', 'abcd{CLEAR}',"
        f" '{CLEAR}1234' FROM generate_series({number * 100}, {number * 100 + 50}) n",
        f"INSERT INTO accounts VALUES ('a{number}@{CLEAR}', {number}), ('b{number}@{CLEAR}', {number})",
    )
    run(db, f"UPDATE people SET {ssn} = '{CLEAR}' || id, email = '{CLEAR}' || id WHERE id % 3 = 0")
    run(
        db,
        f"UPDATE accounts SET email = 'moved' || email WHERE email LIKE 'a{number}%'",
        "DELETE FROM people WHERE id % 7 = 0",
    )
    run(db, f"INSERT INTO control VALUES ({number}, '{OPEN}')")


def expected(db: Database, select: str) -> list[tuple[Any, ...]]:
    """Return the rows of the source."""
    return db.query(cast("LiteralString", select))


def search(engine: Engine, lake: DuckLake, db: Database) -> None:
    """Require that no file, no catalog and no table of the engine has a clear value."""
    assert files_with(engine.folder, CLEAR.encode()) == []
    for where, tables in ((db, "levada.documents"), (lake.db, "lake.ducklake_file_column_stats")):
        query = cast("LiteralString", f"SELECT count(*) FROM {tables} AS t WHERE strpos(t::text, '{CLEAR}') > 0")
        assert where.query(query) == [(0,)], tables


@pytest.mark.nightly
def test_no_clear_value_is_on_the_disk(engine: Engine, db: Database, lake: DuckLake) -> None:
    """After kills, renames, changes of types, and columns that are dropped and added again."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, ssn text NOT NULL, note varchar(60), card varchar(60))",
        "CREATE TABLE accounts (email text PRIMARY KEY, balance int)",
        "CREATE TABLE swapped (id int PRIMARY KEY, sec text, pub text)",
        "CREATE TABLE typo (id int PRIMARY KEY, secret text)",
        "CREATE TABLE control (id int PRIMARY KEY, v text)",
        "INSERT INTO swapped VALUES (1, 'zzclearzz', 'shown')",
        "INSERT INTO typo VALUES (1, 'zzclearzz')",
    )
    write(db, 1)
    engine.write_secret("lake", {"username": "postgres", "password": "unused"})
    engine.write_secret("masks", {"key": KEY})
    engine.spec["destination"] = {"ducklake": lake.settings(credentialsSecretRef={"name": "lake"})}
    engine.spec["tables"] = {
        "include": [{"schema": "public", "name": "*"}],
        "onUnstreamable": "Hold",
        "maskKeySecretRef": {"name": "masks", "key": "key"},
    }
    engine.write_manifest(*map(table_sync, MASKS))
    assert "masked_column_missing" in engine.levada("check", *engine.options(), check=False).stderr

    def wait(**codes: str) -> None:
        """Wait until the tables have these errors, and the other ones all changes."""
        [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
        wanted = {"typo": "masked_column_missing", **codes}

        def settled(table: dict[str, Any]) -> bool:
            error = table["error"]["code"] if table["error"] else None
            if table["name"] in wanted:
                return error == wanted[table["name"]]
            return table["phase"] == "Ready" and lsn(table["appliedLsn"]) >= lsn(target)

        engine.wait_for(lambda p: len(p["tables"]) == 5 and all(map(settled, p["tables"])))

    engine.start()
    wait()
    search(engine, lake, db)
    for number in range(2, 5):
        write(db, number)
        engine.kill()
        search(engine, lake, db)
        engine.start()
    wait()
    run(db, "ALTER TABLE people RENAME ssn TO social")
    run(db, f"INSERT INTO people (id, social) VALUES (9001, '{CLEAR}')")
    run(
        db,
        f"ALTER TABLE people DROP card, ADD card text DEFAULT '{CLEAR}9999'",
        "INSERT INTO people (id, social) VALUES (9002, 'x')",
    )
    run(db, "ALTER TABLE people ALTER note TYPE varchar(90)", f"UPDATE people SET note = 'wxyz{CLEAR}' WHERE id = 9002")
    wait()
    engine.kill()
    run(
        db,
        "ALTER TABLE swapped RENAME sec TO t",
        "ALTER TABLE swapped RENAME pub TO sec",
        "ALTER TABLE swapped RENAME t TO pub",
    )
    run(db, f"INSERT INTO swapped VALUES (2, '{CLEAR}', '{CLEAR}')")
    engine.start()
    wait(swapped="masked_column_renamed")
    search(engine, lake, db)
    engine.levada("resync", *engine.options(), "public.swapped")
    engine.levada("resync", *engine.options(), "public.people")
    write(db, 6, "social")
    wait()
    assert files_with(engine.folder, OPEN.encode()), "the search finds nothing at all"
    search(engine, lake, db)
    rows = lake.sql("SELECT id, email, social, note, card FROM shop_public.people ORDER BY id")
    assert rows == [
        (i, None if e is None else hashed(e), None, None if n is None else n[:4], None if c is None else c[-4:])
        for i, e, n, c in expected(db, "SELECT id, email, note, card FROM people ORDER BY id")
    ]
    keys = sorted(hashed(e) for (e,) in expected(db, "SELECT email FROM accounts"))
    assert [k for (k,) in lake.sql("SELECT email FROM shop_public.accounts ORDER BY email")] == keys
    assert lake.sql("SELECT id, sec, pub FROM shop_public.swapped ORDER BY id") == [(1, None, None), (2, None, None)]
    assert engine.stop() == 0
    assert CLEAR not in engine.log


@pytest.mark.nightly
def test_columns_with_comments_are_never_staged_in_clear(engine: Engine, db: Database, lake: DuckLake) -> None:
    """Columns and tables that are added with a comment while rows flow, also with a kill right after."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, ssn text, late text DEFAULT 'later')",
        "COMMENT ON COLUMN people.ssn IS 'levada:mask=null'",
        "INSERT INTO people VALUES (1, 'zzclearzz')",
    )
    engine.write_secret("lake", {"username": "postgres", "password": "unused"})
    engine.write_secret("masks", {"key": KEY})
    engine.spec["destination"] = {"ducklake": lake.settings(credentialsSecretRef={"name": "lake"})}
    key = {"name": "masks", "key": "key"}
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "*"}], "maskKeySecretRef": key}
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["tables"] and all(t["phase"] == "Ready" for t in p["tables"]))
    for number in range(4):
        table, column = f"more{number}", f"secret{number}"
        run(
            db,
            f"ALTER TABLE people ADD COLUMN {column} text DEFAULT '{CLEAR}'",
            f"COMMENT ON COLUMN people.{column} IS 'levada:mask=hmac'",
            f"INSERT INTO people (id, ssn, {column}) VALUES ({number + 2}, '{CLEAR}', '{CLEAR}')",
            f"CREATE TABLE {table} (id int PRIMARY KEY, sec text)",
            f"COMMENT ON COLUMN {table}.sec IS 'levada:mask=hmac'",
            f"INSERT INTO {table} VALUES (1, '{CLEAR}')",
        )
        run(db, f"UPDATE people SET {column} = '{CLEAR}' || id", f"INSERT INTO {table} VALUES (2, '{CLEAR}')")
        if number % 2:
            engine.kill()
            engine.start()
    engine.wait_for(lambda p: len(p["tables"]) == 5 and all(t["phase"] == "Ready" for t in p["tables"]))
    engine.wait_caught_up()
    search(engine, lake, db)
    shown = lake.sql("SELECT id, ssn, secret0, secret3 FROM shop_public.people ORDER BY id")
    # The first column was updated before the third row, which has its default.
    first = [hashed(f"{CLEAR}{number}" if number < 3 else CLEAR) for number in range(1, 6)]
    assert shown == [(n, None, mask, hashed(f"{CLEAR}{n}")) for n, mask in enumerate(first, 1)]
    for number in range(4):
        more = lake.sql(f"SELECT id, sec FROM shop_public.more{number} ORDER BY id")
        assert more == [(1, hashed(CLEAR)), (2, hashed(CLEAR))]
    run(db, "COMMENT ON COLUMN people.late IS 'levada:mask=last:2'")
    until(lambda: lake.sql("SELECT DISTINCT late FROM shop_public.people") == [("er",)])
