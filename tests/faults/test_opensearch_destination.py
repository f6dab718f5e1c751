"""OpenSearch as a destination under ``levada run``: traffic, kills, and DDL, then equal row by row."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import sql
from tests.faults.documents import documents
from tests.rigs import shop
from tests.rigs.database import Database
from tests.rigs.engine import Engine

_PRINTED = {
    "boolean": "to_jsonb({c})",
    "smallint": "to_jsonb({c})",
    "integer": "to_jsonb({c})",
    "bigint": "to_jsonb({c})",
    "integer[]": "to_jsonb({c})",
    "text[]": "to_jsonb({c})",
    "jsonb": "{c}",
    "real": "to_jsonb({c}::float8)",
    "double precision": "to_jsonb({c})",
    "bytea": "to_jsonb(replace(encode({c}, 'base64'), E'\\n', ''))",
    "time without time zone": "to_jsonb(to_char(date '2000-01-01' + {c}, 'HH24:MI:SS.US'))",
    "timestamp without time zone": "to_jsonb(to_char({c}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US'))",
    "timestamp with time zone": "to_jsonb(to_char({c} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'))",
}
"""PostgreSQL's own JSON of a type in the form of the documents. Other types are text."""


def source_rows(db: Database, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table as PostgreSQL prints them."""
    with db.connect() as connection:
        columns = connection.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass"
            " AND attnum > 0 AND NOT attisdropped",
            [f'public."{table}"'],
        ).fetchall()
        pairs = [
            sql.SQL("{}, {}").format(
                sql.Literal(name), sql.SQL(_PRINTED.get(kind, "to_jsonb({c}::text)")).format(c=sql.Identifier(name))
            )
            for name, kind in columns
        ]
        query = sql.SQL("SELECT jsonb_build_object({}) FROM {}").format(
            sql.SQL(", ").join(pairs), sql.Identifier("public", table)
        )
        return [row for (row,) in connection.execute(query)]


def differences(db: Database, url: str, prefix: str) -> list[str]:
    """Return the tables whose rows are not the same on both sides."""
    wrong = []
    for table in shop.TABLES:
        expected = _sorted(source_rows(db, table))
        assert len(expected) > 1, f"{table} is empty, which shows nothing"
        if _sorted(documents(url, f"{prefix}public.{table}"), expected[0]) != expected:
            wrong.append(table)
    return wrong


def _sorted(rows: list[dict[str, Any]], like: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    # A column that was added without a default is missing from older documents.
    full = rows if like is None else [dict.fromkeys(like) | row for row in rows]
    return sorted(full, key=lambda r: repr(sorted(r.items())))


@pytest.mark.parametrize("turns", [3])
def test_traffic_kills_and_columns(engine: Engine, db: Database, opensearch: str, turns: int) -> None:
    """After traffic, several kill -9 and changes of columns, every table has the same rows on both sides."""
    prefix = f"{db.name}-"
    shop.create(db, 60_000)
    engine.spec["destination"] = {"opensearch": {"urls": [opensearch], "prefix": prefix, "replicas": 0}}
    engine.write_manifest()
    with shop.Writers(db):
        engine.start()
        engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]))
        for turn in range(turns):
            engine.kill()
            engine.start()
            engine.wait_for(lambda p: p["ready"])
            if turn == 1:
                db.execute(
                    "ALTER TABLE orders ADD COLUMN channel text DEFAULT 'web'",
                    "ALTER TABLE products ADD COLUMN colour text",
                    "ALTER TABLE customers RENAME COLUMN email TO mail",
                    "ALTER TABLE payments ALTER COLUMN id TYPE bigint",
                )
            engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]))
    engine.wait_caught_up()
    assert differences(db, opensearch, prefix) == []
    assert engine.stop() == 0


VALUES: dict[str, tuple[tuple[str, Any], ...]] = {
    "boolean": (("true", True), ("false", False)),
    "smallint": (("-32768", -32768),),
    "integer": (("2147483647", 2147483647),),
    "bigint": (("-9223372036854775808", -9223372036854775808), ("9223372036854775807", 9223372036854775807)),
    "oid": (("4294967295", 4294967295),),
    "real": (
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("0.1", 0.10000000149011612),
        ("1e-45", 1.401298464324817e-45),
    ),
    "double precision": (("NaN", "NaN"), ("Infinity", "Infinity"), ("5e-324", 5e-324), ("0.1", 0.1), ("1e300", 1e300)),
    "numeric(38,10)": (
        ("0.0000000001", "0.0000000001"),
        ("-9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999"),
        ("0", "0.0000000000"),
    ),
    "numeric(5,-2)": (("1234500", "1234500"),),
    "numeric": (("NaN", "NaN"), ("Infinity", "Infinity"), ("1.00", "1.00"), ("1" * 300, "1" * 300)),
    "text": tuple((t, t) for t in ("", "\\N", '"q"\\', "a\tb\nc\rd\x01\x7f", "é€😀", "NULL", "x" * 100_000, " a ")),
    "varchar(5)": (("a b", "a b"),),
    "char(5)": (("a", "a    "),),
    "bytea": (("", ""), ("\\x00", "AA=="), ("\\xff5c0a09", "/1wKCQ==")),
    "date": (
        ("0044-03-15 BC", "-0043-03-15"),
        ("0001-12-31 BC", "0000-12-31"),
        ("9999-12-31", "9999-12-31"),
        ("10000-01-01", "10000-01-01"),
        ("5874897-12-31", "5874897-12-31"),
    ),
    "time": (("23:59:59.999999", "23:59:59.999999"), ("00:00:00", "00:00:00.000000")),
    "timestamp": (
        ("0044-03-15 12:00:00.000001 BC", "-0043-03-15T12:00:00.000001"),
        ("250000-12-31 23:59:59.999999", "250000-12-31T23:59:59.999999"),
        ("1969-12-31 23:59:59.5", "1969-12-31T23:59:59.500000"),
    ),
    "timestamptz": (
        ("0001-01-01 00:00:00+00", "0001-01-01T00:00:00.000000Z"),
        ("2020-01-01 00:00:00+05:30", "2019-12-31T18:30:00.000000Z"),
    ),
    "uuid": (("ffffffff-ffff-ffff-ffff-ffffffffffff", "ffffffff-ffff-ffff-ffff-ffffffffffff"),),
    "json": (('{"a":  1, "a": 2}', '{"a":  1, "a": 2}'), ("null", "null")),
    "jsonb": (('{"b": [null, "\\n"], "a": {"c": 1}}', {"a": {"c": 1}, "b": [None, "\n"]}), ("3", 3), ('"x"', "x")),
    "inet": (("10.0.0.1/8", "10.0.0.1/8"),),
    "interval": (("1 day 02:00:00", "1 day 02:00:00"),),
    "int4range": (("[1,5)", "[1,5)"),),
    "integer[]": (("{1,NULL,3}", [1, None, 3]), ("{}", [])),
    "text[]": (('{"a \\"q\\"",NULL,"","b,c"}', ['a "q"', None, "", "b,c"]),),
    "bytea[]": (('{"\\\\x00",NULL}', ["AA==", None]),),
    "double precision[]": (("{NaN,1.5,-Infinity}", ["NaN", 1.5, "-Infinity"]),),
    "timestamptz[]": (("{2020-01-01 00:00:00+00}", ["2020-01-01T00:00:00.000000Z"]),),
    "numeric(10,2)[]": (("{1.5,-0.01}", ["1.50", "-0.01"]),),
    "jsonb[]": (('{"{\\"a\\": 1}",NULL,"[2]"}', [{"a": 1}, None, [2]]),),
    "boolean[]": (("{t,f,NULL}", [True, False, None]),),
    "date[]": (("{0044-03-15 BC,2020-01-01}", ["-0043-03-15", "2020-01-01"]),),
}
"""Values of each type as PostgreSQL reads them, and as documents have them."""


def test_every_type_copied_and_streamed(engine: Engine, db: Database, opensearch: str) -> None:
    """Each value is the same in a copied and in a streamed document, after an update too, and NULL is null."""
    prefix, names = f"{db.name}-", {kind: f"c{n}" for n, kind in enumerate(VALUES)}
    columns = ", ".join(f"{name} {kind}" for kind, name in names.items())
    with db.connect() as connection:
        connection.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, {columns})")  # type: ignore[call-overload] # constants
        _insert(connection, names, 0)
    engine.spec["destination"] = {"opensearch": {"urls": [opensearch], "prefix": prefix, "replicas": 0}}
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]))
    with db.connect() as connection:
        _insert(connection, names, 1000)
        connection.execute("UPDATE kinds SET c0 = c0 WHERE id % 2 = 1")
    engine.wait_caught_up()
    found = {d["id"]: d for d in documents(opensearch, f"{prefix}public.kinds")}
    rows = max(map(len, VALUES.values())) + 1
    assert sorted(found) == [*range(rows), *range(1000, 1000 + rows)]
    for start in (0, 1000):
        for kind, name in names.items():
            expected = [v for _, v in VALUES[kind]] + [None] * (rows - len(VALUES[kind]))
            assert [found[start + i][name] for i in range(rows)] == expected, (kind, start)
    assert engine.stop() == 0


def _insert(connection: Any, names: dict[str, str], start: int) -> None:
    rows = max(map(len, VALUES.values())) + 1
    places = ", ".join(f"%s::text::{kind}" for kind in names)
    for i in range(rows):
        values = [VALUES[kind][i][0] if i < len(VALUES[kind]) else None for kind in names]
        connection.execute(f"INSERT INTO kinds VALUES ({start + i}, {places})", values)
