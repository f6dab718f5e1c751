"""The rows of a partition by its bounds are the rows that PostgreSQL keeps in it."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests.rigs.database import Database

from levada.destinations.postgres.region import condition
from levada.destinations.regions import is_in
from levada.postgres.catalog import read_table_descriptions
from levada.postgres.description import TableDescription
from levada.runtime.tables.kept_regions import lost_region
from levada.schema.partitions import Region
from levada.values import QualifiedTable

_DAYS = "'2026-01-01'::timestamptz + random() * interval '40 days'"
_SCHEMES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ranges": (
        "k int",
        "RANGE (k)",
        ("FROM (MINVALUE) TO (-5)", "FROM (-5) TO (0)", "FROM (10) TO (MAXVALUE)", "DEFAULT"),
    ),
    "pairs": (
        'k int, "l%" bigint',
        'RANGE (k, "l%")',
        (
            "FROM (-9, MINVALUE) TO (-3, 3)",
            "FROM (-3, 3) TO (0, MAXVALUE)",
            "FROM (1, MINVALUE) TO (1, MAXVALUE)",
            "FROM (2, 5) TO (9, 2)",
            "DEFAULT",
        ),
    ),
    "days": (
        "k int, l date",
        "RANGE (k, l)",
        ("FROM (1, '2026-01-01') TO (1, '2026-01-04')", "FROM (1, '2026-01-04') TO (1, '2026-02-01')", "DEFAULT"),
    ),
    "lists": ("k text", "LIST (k)", ("IN ('a, ''b''')", "IN ('c', NULL)", "IN ('')", "DEFAULT")),
    "booleans": ("k bool", "LIST (k)", ("IN (true)", "IN (false, NULL)")),
    "enums": ("k mood", "LIST (k)", ("IN ('good')", "IN ('bad')", "DEFAULT")),
    "texts": ('k text COLLATE "C"', "RANGE (k)", ("FROM ('B') TO ('a')", "FROM ('a') TO ('é')", "DEFAULT")),
    "ids": ("k uuid", "RANGE (k)", ("FROM ('40000000-0000-0000-0000-000000000000') TO (MAXVALUE)", "DEFAULT")),
    "times": ("k timestamptz", "RANGE (k)", ("FROM ('2026-01-05 03:00+02') TO ('2026-01-20')", "DEFAULT")),
}
_VALUES = {
    "int": "(random() * 24 - 12)::int",
    "bigint": "(random() * 9)::int",
    "date": "'2026-01-01'::date + (random() * 9)::int",
    "text": "(ARRAY['a, ''b''', 'c', '', 'B', 'a', 'b', 'Z', 'é', 'ü', 'zz', NULL])[floor(random() * 12) + 1]",
    "bool": "random() < 0.5",
    "mood": "(ARRAY['good', 'bad', 'fair', NULL])[floor(random() * 4) + 1]::mood",
    "uuid": "gen_random_uuid()",
    "timestamptz": _DAYS,
}
_INEXACT = {
    "hash": ("k int", "HASH (k)", "WITH (MODULUS 2, REMAINDER 1)"),
    "expression": ("k int", "RANGE ((k + 1))", "FROM (1) TO (9)"),
    "language": ('k text COLLATE "default"', "RANGE (k)", "FROM ('a') TO ('b')"),
    "endless": ("k date", "RANGE (k)", "FROM ('2026-01-01') TO (MAXVALUE)"),
    "infinity": ("k date", "RANGE (k)", "FROM ('-infinity') TO ('2026-01-01')"),
    "listed": ("k date", "LIST (k)", "IN ('infinity')"),
    "nulls": ("k date", "LIST (k)", "IN (NULL, '2026-01-01')"),
    "before": ("k date", "RANGE (k)", "FROM ('0044-03-15 BC') TO ('2026-01-01')"),
    "late": ("k timestamptz", "RANGE (k)", "FROM ('2026-01-01') TO ('294270-01-01')"),
    "later": ("k int, l date", "RANGE (k, l)", "FROM (1, '2026-01-01') TO (2, '2026-01-01')"),
    "disguised": ('k text COLLATE public."C"', "RANGE (k)", "FROM ('a') TO ('b')"),
    "numbers": ("k numeric", "RANGE (k)", "FROM (1) TO (2)"),
    "padded": ("k char(5)", "LIST (k)", "IN ('a')"),
}


def _described(connection: psycopg.Connection[Any], name: str) -> TableDescription:
    table = QualifiedTable("public", name)
    return read_table_descriptions(connection, [table])[table]


def _region(db: Database, name: str, leaf: str) -> Region | None:
    with db.connect(options="-c timezone=UTC") as connection:
        described = _described(connection, name)
        (row,) = connection.execute("SELECT %s::regclass::oid", [leaf]).fetchall()
    return lost_region(described.storage, [row[0]], described.schema())


@pytest.mark.parametrize("name", _SCHEMES)
def test_regions_are_partitions(db: Database, name: str) -> None:
    """Each row is in the region of its own partition, and in no other one, in Arrow and in SQL."""
    columns, key, bounds = _SCHEMES[name]
    kinds = [c.split()[1] for c in columns.split(", ")]
    values = ", ".join(_VALUES[kind] for kind in kinds)
    with db.connect(options="-c timezone=UTC") as c:
        c.execute("CREATE TYPE mood AS ENUM ('good', 'fair', 'bad')")
        c.execute(f"CREATE TABLE {name} ({columns}) PARTITION BY {key}")  # type: ignore[arg-type]
        for i, bound in enumerate(bounds):
            how = bound if bound == "DEFAULT" else f"FOR VALUES {bound}"
            c.execute(f"CREATE TABLE {name}_{i} PARTITION OF {name} {how}")  # type: ignore[arg-type]
        c.execute(f"INSERT INTO {name} SELECT {values} FROM generate_series(1, 300)")  # type: ignore[arg-type]
        described = _described(c, name)
        schema = described.schema()
        rows = c.execute(f"SELECT tableoid::bigint, * FROM {name}").fetchall()  # type: ignore[arg-type]
        arrays: dict[int, Any] = {
            column.attnum: pa.array([_plain(row[i + 1]) for row in rows], column.type.arrow)
            for i, column in enumerate(schema.columns)
        }
        for leaf in described.storage.leaves:
            region = lost_region(described.storage, [leaf], schema)
            assert region is not None
            assert Region.from_json(region.to_json()) == region
            expected = [row[0] == int(leaf) for row in rows]
            assert is_in(region, schema, arrays, len(rows)).to_pylist() == expected
            where = condition(region, dict(schema.by_attnum))
            found = c.execute(
                sql.SQL("SELECT count(*), count(*) FILTER (WHERE tableoid = {}) FROM {} WHERE {}").format(
                    sql.Literal(int(leaf)), sql.Identifier(name), where
                )
            ).fetchone()
            assert found == (sum(expected), sum(expected))


def _plain(value: Any) -> Any:
    return str(value) if type(value).__name__ == "UUID" else value


@pytest.mark.parametrize("name", _INEXACT)
def test_bounds_that_show_nothing(db: Database, name: str) -> None:
    """Bounds by HASH, by expressions, by orders that are not ours, and without an end in time have no region.

    Nor has the DEFAULT partition besides.
    """
    columns, key, bound = _INEXACT[name]
    db.execute(
        'CREATE COLLATION public."C" FROM pg_catalog."C"',
        f"CREATE TABLE {name} ({columns}) PARTITION BY {key}",  # type: ignore[arg-type]
        f"CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES {bound}",  # type: ignore[arg-type]
    )
    assert _region(db, name, f"{name}_0") is None
    if "HASH" not in key:
        db.execute(f"CREATE TABLE {name}_d PARTITION OF {name} DEFAULT")  # type: ignore[arg-type]
        assert _region(db, name, f"{name}_d") is None
