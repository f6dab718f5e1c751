"""Names of columns that a reader takes for one."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from dataclasses import replace

import duckdb
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, NestedField, StringType
from pyspark.sql import SparkSession

from levada.destinations import OnSchemaChange, TableMode
from levada.destinations.bigquery.names import check_columns
from levada.destinations.ducklake import columns as ducklake
from levada.destinations.iceberg import schema as iceberg
from levada.errors import NeedsOperator
from levada.locations import ascii_folded, java_folded
from levada.schema import ColumnType, Kind, ReplicatedTableSchema
from levada.testing import column, table

ONE_TO_SPARK = [
    *[("sira", "s\u0131ra"), ("I", "\u0131"), ("i", "\u0130"), ("\u0130", "\u0131"), ("i\u0307", "\u0130")],
    *[("k", "\u212a"), ("s", "\u017f"), ("\u00e5", "\u212b"), ("\u03c9", "\u2126"), ("\u00b5", "\u03bc")],
    *[("\u03c3", "\u03c2"), ("\u00df", "\u1e9e"), ("\u01c5", "\u01c6"), ("\u00c9", "\u00e9"), ("Id", "iD")],
]
"""Pairs that Java's ``equalsIgnoreCase`` or ``toLowerCase`` takes for one."""
DIFFERENT = [("strasse", "stra\u00dfe"), ("\u00e9", "e\u0301"), ("\ufb01", "fi"), ("a", "\u0430"), ("a b", "a_b")]
Check = Callable[[ReplicatedTableSchema], object]
CHECKS: dict[str, Check] = {
    "iceberg": lambda schema: iceberg.initial_layout(schema, TableMode.UPSERT),
    "bigquery": check_columns,
    "ducklake": lambda schema: ducklake.initial_columns(schema, TableMode.UPSERT),
}


def named(*names: str) -> ReplicatedTableSchema:
    """Return a table with these columns after its key."""
    return table(column(1, "id", Kind.INT8), *(column(i, n, Kind.TEXT) for i, n in enumerate(names, 2)))


def is_refused(check: Check, schema: ReplicatedTableSchema) -> bool:
    """Return True if the names are ambiguous."""
    try:
        check(schema)
    except NeedsOperator as error:
        return error.code == "ambiguous_columns" and "columns.exclude" in error.hint
    return False


@pytest.mark.parametrize("system", ["iceberg", "bigquery"])
def test_names_that_spark_takes_for_one_are_refused(system: str) -> None:
    """Upper and lower case are Java's, letter by letter. No other names are."""
    for one, other in ONE_TO_SPARK:
        assert is_refused(CHECKS[system], named(f"x{one}", f"x{other}")), (one, other)
    for one, other in DIFFERENT:
        assert not is_refused(CHECKS[system], named(one, other)), (one, other)


def test_names_that_duckdb_takes_for_one_are_refused() -> None:
    """Those that differ in the case of the letters A to Z. DuckDB itself keeps all others apart."""
    with duckdb.connect() as connection:
        for one, other in [*ONE_TO_SPARK, *DIFFERENT]:
            try:
                connection.execute(f'CREATE OR REPLACE TABLE t ("{one}" int, "{other}" int)')
                apart = True
            except duckdb.CatalogException:
                apart = False
            assert apart is not is_refused(CHECKS["ducklake"], named(one, other)), (one, other)
            assert apart is (ascii_folded(one) != ascii_folded(other))


def test_a_rename_makes_names_ambiguous() -> None:
    """Names are compared at each change of columns, not only at the first copy."""
    before, after = named("sira", "other"), named("sira", "s\u0131ra")
    layout = iceberg.initial_layout(before, TableMode.UPSERT)
    with pytest.raises(NeedsOperator, match="sira and s\u0131ra"):
        iceberg.reconcile(layout, 3, after, TableMode.UPSERT, OnSchemaChange.PROPAGATE)
    with pytest.raises(NeedsOperator, match="sira and s\u0131ra"):
        iceberg.replacement_layout(layout, 3, after, TableMode.UPSERT)


def test_metadata_columns_are_compared_likewise() -> None:
    """Spark adds its own columns to each table."""
    for name in ("_f\u0131le", "_PO\u017f", "_file"):
        with pytest.raises(NeedsOperator) as refused:
            iceberg.initial_layout(named(name), TableMode.UPSERT)
        assert refused.value.code == "reserved_column_name"


def test_a_column_with_the_name_of_a_lists_elements_is_refused() -> None:
    """Iceberg names the elements of tags tags.element, and no two fields of a table have one name."""
    tags = NestedField(1, "tags", ListType(2, StringType()), required=False)
    with pytest.raises(Exception, match="multiple fields for name"):
        Schema(tags, NestedField(3, "tags.element", IntegerType(), required=False)).find_field("tags")
    for name in ("tags.element", "Tags.Element"):
        schema = table(
            column(1, "id", Kind.INT8),
            column(2, "tags", Kind.ARRAY, element=ColumnType(Kind.TEXT)),
            column(3, name, Kind.INT4),
        )
        assert is_refused(CHECKS["iceberg"], schema)
        assert not is_refused(CHECKS["ducklake"], schema)
    assert not is_refused(CHECKS["iceberg"], named("tags", "tags.element"))


def test_a_column_with_the_name_of_a_part_of_a_nested_type_is_refused() -> None:
    """At each depth of lists in lists, and for each field of a range."""
    grid = ColumnType(Kind.ARRAY, element=ColumnType(Kind.ARRAY, element=ColumnType(Kind.TEXT)))
    period = ColumnType(Kind.RANGE, element=ColumnType(Kind.DATE))
    taken = {"v.element.element": grid, "v.lower": period, "V.IsEmpty": period}
    for name, kind in taken.items():
        nested = replace(column(2, "v", Kind.TEXT), type=kind)
        assert is_refused(CHECKS["iceberg"], table(column(1, "id", Kind.INT8), nested, column(3, name, Kind.INT4)))
        assert not is_refused(CHECKS["iceberg"], table(column(1, "id", Kind.INT8), nested, column(3, "v.x", Kind.INT4)))


def test_case_is_that_of_javas_letters(spark: SparkSession) -> None:
    """For each letter that has a case in Java, ours is the same or coarser."""
    letter = spark._jvm.java.lang.Character
    cased = [n for n in itertools.chain(range(0xD800), range(0xE000, 0x1F200)) if _may_have_case(chr(n))]
    assert cased
    for n in cased:
        java = letter.toLowerCase(letter.toUpperCase(n))
        assert java_folded(chr(java)) == java_folded(chr(n)), hex(n)


def _may_have_case(c: str) -> bool:
    return c != c.lower() or c != c.upper() or unicodedata.category(c) in ("Lu", "Ll", "Lt")
