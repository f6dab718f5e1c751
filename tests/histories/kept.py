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

_Statement = tuple[str, str, str] | tuple[str, str, str, int]
"""The kind, SQL and table of a step, and its session."""


def _history(*phases: tuple[_Statement, ...]) -> History:
    """Return the history with its schemas, without a seed."""
    begun = [Step(BEGIN_HISTORY, f"CREATE SCHEMA {schema}") for schema in ("{s}", "b_{s}")]
    steps = [
        Step(step[0], step[1], step[2], step[3] if len(step) > 3 else 0, n)
        for n, phase in enumerate(phases)
        for step in phase
    ]
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
    # The hint of a change that was made before the table got another name reaches the table, and not the one that has
    # its former name.
    _history(
        (_KEYED, _ROWS),
        (
            ("begin", "BEGIN", ""),
            ("add column", "ALTER TABLE {s}.t1 ADD COLUMN c text[] DEFAULT '{}'", _TABLE),
            _AGAIN,
            ("rename table", "ALTER TABLE {s}.t1 RENAME TO moved", _TABLE),
            ("create table", "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY)", ""),
            ("commit", "COMMIT", ""),
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
    # Rows from before a NOT NULL constraint of version 18 have NULL in the replica identity.
    _history(
        (
            ("create table", "CREATE TABLE {s}.t1 (k1 int, c1 text)", ""),
            ("insert", "INSERT INTO {s}.t1 (c1) VALUES ('one'), ('two')", _TABLE),
            ("unique index", "ALTER TABLE {s}.t1 ADD NOT NULL k1 NOT VALID", _TABLE),
            ("unique index", "CREATE UNIQUE INDEX i ON {s}.t1 (k1)", _TABLE),
            ("replica identity", "ALTER TABLE {s}.t1 REPLICA IDENTITY USING INDEX i", _TABLE),
        ),
        (("delete", "DELETE FROM {s}.t1 WHERE c1 = 'one'", _TABLE),),
    ),
)

_PARTED: Final = "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY, c1 text) PARTITION BY RANGE (k1)"
_FIRST: Final = "FOR VALUES FROM (1) TO (10)"
_SECOND: Final = "FOR VALUES FROM (10) TO (20)"
_THIRD: Final = "FOR VALUES FROM (20) TO (30)"
_PARTS: Final = (
    ("create partitioned table", _PARTED, ""),
    ("create partitioned table", f"CREATE TABLE {{s}}.t1_1 PARTITION OF {{s}}.t1 {_FIRST}", ""),
    ("create partitioned table", f"CREATE TABLE {{s}}.t1_2 PARTITION OF {{s}}.t1 {_SECOND}", ""),
    ("create table", "CREATE TABLE {s}.loose (k1 int PRIMARY KEY, c1 text)", ""),
    ("insert", "INSERT INTO {s}.t1 SELECT i, 'first' FROM generate_series(1, 19) i", _TABLE),
    ("insert", "INSERT INTO {s}.loose VALUES (21, 'first'), (22, 'first')", '{s}."loose"'),
)
_AWAY: Final = "detach partition for a while"
_THERE: Final = "attach partition for a while"


def _together(kind: str, *statements: str) -> History:
    """Return a history of partitions, with one transaction that changes them."""
    changes = ((kind, statement, _TABLE) for statement in statements)
    return _history(_PARTS, (("begin", "BEGIN", ""), *changes, ("commit", "COMMIT", ""), _LATER))


_WRITTEN: Final = ("ALTER TABLE {s}.t1 ADD COLUMN z int", "UPDATE {s}.t1 SET z = 1 WHERE k1 = 1")
_LATER: Final = ("update", "UPDATE {s}.t1 SET c1 = 'later' WHERE k1 = 2", _TABLE)


def _altered_later(before: tuple[str, ...], statements: str) -> History:
    """Return a history in which a transaction that began before the rows' one alters the table after it."""
    return _history(
        (("create table", "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY, a text, b int)", ""), _ROWS),
        (
            *(("begin", sql, "", 1) for sql in ("BEGIN", "SELECT pg_current_xact_id()")),
            *(("column again", sql, _TABLE) for sql in before),
            ("column again", statements, _TABLE, 1),
            ("commit", "COMMIT", "", 1),
        ),
    )


RETURNING: Final = (
    # A partition has other rows when it returns.
    _together(
        _AWAY,
        "ALTER TABLE {s}.t1 DETACH PARTITION {s}.t1_1",
        "UPDATE {s}.t1_1 SET c1 = 'apart' WHERE k1 > 3",
        "DELETE FROM {s}.t1_1 WHERE k1 = 1",
        f"ALTER TABLE {{s}}.t1 ATTACH PARTITION {{s}}.t1_1 {_FIRST}",
    ),
    # Two partitions exchange their places.
    _together(
        _AWAY,
        "ALTER TABLE {s}.t1 DETACH PARTITION {s}.t1_1",
        "ALTER TABLE {s}.t1 DETACH PARTITION {s}.t1_2",
        "TRUNCATE {s}.t1_2",
        "UPDATE {s}.t1_1 SET k1 = k1 + 10, c1 = 'moved'",
        f"ALTER TABLE {{s}}.t1 ATTACH PARTITION {{s}}.t1_1 {_SECOND}",
        f"ALTER TABLE {{s}}.t1 ATTACH PARTITION {{s}}.t1_2 {_FIRST}",
        "INSERT INTO {s}.t1 VALUES (2, 'new')",
    ),
    # Rows that were streamed with a partition leave with it.
    _together(
        _THERE,
        f"CREATE TABLE {{s}}.t1_3 PARTITION OF {{s}}.t1 {_THIRD}",
        "INSERT INTO {s}.t1 VALUES (20, 'new')",
        "DROP TABLE {s}.t1_3",
    ),
    # A table of the pipeline that is a partition for a while has what was written then.
    _together(
        _THERE,
        f"ALTER TABLE {{s}}.t1 ATTACH PARTITION {{s}}.loose {_THIRD}",
        "UPDATE {s}.t1 SET c1 = 'as a partition' WHERE k1 > 20",
        "ALTER TABLE {s}.t1 DETACH PARTITION {s}.loose",
    ),
    # A column gets the name of one that was dropped, renamed, or added meanwhile.
    *(
        _history(
            (("create table", "CREATE TABLE {s}.t1 (k1 int PRIMARY KEY, a text, b int)", ""), _ROWS),
            (("column again", statements, _TABLE),),
        )
        for statements in (
            "ALTER TABLE {s}.t1 ADD COLUMN z int; UPDATE {s}.t1 SET z = 1 WHERE k1 = 1;"
            " ALTER TABLE {s}.t1 DROP COLUMN z; ALTER TABLE {s}.t1 ADD COLUMN z int DEFAULT 7",
            "ALTER TABLE {s}.t1 ADD COLUMN z int; UPDATE {s}.t1 SET z = 1 WHERE k1 = 1;"
            " ALTER TABLE {s}.t1 RENAME COLUMN z TO y; ALTER TABLE {s}.t1 ADD COLUMN z int DEFAULT 7",
            "ALTER TABLE {s}.t1 DROP COLUMN b; ALTER TABLE {s}.t1 ADD COLUMN b int DEFAULT 7;"
            " UPDATE {s}.t1 SET b = 1 WHERE k1 = 1; ALTER TABLE {s}.t1 RENAME COLUMN b TO c",
        )
    ),
    # The transaction that changes the columns has a lower number than that of the rows from before it.
    _altered_later(_WRITTEN, "ALTER TABLE {s}.t1 DROP COLUMN z; ALTER TABLE {s}.t1 ADD COLUMN z int DEFAULT 7"),
    _altered_later(_WRITTEN, "ALTER TABLE {s}.t1 RENAME COLUMN z TO y; ALTER TABLE {s}.t1 ADD COLUMN z int DEFAULT 7"),
    # Rows that no key keeps apart are written while a table has none.
    _history(
        (_KEYED, _ROWS, ("replica identity", "ALTER TABLE {s}.t1 REPLICA IDENTITY FULL", _TABLE)),
        (
            (
                "key for a while",
                "ALTER TABLE {s}.t1 DROP CONSTRAINT t1_pkey; INSERT INTO {s}.t1 VALUES (7, 'one'), (7, 'two');"
                " DELETE FROM {s}.t1 WHERE c1 = 'one'; ALTER TABLE {s}.t1 ADD PRIMARY KEY (k1)",
                _TABLE,
            ),
        ),
    ),
)
"""Histories in which a partition, a key or a column leaves its table for a moment, without the event trigger."""

DROPPED_BEFORE: Final = (
    _altered_later((*_WRITTEN, "ALTER TABLE {s}.t1 DROP COLUMN z"), "ALTER TABLE {s}.t1 ADD COLUMN z int DEFAULT 7"),
)
"""A history after which, in about one of ten runs, a table at PostgreSQL is parked as `foreign_schema_change`."""
