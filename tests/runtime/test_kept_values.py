"""Types that change in place at the source and at the destination, in a query of several statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import reach, table
from tests.rigs.replicated import InDuckLake, Replicated, in_ducklake, replicated
from tests.rigs.verified_shop import Shop, shop

__all__ = ["in_ducklake", "replicated", "shop"]

_ROWS: Final = 500
_CREATE: Final = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE t (id int PRIMARY KEY, short varchar(20), limited varchar(20), free text, m mood, n int, r real,
    p numeric(8,2), at timestamptz(3))
"""
_FILL: Final = (
    "INSERT INTO t SELECT i, 's' || i, 'l' || i, CASE i % 2 WHEN 0 THEN 'good' ELSE 'bad' END,"
    " CASE i % 2 WHEN 0 THEN 'good' ELSE 'bad' END::mood, i, i / 7.0, i / 7.0,"
    " timestamptz '2026-01-01' + i * '7.123456 s'::interval FROM generate_series({}, {}) i"
)
_MIGRATION: Final = """
BEGIN;
ALTER TABLE t ALTER COLUMN short TYPE text, ALTER COLUMN limited TYPE varchar(40), ALTER COLUMN r TYPE float8;
CREATE TYPE mood_new AS ENUM ('awful', 'bad', 'good');
ALTER TABLE t ALTER COLUMN m TYPE mood_new USING m::text::mood_new,
    ALTER COLUMN free TYPE mood_new USING free::mood_new;
DROP TYPE mood;
ALTER TYPE mood_new RENAME TO mood;
ALTER TABLE t ALTER COLUMN n TYPE bigint USING n::bigint, ALTER COLUMN p TYPE numeric(14,2),
    ALTER COLUMN at TYPE timestamptz;
COMMIT
"""
_AFTER: Final = (
    "INSERT INTO t VALUES (-1, repeat('s', 50), repeat('l', 40), 'awful', 'awful', 1::bigint << 40, 0.1,"
    " 123456789012.34, '2026-01-01 00:00:00.123456Z')",
    "UPDATE t SET short = repeat('u', 90), m = 'awful' WHERE id % 5 = 0",
    "DELETE FROM t WHERE id % 7 = 0",
)


def _play(db: Database, started: Callable[[], None]) -> None:
    """Change the types of a table that is streamed, with rows before and after."""
    with db.connect() as connection:
        connection.execute(_CREATE)
        connection.execute(_FILL.format(1, _ROWS))  # type: ignore[call-overload]  # of a test
        started()
        connection.execute(_FILL.format(_ROWS + 1, _ROWS + 100))  # type: ignore[call-overload]  # of a test
        connection.execute(_MIGRATION)
        for statement in _AFTER:
            connection.execute(statement)


@pytest.mark.nightly
def test_values_whose_text_stays_are_not_copied_into_iceberg(shop: Shop) -> None:
    """As in the other destinations. A table that were copied would be parked here."""
    _play(shop.db, shop.start)
    assert shop.pipeline is not None
    assert table(reach(shop.pipeline, shop.pipeline.caught_up()), "t").error is None
    assert shop.verify().equal


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["replicated", "in_ducklake"])
def test_values_whose_text_stays_are_not_copied(request: pytest.FixtureRequest, kind: str) -> None:
    """Varchar to text, text and enums to another enum, wider numbers: in place, and every value is equal."""
    made: Replicated | InDuckLake = request.getfixturevalue(kind)
    _play(made.db, made.start)
    assert made.pipeline is not None
    copy = table(reach(made.pipeline, made.pipeline.caught_up()), "t").copy
    assert made.verify().equal
    assert copy is not None
    assert copy.rows == _ROWS


def test_a_scale_that_cuts_digits_is_copied(replicated: Replicated) -> None:
    """A statement that rewrites the table for one column cuts the values of another one too."""
    made = replicated
    with made.db.connect() as connection:
        connection.execute(_CREATE)
        connection.execute(_FILL.format(1, _ROWS))  # type: ignore[call-overload]  # of a test
        made.start()
        connection.execute("DELETE FROM t WHERE id > 100")
        connection.execute("ALTER TABLE t ALTER COLUMN r TYPE float8, ALTER COLUMN p TYPE numeric(9,1)")
    assert made.pipeline is not None
    reach(made.pipeline, lambda p: (copy := table(p, "t").copy) is not None and copy.rows == 100)
    made.wait_caught_up()
    assert made.verify().equal
