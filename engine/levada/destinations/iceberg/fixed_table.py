"""One snapshot of an Iceberg table, whose checksums Spark computes by Iceberg's own reader.

The reader is the one of Spark's users, and shares no code with the writing side. The canonical text of values is
defined in `levada.destinations.verification`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from levada.destinations.decimal_text import decimal_text
from levada.destinations.iceberg.java import java_errors
from levada.destinations.iceberg.metadata import Property
from levada.destinations.verification import (
    CHUNK,
    CHUNKS,
    DIGEST,
    KEY,
    KEY_HASH,
    ROWS,
    SAMPLE_PARTS,
    Comparison,
    FixedTable,
    column_digest,
    is_framed_by_length,
)
from levada.schema import Column, ColumnType, Kind
from levada.schema.changes import COMMIT_LSN, OP, ORDINAL
from levada.values import Lsn, TableMode

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

    from levada.destinations.iceberg.table import IcebergTable

_SINCE_2000_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970, both in UTC."""
_PLAIN_SCALE: Final = 6
"""Up to this scale Java writes no decimal with an exponent."""
_COUNT: Final = "_levada_count"
_SESSION: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


class IcebergSnapshot(FixedTable):
    """The rows of one snapshot.

    ``session`` is a session of its own, as `verification_session` returns it, with the catalog's name ``catalog``.
    """

    def __init__(self, session: SparkSession, table: IcebergTable, catalog: str, *, keeps_columns: bool) -> None:
        metadata = table.metadata
        self._session = session
        self._name = ".".join(map(_quoted, (catalog, *table.name.namespace, table.name.name)))
        self._table = str(table.name)
        self._snapshot = metadata.snapshot_id
        held = metadata.schemas.get(table.current_schema_id() or 0, {})
        current = {f.id: f.name for f in metadata.layout.fields}
        attnums = metadata.layout.attnums
        self.columns: Mapping[int, str] = {a: current[i] for a, i in attnums.items() if i in current}
        self.applied = metadata.mark.lsn if metadata.mark is not None else Lsn(0)
        self.keeps_columns = keeps_columns
        self.estimated_rows = metadata.facts.rows
        self.is_history = metadata.properties.get(Property.MODE.value) == TableMode.CHANGELOG.value
        self._read_as = {a: held.get(i) for a, i in attnums.items()}
        """The name of each column in the snapshot's schema. None if it is newer than the snapshot, and so NULL."""

    def chunks(self, comparison: Comparison) -> pa.Table:
        """Return the checksums of all rows by chunk, in the schema `CHUNKS`."""
        from pyspark.sql import functions as F

        if self._snapshot is None:
            return CHUNKS.empty_table()
        rows = self._hashed(comparison).groupBy((F.col(KEY_HASH) % comparison.chunks).alias(CHUNK))
        return self._collect(rows.agg(_count(), _sum(F.col(DIGEST), DIGEST)), CHUNKS)

    def rows(self, comparison: Comparison, chunks: Sequence[int]) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        from pyspark.sql import functions as F

        if self._snapshot is None:
            return comparison.rows_schema.empty_table()
        hashed = self._hashed(comparison).where((F.col(KEY_HASH) % comparison.chunks).isin(list(chunks)))
        digests = [_sum(_hash(F.col(_frame_name(c))), column_digest(c.attnum)) for c in comparison.columns]
        rows = hashed.groupBy(KEY_HASH).agg(
            F.min(KEY).alias(KEY), _count(), _sum(F.col(DIGEST), DIGEST), *digests
        )
        return self._collect(rows, comparison.rows_schema)

    def _collect(self, rows: DataFrame, layout: pa.Schema) -> pa.Table:
        with java_errors(f"read {self._table}"):
            return rows.select(*layout.names).toArrow().cast(layout)

    def _hashed(self, comparison: Comparison) -> DataFrame:
        """Return the framed columns, the hash and the text of the key, and the hash that the row adds."""
        from pyspark.sql import functions as F

        with java_errors(f"read {self._table}"):
            rows = self._session.read.option("versionAsOf", str(self._snapshot)).table(self._name)
            framed = self._counted(rows).select(
                *(self._framed(rows, c).alias(_frame_name(c)) for c in comparison.columns),
                _COUNT,
                _shown([self._value(c) for c in comparison.key]).alias(KEY),
            )
        key = _hash(_joined(comparison.identity))
        row = _hash(_joined(comparison.columns))
        hashed = framed.withColumn(KEY_HASH, key)
        if not comparison.key or comparison.sample >= SAMPLE_PARTS:
            return hashed.withColumn(DIGEST, row)
        part = (F.expr(f"{KEY_HASH} div {comparison.chunks}") + comparison.offset) % SAMPLE_PARTS
        return hashed.withColumn(DIGEST, F.when(part < comparison.sample, row).otherwise(F.col(KEY_HASH)))

    def _counted(self, rows: DataFrame) -> DataFrame:
        """Add how often a row counts: -1 for the old row of a changelog. Rows from before a TRUNCATE are left out."""
        from pyspark.sql import functions as F

        if not self.is_history:
            return rows.withColumn(_COUNT, F.lit(1))
        truncate = F.when(F.col(OP) == "T", F.struct(COMMIT_LSN, ORDINAL))
        last = rows.agg(F.max(truncate).alias("last")).first()
        if last is not None and last["last"] is not None:
            lsn, ordinal = last["last"]
            later = (F.col(COMMIT_LSN) > lsn) | ((F.col(COMMIT_LSN) == lsn) & (F.col(ORDINAL) > ordinal))
            rows = rows.where(later)
        return rows.withColumn(_COUNT, F.when(F.col(OP) == "D", F.lit(-1)).otherwise(F.lit(1)))

    def _value(self, column: Column) -> SparkColumn:
        from pyspark.sql import functions as F

        name = self._read_as.get(column.attnum)
        return F.lit(None) if name is None else F.col(_quoted(name))

    def _framed(self, rows: DataFrame, column: Column) -> SparkColumn:
        from pyspark.sql import functions as F

        name = self._read_as.get(column.attnum)
        if name is None:
            return F.lit("~|")
        kind = rows.schema[name].dataType.simpleString()
        return _frame(_text(F.col(_quoted(name)), column.type, kind), column.type)


def verification_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session in the same JVM whose settings do not depend on the user's. ``conf`` defines its catalog."""
    session = spark.newSession()
    for key, value in {**conf, **_SESSION}.items():
        session.conf.set(key, value)
    return session


def _frame_name(column: Column) -> str:
    return f"frame_{column.attnum}"


def _joined(columns: Sequence[Column]) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.concat(*(F.col(_frame_name(c)) for c in columns))


def _shown(values: Sequence[SparkColumn]) -> SparkColumn:
    from pyspark.sql import functions as F

    if not values:
        return F.lit("[]")
    return F.to_json(F.array(*(v.cast("string") for v in values)))


def _hash(text: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.conv(F.substring(F.md5(text.cast("binary")), 1, 15), 16, 10).cast("long")


def _sum(hashes: SparkColumn, name: str) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.sum(hashes.cast("decimal(20,0)") * F.col(_COUNT)).cast("decimal(38,0)").alias(name)


def _count() -> SparkColumn:
    from pyspark.sql import functions as F

    return F.sum(F.col(_COUNT).cast("long")).alias(ROWS)


def _frame(text: SparkColumn, kind: ColumnType) -> SparkColumn:
    from pyspark.sql import functions as F

    sized = F.concat(F.octet_length(text).cast("string"), F.lit(":"), text) if is_framed_by_length(kind) else text
    return F.coalesce(F.concat(sized, F.lit("|")), F.lit("~|"))


def _text(value: SparkColumn, kind: ColumnType, stored: str) -> SparkColumn:
    """Return the canonical text. ``stored`` is Spark's name of the value's type."""
    from pyspark.sql import functions as F

    match kind.kind:
        case Kind.FLOAT4 | Kind.FLOAT8:
            return _float_text(value.cast("double"), float_bits()(value.cast("double")))
        case Kind.DECIMAL:
            return value.cast("string") if kind.scale <= _PLAIN_SCALE else decimal_texts()(value)
        case Kind.BYTEA:
            return F.md5(value)
        case Kind.DATE:
            return F.unix_date(value).cast("string")
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _hexadecimal(F.unix_micros(value.cast("timestamp")) - F.lit(_SINCE_2000_US))
        case Kind.ARRAY:
            assert kind.element is not None
            return _array_text(value, kind.element, stored)
    return value.cast("string")


def _float_text(value: SparkColumn, bits: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.when(F.isnan(value), F.lit("nan")).otherwise(_hexadecimal(bits))


def _array_text(value: SparkColumn, element: ColumnType, stored: str) -> SparkColumn:
    from pyspark.sql import functions as F

    inner = stored.removeprefix("array<").removesuffix(">")
    if element.kind in (Kind.FLOAT4, Kind.FLOAT8):
        doubles = value.cast("array<double>")
        framed = F.zip_with(doubles, listed_float_bits()(doubles), lambda v, b: _frame(_float_text(v, b), element))
    elif element.kind is Kind.DECIMAL and element.scale > _PLAIN_SCALE:
        framed = F.transform(listed_decimal_texts()(value), lambda e: _frame(e, element))
    else:
        framed = F.transform(value, lambda e: _frame(_text(e, element, inner), element))
    return F.concat(F.lit("["), F.array_join(framed, ""), F.lit("]"))


def _hexadecimal(number: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.lower(F.lpad(F.hex(number), 16, "0"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# -- what Spark has no function for, by the column in Arrow


def _bits(values: pa.Array) -> pa.Array:  # runs in a Python worker
    return values.view(pa.int64())


def _listed_bits(values: pa.ListArray) -> pa.Array:  # runs in a Python worker
    return _mapped(values, _bits(values.values))


def _listed_decimals(values: pa.ListArray) -> pa.Array:  # runs in a Python worker
    return _mapped(values, decimal_text(values.values))


def _mapped(values: pa.ListArray, elements: pa.Array) -> pa.ListArray:
    """Return the lists with other elements, one for each element of ``values.values``."""
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(values.offsets, elements, mask=mask)


def float_bits() -> Any:
    """Return Spark's function from a double to its bits as a long."""
    return _function(_bits, "bigint")


def listed_float_bits() -> Any:
    """Return Spark's function from a list of doubles to the list of their bits."""
    return _function(_listed_bits, "array<bigint>")


def decimal_texts() -> Any:
    """Return Spark's function from a decimal to its text without an exponent."""
    return _function(decimal_text, "string")


def listed_decimal_texts() -> Any:
    """Return Spark's function from a list of decimals to the list of their texts."""
    return _function(_listed_decimals, "array<string>")


def _function(work: Callable[[Any], pa.Array], result: str) -> Any:
    from pyspark.sql.pandas.functions import arrow_udf

    return arrow_udf(work, result)
