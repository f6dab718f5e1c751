"""PostgreSQL as a destination under ``levada run``: traffic, kills, and DDL, then equal row by row."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from tests.rigs import shop
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.manifests import table_sync
from tests.rigs.replica_server import differences, server, target, write_manifest

__all__ = ["server", "target"]


@pytest.mark.parametrize("ordering", ["Table", "Pipeline"])
def test_traffic_kills_and_columns(engine: Engine, db: Database, target: Database, ordering: str) -> None:
    """After traffic, several kill -9 and an ADD COLUMN, every table has the same rows on both servers."""
    shop.create(db, 60_000)
    write_manifest(engine, target, ordering=ordering)
    with shop.Writers(db):
        engine.start()
        engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]))
        for turn in range(3):
            engine.kill()
            engine.start()
            engine.wait_for(lambda p: p["ready"])
            if turn == 1:
                db.execute(
                    "ALTER TABLE orders ADD COLUMN channel text DEFAULT 'web'",
                    "ALTER TABLE products RENAME COLUMN weight TO mass",
                    "ALTER TABLE payments ALTER COLUMN id TYPE bigint",
                )
            engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]))
    engine.wait_caught_up()
    assert differences(db, target, *shop.TABLES) == []
    assert engine.stop() == 0


def by_name(progress: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the progress of a table, empty if it has none."""
    return next((t for t in progress["tables"] if t["name"] == name), {})


def is_ready(progress: dict[str, Any], name: str) -> bool:
    """Return True if the table streams."""
    return bool(by_name(progress, name).get("phase") == "Ready")


@pytest.mark.parametrize("way", ["keep both", "replace"])
def test_a_table_swapped_by_rename(engine: Engine, db: Database, target: Database, way: str) -> None:
    """The former table is not selected any more. Both ways of the hint work as they are written."""
    db.execute("CREATE TABLE t2 (id int PRIMARY KEY)", "INSERT INTO t2 VALUES (1), (2)")
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "t2"}]}
    write_manifest(engine, target)
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    db.execute(
        "BEGIN; ALTER TABLE t2 RENAME TO t2_old; CREATE TABLE t2 (id int PRIMARY KEY);"
        " INSERT INTO t2 VALUES (3), (4); COMMIT"
    )
    [(old, new)] = db.query("SELECT 't2_old'::regclass::oid::int, 't2'::regclass::oid::int")
    engine.stop()
    engine.start()
    parked = engine.wait_for(lambda p: (by_name(p, "t2").get("error") or {}).get("code") == "destination_collision")
    error = by_name(parked, "t2")["error"]
    assert error["reason"] == (
        f"public.t2 at the destination has the rows of public.t2 (OID {old}), which is called public.t2_old now, and"
        f" not those of the table with OID {new}"
    )
    assert error["solution"] == (
        "set destinationTable in a TableSync of public.t2. Or, if public.t2_old is not needed any more, drop it at the"
        " source. Then: levada retry MANIFEST public.t2"
    )
    verified = engine.levada("verify", *engine.options(), "--table", "public.t2", check=False)
    assert "which is called public.t2_old now" in " ".join((verified.stdout + verified.stderr).split())
    assert "no longer has" not in verified.stdout + verified.stderr
    if way == "replace":
        db.execute("DROP TABLE t2_old")
    else:
        write_manifest(engine, target, table_sync("t2", destinationTable="t2_new"))
    engine.levada("retry", *engine.options(), "public.t2")
    engine.wait_for(lambda p: is_ready(p, "t2"))
    place = "t2" if way == "replace" else "t2_new"
    assert target.query(f"SELECT id FROM public.{place} ORDER BY id") == [(3,), (4,)]


TYPES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("-32768", "32767"),
    "integer": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "real": ("-0", "1e-45", "3.4028235e38", "NaN", "-Infinity", "0.1"),
    "double precision": ("-0", "5e-324", "1.7976931348623157e308", "NaN", "Infinity", "0.1"),
    "numeric(38,10)": ("0.0000000001", "-9999999999999999999999999999.9999999999", "0"),
    "numeric(5,-2)": ("1234500", "-100"),
    "numeric": ("NaN", "Infinity", "1.00", "1e100", "-0.00001", "1" * 300),
    "numeric(60,5)": ("1.5", "9" * 55),
    "text": ("", "\\N", "\\", "\\.", "a\tb\nc\rd", "\\t", "é€😀", '"q"', "NULL", "x" * 100_000, "\x01\x7f", " a "),
    "varchar(5)": ("", "a b", "     "),
    "char(5)": ("", "a", "abcde"),
    "name": ("n", ""),
    '"char"': ("a", ""),
    "bytea": ("", "\\x00", "\\xff5c0a09", "\\x5c78"),
    "date": ("0044-03-15 BC", "4713-01-01 BC", "9999-12-31", "10000-01-01", "5874897-12-31", "1970-01-01"),
    "time": ("00:00:00", "23:59:59.999999"),
    "time(0)": ("12:00:01",),
    "timestamp": (
        "0044-03-15 12:00:00.000001 BC",
        "9999-12-31 23:59:59.999999",
        "10000-01-01",
        "1969-12-31 23:59:59.5",
    ),
    "timestamp(3)": ("2020-01-01 00:00:00.123",),
    "timestamptz": (
        "0044-03-15 12:00:00+00 BC",
        "0001-01-01 00:00:00+00",
        "10000-01-01 01:00:00.5+00",
        "2020-01-01+05:30",
    ),
    "timetz": ("12:00:00.5+05:30", "24:00:00-12"),
    "interval": ("-1 mon +2 days -03:00:00.5", "178000000 years", "00:00:00"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "json": ('{"a":  1, "a": 2}', "null", '"\\u00e9\\\\"', '"a\tb"'.replace("\t", "\\t")),
    "jsonb": ('{"b": 1.0, "a": [null]}', "null", '"\\n"'),
    "inet": ("::1", "10.0.0.1/8"),
    "cidr": ("10.0.0.0/8",),
    "macaddr": ("08:00:2b:01:02:03",),
    "bit(4)": ("0101",),
    "varbit": ("", "1"),
    "point": ("(0.1,-1e300)",),
    "box": ("(1,1),(0,0)",),
    "polygon": ("((0,0),(1,1),(1,0))",),
    "pg_lsn": ("0/16B3748",),
    "tsvector": ("'a':1A 'it''s':2", ""),
    "tsquery": ("'a' & 'b'",),
    "jsonpath": ('$."a"',),
    "int4range": ("[1,5)", "empty", "(,)"),
    "tstzrange": ('["2020-01-01 00:00:00+00",)', "empty"),
    "nummultirange": ("{[1.0,2.00),[3,4)}", "{}"),
    "money": ("12.34",),
    "regclass": ("pg_class",),
    "mood": ("sad", "it's ok"),
    "pair": ('(1,"a ""b"", c")', "(,)"),
    "positive": ("5",),
    "hstore_like": ("x",),
    "integer[]": ("{}", "{1,NULL,-3}"),
    "text[]": ("{}", '{"",NULL,"NULL","a\\"b","c\\\\d","{e}","f,g"," h ","i\\tj"}', '{"tab\there","new\nline"}'),
    "bytea[]": ('{"\\\\x00ff",NULL}',),
    "boolean[]": ("{t,f,NULL}",),
    "double precision[]": ("{NaN,-Infinity,0.1,-0}",),
    "numeric(10,2)[]": ("{1.50,-0.01}",),
    "numeric[]": ("{1.50,NaN}",),
    "date[]": ('{"0044-03-15 BC",2020-01-01}',),
    "timestamptz[]": ('{"2020-01-01 00:00:00+00","0044-03-15 12:00:00.5+00 BC"}',),
    "uuid[]": ("{00000000-0000-0000-0000-000000000000}",),
    "jsonb[]": ('{"{\\"a\\": 1}",NULL}',),
    "inet[]": ("{::1,10.0.0.1}",),
    "box[]": ("{(1,1),(0,0);(2,2),(1,1)}",),
    "mood[]": ("{sad,NULL}",),
    "positive[]": ("{1,2}",),
    "interval[]": ('{"1 day","-00:00:01"}',),
}
"""Values of each type, as PostgreSQL reads them."""

INFINITE: dict[str, tuple[str, ...]] = {
    "date": ("infinity", "-infinity"),
    "timestamp": ("infinity", "-infinity", "2020-01-01"),
    "timestamptz": ("infinity", "2020-01-01+00"),
    "time": ("24:00:00",),
    "numeric(10,2)": ("NaN", "1.50"),
    "integer[]": ("{{1,2},{3,NULL}}", "[0:1]={5,6}"),
    "text[]": ('{{"a b",NULL}}',),
}

_PRELUDE: tuple[LiteralString, ...] = (
    "CREATE TYPE mood AS ENUM ('sad', 'it''s ok')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN hstore_like AS text",
)


def _create(connection: psycopg.Connection[Any], table: str, values: dict[str, tuple[str, ...]]) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(t), sql.SQL(t))
        for t in values  # type: ignore[arg-type]
    )
    connection.execute(sql.SQL("CREATE TABLE {} (id serial PRIMARY KEY, {})").format(sql.Identifier(table), columns))


def _insert(connection: psycopg.Connection[Any], table: str, values: dict[str, tuple[str, ...]]) -> None:
    for i in range(max(map(len, values.values())) + 1):
        row = [v[i] if i < len(v) else None for v in values.values()]
        marks = sql.SQL(", ").join(
            sql.SQL("%s::text::{}").format(sql.SQL(t))
            for t in values  # type: ignore[arg-type]
        )
        names = sql.SQL(", ").join(map(sql.Identifier, values))
        connection.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.Identifier(table), names, marks), row)


@pytest.mark.parametrize("policy", ["Error", "Text"])
def test_every_type_is_equal_after_copy_and_stream(engine: Engine, db: Database, target: Database, policy: str) -> None:
    """Each type has the same text on both servers, copied, streamed and updated. Text also keeps infinities."""
    db.execute(*_PRELUDE)
    values = TYPES if policy == "Error" else {**TYPES, **INFINITE}
    with db.connect() as connection:
        _create(connection, "every", values)
        _insert(connection, "every", values)
        engine.spec["onUnrepresentable"] = policy
        write_manifest(engine, target)
        engine.start()
        engine.wait_caught_up()
        assert differences(db, target, "every") == []
        _insert(connection, "every", values)
        connection.execute("UPDATE every SET integer = 7 WHERE id % 2 = 0")
        connection.execute("ALTER TABLE every REPLICA IDENTITY FULL")
        connection.execute("UPDATE every SET id = id + 1000 WHERE id % 5 = 0")
        engine.wait_caught_up()
    assert differences(db, target, "every") == []
    types = dict(
        target.query(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'public.every'::regclass AND attnum > 0"
        )
    )
    assert types["timestamp(3)"] == "timestamp(3) without time zone"
    assert types["tstzrange"] == "tstzrange"
    assert types["mood"] == types["money"] == types["regclass"] == "text"
    assert types["positive"] == "integer"
    assert engine.stop() == 0


def test_the_destination_restarts_and_tables_are_copied_again(engine: Engine, db: Database, target: Database) -> None:
    """A crash of the destination's server under traffic, then a resync with a view in use, leave equal tables."""
    shop.create(db, 30_000)
    write_manifest(engine, target)
    engine.start()
    engine.wait_caught_up()
    # The server has synchronous_commit off. Levada's transactions set it, and this test writes a checkpoint.
    target.execute("CREATE VIEW spending AS SELECT customer_id, total FROM orders", "CHECKPOINT")
    [(relation,)] = target.query("SELECT 'orders'::regclass::oid")
    with shop.Writers(db):
        target.server.stop("immediate")
        engine.wait_for(lambda p: any(t["phase"] == "Errored" for t in p["tables"]))
        target.server.start()
        engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]))
        engine.levada("resync", str(engine.manifest), "--secrets", str(engine.folder / "secrets"), "--all")
        engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]))
    engine.wait_caught_up()
    assert differences(db, target, *shop.TABLES) == []
    assert target.query("SELECT 'orders'::regclass::oid") == [(relation,)]
    assert target.query("SELECT count(*) FROM spending") == db.query("SELECT count(*) FROM orders")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        target.execute("DELETE FROM orders")
    assert engine.stop() == 0
