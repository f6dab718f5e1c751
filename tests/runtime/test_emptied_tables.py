"""Tables that are altered and emptied in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig
from tests.rigs.waiting import until

from levada.testing.memory import MemoryDestination
from levada.values import Lsn

_STREAMED = {
    "added": "ALTER TABLE {} ADD c int; TRUNCATE {}; INSERT INTO {} (id) VALUES (5)",
    "added_later": "TRUNCATE {}; INSERT INTO {} (id) VALUES (5); ALTER TABLE {} ADD c int DEFAULT 4",
    "rewritten_before": "ALTER TABLE {} ALTER v TYPE bigint USING v * 10; TRUNCATE {}; INSERT INTO {} VALUES (5, 7)",
    "rewritten_empty": "TRUNCATE {}; ALTER TABLE {} ALTER v TYPE bigint USING v * 10; INSERT INTO {} VALUES (5, 7)",
    "renamed": "TRUNCATE {}; INSERT INTO {} VALUES (5, 7); ALTER TABLE {} RENAME v TO w",
    "not_null": "ALTER TABLE {} ALTER v SET NOT NULL; TRUNCATE {}; INSERT INTO {} VALUES (5, 7)",
    "not_null_later": "TRUNCATE {}; INSERT INTO {} VALUES (5, 7); ALTER TABLE {} ALTER v SET NOT NULL",
    "several": "ALTER TABLE {} ALTER v TYPE int USING v * 2; ALTER TABLE {} ADD c int; TRUNCATE {};"
    " ALTER TABLE {} DROP v; INSERT INTO {} (id) VALUES (5)",
    "parted": "ALTER TABLE {} ADD c int; TRUNCATE {}; INSERT INTO {} (id) VALUES (5)",
    "parted_later": "TRUNCATE {}; INSERT INTO {} (id) VALUES (5); ALTER TABLE {} ADD c int DEFAULT 4",
    "parted_more": "CREATE TABLE {}_3 PARTITION OF {} FOR VALUES FROM (9) TO (19); TRUNCATE {};"
    " INSERT INTO {} VALUES (9, 7)",
    "parted_then": "TRUNCATE {}; CREATE TABLE {}_3 PARTITION OF {} FOR VALUES FROM (9) TO (19);"
    " INSERT INTO {} VALUES (9, 7)",
    "parted_alone": "ALTER TABLE {}_1 ALTER v SET NOT NULL; TRUNCATE {}; INSERT INTO {} VALUES (2, 7)",
    "never_filled": "ALTER TABLE {} ALTER v TYPE bigint USING v * 10; INSERT INTO {} VALUES (5, 7)",
}
_REWRITTEN = {
    "after_insert": "TRUNCATE {}; INSERT INTO {} VALUES (5, 7); ALTER TABLE {} ALTER v TYPE int USING v * 10",
    "not_emptied": "ALTER TABLE {} ALTER v TYPE int USING v * 10; INSERT INTO {} VALUES (5, 7)",
    "hidden_by_rename": "TRUNCATE {}; INSERT INTO {} VALUES (5, 7); ALTER TABLE {} ALTER v TYPE int USING v * 10;"
    " ALTER TABLE {} RENAME v TO w",
}
"""Transactions that write rows again which are not streamed."""


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of a table for each transaction into memory, not started."""
    with db.connect() as c:
        for name in [*_STREAMED, *_REWRITTEN]:
            by = " PARTITION BY RANGE (id)" if name.startswith("parted") else ""
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int){by}")
            if by:
                c.execute(f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (3)")
                c.execute(f"CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (3) TO (9)")
            if name != "never_filled":
                c.execute(f"INSERT INTO {name} VALUES (1, 1), (4, 4)")
    made = Rig(db, tmp_path)
    made.destination = MemoryDestination()  # type: ignore[assignment]  # the rig only passes it on
    made.change(selects=lambda table: table.schema == "public", copy_tables=8)
    yield made
    made.stop()


def test_a_rewrite_of_an_empty_table_is_none(rig: Rig, db: Database) -> None:
    """A TRUNCATE in the stream, or an empty file, shows that no rewritten row is left. Other rewrites park."""
    rig.start()
    rig.wait_caught_up()
    with db.connect() as c:
        for name, statements in {**_STREAMED, **_REWRITTEN}.items():
            with c.transaction():
                for statement in statements.replace("{}", name).split("; "):
                    c.execute(statement)  # type: ignore[call-overload]  # of this module
    expected = {name: _at_source(db, name) for name in _STREAMED}

    def errors() -> dict[str, str]:
        assert rig.running is not None
        return {t.table.name: t.error.code for t in rig.running.progress().tables if t.error}

    until(lambda: errors().keys() >= _REWRITTEN.keys() and (_in_memory(rig) == expected or errors().keys() & expected))
    assert rig.running is not None
    [(now,)] = db.query("SELECT pg_current_wal_lsn()::text")
    # The catalog is compared once more after all statements.
    rig.wait(lambda p: (p.verified_lsn or Lsn(0)) >= Lsn.parse(now) or errors().keys() != _REWRITTEN.keys())
    assert errors() == dict.fromkeys(_REWRITTEN, "table_rewritten")
    assert _in_memory(rig) == expected


def _at_source(db: Database, name: str) -> list[dict[str, Any]]:
    rows = db.query(f"SELECT to_jsonb(of_row) FROM {name} of_row")  # type: ignore[arg-type]  # a name of this module
    return sorted((row for (row,) in rows), key=lambda row: row["id"])


def _in_memory(rig: Rig) -> dict[str, list[dict[str, Any]]]:
    tables = rig.destination.place.tables.values()  # type: ignore[attr-defined]  # as above
    named = {t.schema.name.name: t.named() for t in tables if t.schema.name.name in _STREAMED}
    return {name: sorted(rows, key=lambda row: row["id"]) for name, rows in named.items()}
