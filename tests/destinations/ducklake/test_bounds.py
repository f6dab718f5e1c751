"""Values of every type, and the bounds of files that let readers skip them."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.destinations.ducklake.steps import apply, check_filters
from tests.destinations.memory import MemoryRows, Stream
from tests.rigs.wide_rows import WIDE, wide_rows
from tests.servers.ducklake import DuckLake

from levada.destinations.ducklake.statistics import TableStats
from levada.destinations.ducklake.types import from_text, to_text
from levada.pgoutput.temporal import timestamp_us
from levada.schema import TableTarget


@pytest.mark.nightly
def test_every_value_is_found_by_every_filter(ducklake: DuckLake) -> None:
    """Readers skip files by their statistics. No filter on any type misses a row, whatever files the rows are in."""
    destination, rows = ducklake.destination(), wide_rows()
    parts = [rows[i::7] for i in range(7)]
    destination.write_table_rows(TableTarget.of(WIDE), MemoryRows(WIDE, *parts), ducklake.mark(1000))
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.wide")
    stream = Stream(WIDE)
    for row in rows[:90:6]:
        stream.insert(**{**dict.fromkeys(c.name for c in WIDE.columns), **row, "id": row["id"] + 1000})
        apply(ducklake, destination, stream)
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.wide")
        connection.execute("CALL ducklake_merge_adjacent_files('lake')")
        # DuckDB 1.5.5 does not find every value in a BLOB column of a Parquet file that it has written itself.
        check_filters(connection, "shop_public.wide", without="bytes")


@given(days=st.integers(-2_440_588, 2_145_031_948), micros=st.integers(-(10**17), 10**17))
def test_bounds_are_the_texts_of_duckdb(days: int, micros: int) -> None:
    """Dates and timestamps of any era have DuckDB's texts, from which the same bounds are read again."""
    with duckdb.connect() as connection:
        query = "SELECT (DATE '1970-01-01' + ?::INT)::varchar, make_timestamp(?)::varchar"
        assert connection.execute(query, [days, micros]).fetchone() == (
            to_text("date", days),
            to_text("timestamp", micros),
        )
    for kind, value in (("date", days), ("timestamp", micros), ("timestamptz", micros), ("time", micros % 10**10)):
        assert from_text(kind, to_text(kind, value)) == value


@pytest.mark.parametrize(("name", "zone"), [("timestamp", ""), ("timestamptz", "+00")])
def test_the_last_moment_that_is_stored(name: str, zone: str) -> None:
    """DuckDB reads it from its bound. The next one is infinity there, and its bound makes a table unreadable."""
    last = timestamp_us("294247-01-10 04:00:54.775806" + zone)
    assert timestamp_us("294247-01-10 04:00:54.775807" + zone) is None
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT epoch_us(t), isfinite(t) FROM (SELECT ?::{name} AS t)"
        assert connection.execute(query, [to_text(name, last)]).fetchone() == (last, True)


@given(value=st.integers(-(10**38) + 1, 10**38 - 1), scale=st.integers(0, 38), text=st.text(), data=st.binary())
def test_bounds_survive_their_texts(value: int, scale: int, text: str, data: bytes) -> None:
    """Every bound of a decimal, an integer, a text and a blob is read again as it was."""
    name = f"decimal(38,{scale})"
    assert from_text(name, to_text(name, value)) == value
    assert from_text("int64", to_text("int64", value)) == value
    assert from_text("varchar", to_text("varchar", text.encode())) == text.encode()
    assert from_text("blob", to_text("blob", data)) == data


def test_bounds_of_floats_by_another_writer() -> None:
    """Bounds that another writer has stored for a float are dropped, because Levada's files have none."""
    before = TableStats(False, "1.0", "2.0")
    assert before.merged("float64", TableStats(True, None, None)) == TableStats(True, None, None)
