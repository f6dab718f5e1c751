"""Histories that showed a fault once, shortened by hand or by the search."""

from __future__ import annotations

from typing import Final

from tests.histories.history import BEGIN_HISTORY, PUBLICATION, History, Step

_TABLE: Final = '{s}."t1"'
_KEYED: Final = ("create table", "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY, c1 text)", "")
_ROWS: Final = ("insert", "INSERT INTO {s}.t1 (k1) VALUES (1), (2)", _TABLE)
_AGAIN: Final = ("insert", "INSERT INTO {s}.t1 (k1) VALUES (5)", _TABLE)
_OUT: Final = f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {{s}}.t1"
_IN: Final = f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {{s}}.t1"

_Statement = tuple[str, str, str]


def _history(*phases: tuple[_Statement, ...]) -> History:
    """Return the history with its schemas, without a seed."""
    begun = [Step(BEGIN_HISTORY, f"CREATE SCHEMA {schema}") for schema in ("{s}", "b_{s}")]
    steps = [Step(kind, sql, table, 0, n) for n, phase in enumerate(phases) for kind, sql, table in phase]
    return History(0, (*begun, *steps))


KEPT: Final = (
    # A key that is generated is no identity on any version.
    _history(
        (
            ("create table", "CREATE TABLE {s}.t1 (b int, k1 int GENERATED ALWAYS AS (b * 2) STORED PRIMARY KEY)", ""),
            ("insert", "INSERT INTO {s}.t1 (b) VALUES (1), (2)", _TABLE),
        ),
        (("delete", "DELETE FROM {s}.t1 WHERE k1 = 2", _TABLE),),
    ),
    # A table that a transaction empties has no row that it has rewritten.
    _history(
        (_KEYED, _ROWS),
        (
            ("begin", "BEGIN", ""),
            ("add column", "ALTER TABLE {s}.t1 ADD COLUMN c int", _TABLE),
            ("truncate", "TRUNCATE {s}.t1", _TABLE),
            _AGAIN,
            ("commit", "COMMIT", ""),
        ),
    ),
    # The hint of a table whose name another one has now reaches the table itself.
    _history(
        (_KEYED, _ROWS, ("create table", "CREATE TABLE {s}.t2 (k1 int PRIMARY KEY)", "")),
        (
            ("add identity column", "ALTER TABLE {s}.t1 ADD COLUMN n int GENERATED ALWAYS AS IDENTITY", _TABLE),
            ("swap tables", "ALTER TABLE {s}.t1 RENAME TO swapped", _TABLE),
            ("swap tables", "ALTER TABLE {s}.t2 RENAME TO t1", '{s}."t2"'),
            ("swap tables", "ALTER TABLE {s}.swapped RENAME TO t2", '{s}."swapped"'),
        ),
    ),
    # A hint of a partitioned table without identity corrects its partitions too.
    _history(
        (
            (
                "create partitioned table",
                "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY) PARTITION BY LIST (k1)",
                "",
            ),
            ("create partitioned table", "CREATE TABLE {s}.t1_1 PARTITION OF {s}.t1 DEFAULT", ""),
            _ROWS,
        ),
        (
            ("replica identity", "ALTER TABLE {s}.t1_1 REPLICA IDENTITY NOTHING", '{s}."t1_1"'),
            ("set schema", "ALTER TABLE {s}.t1 SET SCHEMA b_{s}", _TABLE),
        ),
    ),
    # A key of the same columns in another order is the same key.
    _history(
        (
            ("create table", "CREATE TABLE {s}.t1 (k1 int, k2 int, PRIMARY KEY (k1, k2))", ""),
            ("insert", "INSERT INTO {s}.t1 VALUES (1, 2), (3, 4)", _TABLE),
        ),
        (
            ("replace key", "ALTER TABLE {s}.t1 DROP CONSTRAINT t1_pkey, ADD PRIMARY KEY (k2, k1)", _TABLE),
            ("delete", "DELETE FROM {s}.t1 WHERE k1 = 3", _TABLE),
        ),
    ),
    # A root gets the replica identity that its partition has already.
    _history(
        (
            ("create partitioned table", "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY) PARTITION BY LIST (k1)", ""),
            ("create partitioned table", "CREATE TABLE {s}.t1_1 PARTITION OF {s}.t1 DEFAULT", ""),
            _ROWS,
        ),
        (
            ("identity of partitions", "ALTER TABLE {s}.t1_1 REPLICA IDENTITY FULL", _TABLE),
            ("insert", "INSERT INTO {s}.t1 VALUES (3)", _TABLE),
            ("identity of partitions", "ALTER TABLE {s}.t1 REPLICA IDENTITY FULL", _TABLE),
            ("insert", "INSERT INTO {s}.t1 VALUES (4)", _TABLE),
        ),
    ),
    # A table leaves the manifest with its schema, and not in silence.
    _history((_KEYED, _ROWS), (("rename schema", "ALTER SCHEMA {s} RENAME TO {s}_v2", ""),)),
    # A table leaves the publication, for a moment, or gets a row filter.
    _history((_KEYED, _ROWS), (("publication", _OUT, _TABLE), _AGAIN)),
    _history((_KEYED, _ROWS), (("publication", f"{_OUT}; {_IN}", _TABLE), _AGAIN)),
    _history((_KEYED, _ROWS), (("publication", _OUT, _TABLE), _AGAIN, ("publication", _IN, _TABLE))),
)
