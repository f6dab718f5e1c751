"""Times that get or lose their time zone while their table is streamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from tests.rigs.pipeline import reach, table
from tests.rigs.replicated import Replicated, replicated

import levada.runtime.source.preparation
from levada.destinations.postgres import PostgresDestination

__all__ = ["replicated"]

_ROWS: Final = 300
_TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, at timestamp(3), zoned timestamptz, v text)"
_FILL: Final = """INSERT INTO t SELECT i, timestamp '2026-03-29 00:30' + i * interval '7 minutes 3 ms',
    timestamptz '1999-10-31 00:00+00' + i * interval '11 minutes', 'row ' || i FROM generate_series({}, {}) i"""
_CHANGE: Final = (
    "UPDATE t SET v = 'later', at = at + interval '1 hour' WHERE id % 7 = 1; DELETE FROM t WHERE id % 7 = 2"
)
_IN_UTC: Final = (
    "ALTER TABLE t ALTER at TYPE timestamptz USING at AT TIME ZONE 'UTC', ALTER zoned TYPE timestamp USING zoned AT"
    " TIME ZONE 'Etc/UTC'",
    "SET TimeZone = 'UTC'; ALTER TABLE t ALTER at TYPE timestamptz USING at::timestamptz; ALTER TABLE t ALTER zoned"
    " TYPE timestamp",
)
_ELSEWHERE: Final = (
    "ALTER TABLE t ALTER at TYPE timestamptz USING at AT TIME ZONE 'Europe/Lisbon'",
    "SET TimeZone = 'Europe/Lisbon'; ALTER TABLE t ALTER zoned TYPE timestamp",
)


def _played(made: Replicated, statement: str) -> int:
    """Retype columns between rows, and return the number of rows that the last copy had, which reads rows once more."""
    with made.db.connect() as connection:
        connection.execute(_TABLE)
        connection.execute(_FILL.format(1, _ROWS))
        made.start()
        for step in (_FILL.format(1001, 1050), _CHANGE, statement, _CHANGE, _FILL.format(2001, 2050)):
            connection.execute(step)  # type: ignore[call-overload]  # of a test
        assert made.pipeline is not None
        reach(made.pipeline, lambda p: table(p, "t").copy)
        made.wait_caught_up()
        assert made.verify().equal
        copy = table(made.pipeline.progress(), "t").copy
        assert copy is not None
        return copy.rows


@pytest.mark.sampled
@pytest.mark.parametrize("statement", _IN_UTC)
def test_moments_in_utc_are_retyped_in_place(replicated: Replicated, statement: str) -> None:
    """A constant zone in which both types have the same microseconds, and a session of that zone, cost no copy."""
    assert _played(replicated, statement) == _ROWS


@pytest.mark.sampled
@pytest.mark.parametrize("statement", _ELSEWHERE)
def test_moments_of_another_zone_are_copied(replicated: Replicated, statement: str) -> None:
    """The rows differ from those of the same statement in UTC."""
    assert _played(replicated, statement) > _ROWS


def test_without_the_trigger_nothing_shows_the_zone(replicated: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment has the table times of a zone that was guessed."""
    monkeypatch.setattr(levada.runtime.source.preparation, "install_ddl_trigger", lambda connection: False)
    assert _played(replicated, _IN_UTC[0]) > _ROWS


@pytest.mark.nightly
@pytest.mark.parametrize("statement", [*_IN_UTC, _ELSEWHERE[0]])
def test_a_destination_that_cannot_retype_gets_a_copy(
    replicated: Replicated, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """As with every other change of the values of a table's rows."""
    capable = PostgresDestination.capabilities
    monkeypatch.setattr(PostgresDestination, "capabilities", replace(capable, retypes_in_utc=False))
    assert _played(replicated, statement) > _ROWS
