"""Readers skip files of an Iceberg table by the bounds of their columns."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from tests.destinations.memory import MemoryRows
from tests.rigs.lake import Lake, hadoop
from tests.rigs.wide_rows import WIDE, wide_rows

from levada.schema import TableTarget

__all__ = ["hadoop"]


def conditions(rows: DataFrame) -> list[tuple[str, Column]]:
    """Return filters on each value of each column that Spark can compare."""
    found: list[tuple[str, Column]] = []
    for name, kind in rows.dtypes:
        if kind.startswith("array"):
            continue
        text = f.hex(name) if kind == "binary" else f.col(name).cast("string")
        for (value,) in rows.where(f.col(name).isNotNull()).select(text).distinct().collect():
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            literal = f.expr(f"X'{value}'" if kind == "binary" else f"CAST('{quoted}' AS {kind})")
            column = f.col(name)
            for sign, condition in (("=", column == literal), (">", column > literal), ("<", column < literal)):
                found.append((f"{name} {sign} {value[:30]}", condition))
    return found


def check_filters(table: DataFrame) -> None:
    """Each filter finds in the table what it finds among its rows, which are no files."""
    rows = table.localCheckpoint()
    filters = conditions(rows)
    expected = rows.select([f.count_if(c).alias(f"c{i}") for i, (_, c) in enumerate(filters)]).collect()[0]
    found: list[Any] = [table.where(c).count() for _, c in filters]
    wrong = [
        (text, n, found[i]) for i, ((text, _), n) in enumerate(zip(filters, expected, strict=True)) if n != found[i]
    ]
    assert not wrong


def test_every_value_is_found_by_every_filter(hadoop: Lake) -> None:
    """No filter on any type misses a row, whatever files the rows are in."""
    destination, rows = hadoop.destination(), wide_rows()
    parts = [rows[i::7] for i in range(7)]
    destination.write_table_rows(TableTarget.of(WIDE), MemoryRows(WIDE, *parts), hadoop.mark(1000))
    check_filters(hadoop.spark.table(hadoop.spark_name("wide")))
