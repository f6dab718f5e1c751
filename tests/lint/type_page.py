"""The page docs/types.md, from the type mapping: ``python -m tests.lint.type_page > docs/types.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from levada.destinations.iceberg.schema import IcebergType, initial_layout
from levada.pgoutput.binary import BINARY
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema, resolve_type
from levada.segments.projection import widens
from levada.values import QualifiedTable, TableId, TableMode

_HEAD: Final = """# Types

Each PostgreSQL type, the Arrow type that holds its values in copies and segments, and its type in Iceberg. Values are
stored exactly or reported as errors (`onUnrepresentable` in [reference.md](reference.md)). Nothing is coerced silently.

- *Copied as*: the format in which the initial copy reads the values. The stream always has PostgreSQL's text.
- *Widened to*: a change of the column's type that needs no new copy.

"""
_FOOT: Final = """
A domain has the type below it. `time` is text in Iceberg, because Spark refuses to read Iceberg's own type.

These values have no place in the type of their column: `infinity` of a date or timestamp, `24:00`, `NaN` and `infinity`
of numeric(p, s), arrays with several dimensions or another lower bound than 1, and a timestamp or timestamptz after
294247-01-10 04:00:54.775806 UTC: the microseconds since 1970 exceed 64 bits then, and their last number is infinity for
DuckDB. Years before 1 AD are exact, and so are those after 9999 up to there.

[Generated columns](guides/generated-columns.md) are left out by default. PostgreSQL 18 can stream those that it
stores.

`columns.types` of a TableSync [chooses other types](guides/stored-types.md) for columns: text for any, a decimal for a
numeric without precision, a list for a vector, lists in lists for arrays with several dimensions, a
struct for a range, a list of structs for a multirange, a map for hstore, bytes for PostGIS's geometry.

## Reading a changelog

A changelog has one row for each change, with the operation in `_levada_op`: `I`, `U`, `D`, or `T` for a TRUNCATE. The
order is that of `_levada_commit_lsn` and `_levada_ordinal`. Copied rows have no ordinal, and come before the changes of
their LSN. An update that moves a key is two rows of one ordinal: first the `D` of the former key, then the `I` of the
new one. A destination that delivers at least once may have a change twice, with the same LSN and ordinal.

PostgreSQL does not send a TOASTed value that an update leaves as it is, unless the table has REPLICA IDENTITY FULL. The
value is NULL in the changelog then, and `_levada_unchanged` has the names of such columns. A reader carries each over:

- from the row that the key had before this change,
- or, if a `D` has the same LSN and ordinal, from the row that this `D` removes.

A `D` has the key that the table had at that time, and NULL elsewhere, unless the table has REPLICA IDENTITY FULL.

On Iceberg, DuckLake and PostgreSQL, changes from before a column was added have NULL for it, and no default.
A reader gives them that default.

`levada.testing.fold_changelog(schema, changes)` carries TOASTed values over, and returns the rows that the changes
add up to.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page. ``sample`` is a value in PostgreSQL's text."""

    sql: str
    oid: int
    sample: str
    typmod: int = -1

    @property
    def type(self) -> ColumnType:
        """The type to which the engine maps it."""
        return resolve_type(self.oid, self.typmod)


ROWS: Final = (
    Row("boolean", 16, "t"),
    Row("smallint", 21, "1"),
    Row("integer", 23, "1"),
    Row("bigint", 20, "1"),
    Row("oid", 26, "1"),
    Row("real", 700, "1.5"),
    Row("double precision", 701, "1.5"),
    Row("numeric(p, s), p at most 38", 1700, "1.50", ((10 << 16) | 2) + 4),
    Row("numeric without precision, or p above 38", 1700, "1.5"),
    Row('text, varchar(n), char(n), name, "char"', 25, "a"),
    Row("bytea", 17, "\\x00"),
    Row("date", 1082, "2026-01-02"),
    Row("time", 1083, "03:04:05"),
    Row("timestamp", 1114, "2026-01-02 03:04:05"),
    Row("timestamptz", 1184, "2026-01-02 03:04:05+00"),
    Row("uuid", 2950, "00000000-0000-0000-0000-000000000001"),
    Row("json, jsonb", 3802, "{}"),
    Row("array of a type above", 1007, "{1,NULL}"),
    Row("every other type: enum, range, composite, interval, timetz, inet, ...", 0, "a"),
)


def page() -> str:
    """Return the page."""
    return _HEAD + "\n".join(_lines()) + "\n" + _FOOT


def iceberg_type(kind: ColumnType) -> IcebergType:
    """Return the type of a column in a new Iceberg table."""
    column = Column(1, "c", kind, "", 0)
    schema = ReplicatedTableSchema(TableId(1), QualifiedTable("s", "t"), (column,), IdentityKind.FULL)
    return initial_layout(schema, TableMode.UPSERT).fields[0].type


def _lines() -> Iterator[str]:
    yield "| PostgreSQL | Arrow | Iceberg | Copied as | Widened to |"
    yield "|---|---|---|---|---|"
    for row in ROWS:
        iceberg = iceberg_type(row.type)
        copied = "binary" if row.type.kind in BINARY else "text"
        columns = (str(row.type.arrow), iceberg if isinstance(iceberg, str) else "list", copied, _widened(row))
        yield f"| {row.sql} | {' | '.join(columns)} |"


def _widened(row: Row) -> str:
    if row.type.kind is Kind.DECIMAL:
        return "numeric with no fewer digits before and after the point"
    if row.type.kind is Kind.ARRAY:
        return "array of a type to which the element is widened"
    to = [other for other in ROWS if other.type != row.type and widens(row.type, other.type)]
    return ", ".join(dict.fromkeys("text" if other.type.kind is Kind.TEXT else other.sql for other in to)) or "-"


if __name__ == "__main__":
    print(page(), end="")
