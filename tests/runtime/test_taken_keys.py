"""Keys that get other columns while their table is streamed: an int that becomes a bigint without a rewrite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import psycopg
import pytest
from tests.rigs.pipeline import reach, table
from tests.rigs.replicated import InDuckLake, Replicated, in_ducklake, replicated
from tests.rigs.verified_shop import Shop, shop

__all__ = ["in_ducklake", "replicated", "shop"]

_ROWS: Final = 3000
_BACKFILL: Final = """
ALTER TABLE t ADD COLUMN new_id bigint;
CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.new_id := NEW.id; RETURN NEW; END $$;
CREATE TRIGGER fill BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fill()
"""
_PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "schema-changes.md"
_DROP: Final = "DROP COLUMN old_id"


def _swap() -> str:
    """Return the statements of the page."""
    block = re.search(r"^```sql\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


def _copies_by_rows(shop: Replicated) -> int:
    """Return the number of rows that the table had when it was copied last."""
    assert shop.pipeline is not None
    copy = table(shop.pipeline.progress(), "t").copy
    assert copy is not None
    return copy.rows


def _recipe(connection: psycopg.Connection, last: str) -> None:
    """Make the key a bigint, as one does online, with a transaction of another kind of write before each step."""
    for step in (
        _BACKFILL,
        "UPDATE t SET new_id = id WHERE id <= 1500",
        "INSERT INTO t SELECT i, 'later ' || i FROM generate_series(3001, 3100) i",
        "UPDATE t SET new_id = id WHERE new_id IS NULL",
        "CREATE UNIQUE INDEX t_new_id ON t (new_id)",
        "DELETE FROM t WHERE id % 10 = 3",
        _swap().replace("COMMIT", "DROP TRIGGER fill ON t; COMMIT").replace(_DROP, last),
        "UPDATE t SET v = 'swapped' WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 10 = 4",
        "INSERT INTO t (id, v) SELECT i + (1::bigint << 33), 'big' FROM generate_series(1, 50) i",
        "UPDATE t SET id = -id WHERE id % 11 = 0",
    ):
        connection.execute(step)  # type: ignore[call-overload]  # of a test


@pytest.mark.sampled
@pytest.mark.parametrize("last", [_DROP, "ALTER COLUMN old_id DROP NOT NULL"])
@pytest.mark.parametrize("kind", ["replicated", "in_ducklake"])
def test_an_int_becomes_a_bigint_without_a_copy(request: pytest.FixtureRequest, kind: str, last: str) -> None:
    """The new key takes over in the stream, also if the engine was away meanwhile, and every row is equal after it."""
    made: Replicated | InDuckLake = request.getfixturevalue(kind)
    with made.db.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute(f"INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, {_ROWS}) i")
        made.start()
        _recipe(connection, last)
        made.wait_caught_up()
        assert _copies_by_rows(made) == _ROWS
        assert made.verify().equal
        assert made.pipeline is not None
        made.pipeline.stop()
        made.start()
        connection.execute("UPDATE t SET v = 'again' WHERE id % 5 = 0")
        connection.execute("DELETE FROM t WHERE id % 9 = 0")
        made.wait_caught_up()
        assert made.verify().equal


@pytest.mark.nightly
def test_an_int_becomes_a_bigint_in_iceberg_without_a_copy(shop: Shop) -> None:
    """As in the other destinations. A table that were copied would be parked here."""
    with shop.db.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute(f"INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, {_ROWS}) i")
        shop.start()
        shop.wait_caught_up()
        _recipe(connection, _DROP)
        assert shop.pipeline is not None
        assert table(reach(shop.pipeline, shop.pipeline.caught_up()), "t").error is None
        assert shop.verify().equal
        shop.stop()
        shop.start()
        connection.execute("DELETE FROM t WHERE id % 9 = 0")
        shop.wait_caught_up()
        assert shop.verify().equal


def test_rows_that_are_written_within_the_change_cost_a_copy(replicated: Replicated) -> None:
    """A transaction that writes rows under both keys cannot be parted. The table is copied, and is equal."""
    made = replicated
    with made.db.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL UNIQUE)")
        connection.execute(f"INSERT INTO t SELECT i, -i FROM generate_series(1, {_ROWS}) i")
        made.start()
        connection.execute(
            "BEGIN; UPDATE t SET v = v - 10000; ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v);"
            " DELETE FROM t WHERE id <= 100; COMMIT"
        )
        assert made.pipeline is not None
        reach(made.pipeline, lambda p: table(p, "t").copy and table(p, "t").copy.rows == _ROWS - 100)
        made.wait_caught_up()
        assert made.verify().equal
