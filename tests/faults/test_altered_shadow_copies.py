"""Copies into PostgreSQL that are killed between two ranges, and go on after something else has happened.

The rows that a copy has read are in a table of its own, and are used again. So a change of the source's table, or of
that one, must not leave a row that the source does not have.
"""

from __future__ import annotations

from typing import Final, LiteralString

import pytest
from tests.rigs import replica_server
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.movers import INTERRUPTED, Movers, finished_before, items
from tests.rigs.replica_server import server, target

__all__ = ["items", "server", "target"]

_AT_SOURCE: Final[dict[str, list[LiteralString]]] = {
    "columns come, go and exchange names": [
        "ALTER TABLE items ADD COLUMN extra int DEFAULT 7",
        "ALTER TABLE items DROP COLUMN n",
        "ALTER TABLE items RENAME COLUMN v TO w; ALTER TABLE items RENAME COLUMN big TO v",
        "UPDATE items SET extra = 8 WHERE shop = 3",
    ],
    "a column that goes and comes again": [
        "ALTER TABLE items DROP COLUMN v; ALTER TABLE items ADD COLUMN v text",
        "UPDATE items SET v = 'again' WHERE shop = 3",
    ],
    "a wider type": ["ALTER TABLE items ALTER COLUMN n TYPE bigint", "UPDATE items SET n = 1::bigint << 40"],
    "a rewrite": ["ALTER TABLE items ALTER COLUMN v TYPE text USING upper(v)"],
    "a type and back": [
        "ALTER TABLE items ALTER COLUMN n TYPE text USING n || 'x'",
        "ALTER TABLE items ALTER COLUMN n TYPE int USING 1 + left(n, -1)::int",
    ],
    "VACUUM FULL": ["DELETE FROM items WHERE shop = 2", "VACUUM FULL items"],
    "TRUNCATE": ["TRUNCATE items", "INSERT INTO items SELECT i, 'new', i FROM generate_series(1, 50) i"],
    "another key": [
        "ALTER TABLE items ADD COLUMN id bigint",
        "UPDATE items SET id = hashtext(code)::bigint * 10 + shop",
        "DELETE FROM items a USING items b WHERE a.id = b.id AND (a.shop, a.code) > (b.shop, b.code)",
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id)",
        "UPDATE items SET shop = 0, code = 'same' WHERE shop = 5",
    ],
    "another identity": ["ALTER TABLE items REPLICA IDENTITY FULL", "DELETE FROM items WHERE shop = 2"],
    "another table": [
        "CREATE TABLE other (LIKE items INCLUDING ALL)",
        "INSERT INTO other SELECT shop + 1, code, n FROM items WHERE shop > 2",
        "DROP TABLE items; ALTER TABLE other RENAME TO items",
    ],
    "another name for a while": [
        "ALTER TABLE items RENAME TO away",
        "UPDATE away SET n = n + 1 WHERE shop = 2",
        "ALTER TABLE away RENAME TO items",
    ],
}
_AT_DESTINATION: Final = {
    "dropped": "DROP TABLE {}",
    "a column dropped": "ALTER TABLE {} DROP COLUMN n",
    "a column renamed": "ALTER TABLE {} RENAME COLUMN n TO m",
    "a column retyped": "ALTER TABLE {} ALTER COLUMN n TYPE text",
    "a key added": "ALTER TABLE {} ADD PRIMARY KEY (shop, code)",
    "rewritten": "VACUUM FULL {}",
    "frozen": "VACUUM FREEZE {}",
}
_WRITES: Final = ("TRUNCATE {}", "DELETE FROM {} WHERE shop < 4", "UPDATE {} SET n = 99 WHERE shop < 4")


def _shadow(target: Database) -> str:
    """Return the name of the copy's table."""
    query = "SELECT quote_ident(schema_name) || '.' || quote_ident(table_name) FROM levada.destination_copies"
    [(name,)] = target.query(query)
    return str(name)


def _killed(engine: Engine, target: Database, at: str = "range") -> None:
    """Let an engine kill itself after a range of the first copy, or at another of its steps."""
    engine.spec = {"copy": {"connectionsPerTable": 1}, "retries": {"delaySeconds": 1, "maxDelaySeconds": 1}}
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "items"}]}
    replica_server.write_manifest(engine, target)
    engine.start(*INTERRUPTED, KILL_AT=at)
    engine.until(engine.process.poll, lambda ended: ended == -9)


def _completed(engine: Engine, items: Database, target: Database) -> None:
    """Let the engine go on, and compare all rows."""
    if not engine.runs():
        engine.start(*INTERRUPTED)
    engine.wait_for(lambda p: p["ready"])
    items.execute("UPDATE items SET n = 5 WHERE shop = 1" if _has_n(items) else "UPDATE items SET w = 'w'")
    engine.wait_caught_up()
    assert not replica_server.differences(items, target, "items")
    left = target.query("SELECT relname::text FROM pg_class WHERE relname ~ '^_levada_[0-9a-f]{32}$'")
    assert left == []


def _has_n(db: Database) -> bool:
    query = "SELECT FROM pg_attribute WHERE attrelid = 'items'::regclass AND attname = 'n'"
    return bool(db.query(query))


@pytest.mark.sampled
@pytest.mark.parametrize("what", _AT_SOURCE)
def test_changes_of_the_source(engine: Engine, items: Database, target: Database, what: str) -> None:
    """The table has the rows and the columns of the source, whatever happened between two ranges."""
    _killed(engine, target)
    items.execute(*_AT_SOURCE[what])
    _completed(engine, items, target)


@pytest.mark.sampled
@pytest.mark.parametrize("what", _AT_DESTINATION)
def test_changes_of_the_copy(engine: Engine, items: Database, target: Database, what: str) -> None:
    """The table of an interrupted copy is altered by another session. The copy ends, and the rows are the source's."""
    _killed(engine, target)
    target.execute(_AT_DESTINATION[what].format(_shadow(target)))  # type: ignore[arg-type]  # a name of the test
    _completed(engine, items, target)


@pytest.mark.nightly
def test_a_copy_that_is_closed_comes_to_serve(engine: Engine, items: Database, target: Database) -> None:
    """All of its ranges are used again if the engine ends before the swap, for which it may wait for readers."""
    with Movers(items):
        _killed(engine, target, "closed")
        _killed(engine, target, "closed")
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
    ranges = finished_before(engine)
    assert len(ranges) == 2
    assert all(kept == every for kept, every in ranges)
    _completed(engine, items, target)


@pytest.mark.nightly
def test_rows_of_the_copy(engine: Engine, items: Database, target: Database) -> None:
    """No other session can change the rows of an interrupted copy."""
    _killed(engine, target)
    for statement in _WRITES:
        with pytest.raises(Exception, match="read-only"):
            target.execute(statement.format(_shadow(target)))  # type: ignore[arg-type]  # a name of the test
    _completed(engine, items, target)
