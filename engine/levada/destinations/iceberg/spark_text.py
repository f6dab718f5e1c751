"""The canonical text of values as expressions of Spark, as `levada.destinations.verification` defines it.

The session's settings are those of `levada.destinations.iceberg.spark_checksums.verification_session`.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf

from levada.destinations.arrow_text import canonical_text as arrow_canonical_text
from levada.destinations.arrow_text import decimal_text
from levada.destinations.verification import is_framed_by_length
from levada.schema import ColumnType, Kind

_SINCE_2000_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970, both in UTC."""
_PLAIN_SCALE: Final = 6
"""Up to this scale Java writes no decimal with an exponent."""


def frame(text: SparkColumn, kind: ColumnType) -> SparkColumn:
    """Return the framed text of a value."""
    sized = sf.concat(sf.octet_length(text).cast("string"), sf.lit(":"), text) if is_framed_by_length(kind) else text
    return sf.coalesce(sf.concat(sized, sf.lit("|")), sf.lit("~|"))


def canonical_text(value: SparkColumn, kind: ColumnType, stored: str) -> SparkColumn:
    """Return the canonical text. ``stored`` is Spark's name of the value's type."""
    match kind.kind:
        case Kind.FLOAT4 | Kind.FLOAT8:
            return _float_text(value.cast("double"), float_bits()(value.cast("double")))
        case Kind.DECIMAL:
            return value.cast("string") if kind.scale <= _PLAIN_SCALE else decimal_texts()(value)
        case Kind.BYTEA:
            return sf.md5(value)
        case Kind.DATE:
            return sf.unix_date(value).cast("string")
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _hexadecimal(sf.unix_micros(value.cast("timestamp")) - sf.lit(_SINCE_2000_US))
        case Kind.ARRAY:
            assert kind.element is not None
            flat = kind.depth == 1 and not kind.element.parts
            return _array_text(value, kind.element, stored) if flat else nested_text(value, kind)
        case Kind.RANGE | Kind.MAP:
            return nested_text(value, kind)
    return value.cast("string")


def _float_text(value: SparkColumn, bits: SparkColumn) -> SparkColumn:
    return sf.when(sf.isnan(value), sf.lit("nan")).otherwise(_hexadecimal(bits))


def _array_text(value: SparkColumn, element: ColumnType, stored: str) -> SparkColumn:
    inner = stored.removeprefix("array<").removesuffix(">")
    if element.kind in (Kind.FLOAT4, Kind.FLOAT8):
        doubles = value.cast("array<double>")
        framed = sf.zip_with(doubles, listed_float_bits()(doubles), lambda v, b: frame(_float_text(v, b), element))
    elif element.kind is Kind.DECIMAL and element.scale > _PLAIN_SCALE:
        framed = sf.transform(listed_decimal_texts()(value), lambda e: frame(e, element))
    else:
        framed = sf.transform(value, lambda e: frame(canonical_text(e, element, inner), element))
    return sf.concat(sf.lit("["), sf.array_join(framed, ""), sf.lit("]"))


def _hexadecimal(number: SparkColumn) -> SparkColumn:
    return sf.lower(sf.lpad(sf.hex(number), 16, "0"))


# -- what Spark has no function for, by the column in Arrow


def _bits(values: pa.Array) -> pa.Array:  # runs in a Python worker
    return values.view(pa.int64())


def _listed_bits(values: pa.Array) -> pa.Array:  # runs in a Python worker
    return _mapped(values, _bits(values.values))


def _listed_decimals(values: pa.Array) -> pa.Array:  # runs in a Python worker
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


def nested_text(value: SparkColumn, kind: ColumnType) -> SparkColumn:
    """Return the canonical text of lists in lists, of ranges and lists of these, or of maps.

    One function has the whole text, because Spark calls no function of Python within ``transform``.
    """
    text: SparkColumn = _function(lambda values: arrow_canonical_text(values, kind), "string")(value)
    return text


def _function(work: Any, result: Any) -> Any:
    return arrow_udf(work, result)
