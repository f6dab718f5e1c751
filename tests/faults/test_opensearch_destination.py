"""OpenSearch as a destination under ``levada run``: traffic, kills, and DDL, then equal row by row."""

from __future__ import annotations

from typing import Any

import pytest
from opensearchpy import OpenSearch
from opensearchpy.helpers import scan
from psycopg import sql
from tests.conftest import Database
from tests.scenarios import shop
from tests.scenarios.engine import Engine

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


def documents(url: str, alias: str) -> list[dict[str, Any]]:
    """Return all documents behind an alias, as OpenSearch's client reads them."""
    client = OpenSearch([url], timeout=60)
    client.indices.refresh(index=alias)
    found = [d["_source"] for d in scan(client, index=alias, size=5000)]
    client.close()
    return found


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
