"""The condition of a range of keys in Spark, in the order of `levada.destinations.key_ranges`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf

from levada.destinations.key_ranges import KeyRange
from levada.errors import NeedsOperator
from levada.schema import Column, Kind
from levada.schema.types import DATES, INTEGERS

_PLAIN: Final = re.compile(r"(\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?)(?:\+00)?")
"""A date or a moment as PostgreSQL and Spark both write it, in UTC."""
Term = tuple[SparkColumn, str, Column]
"""A column of the key: its value, the name of its type in Spark, and the column."""


def in_range(key: Sequence[Term], between: KeyRange) -> SparkColumn | None:
    """Return the condition of the rows in the range, None for all.

    Raise NeedsOperator ``verify_unsupported`` for a bound that Spark cannot read, such as a date before Christ.
    """
    conditions = []
    if between.after is not None:
        conditions.append(_beyond(key, between.after))
    if between.upto is not None:
        conditions.append(_upto(key, between.upto))
    whole: SparkColumn | None = None
    for condition in conditions:
        whole = condition if whole is None else whole & condition
    return whole


def _beyond(key: Sequence[Term], bound: Sequence[str]) -> SparkColumn:
    """Return the condition of the keys above the bound."""
    value, limit = _value(key[0]), _literal(key[0], bound[0])
    if len(key) == 1:
        return value > limit
    # The first part is that by which files are left out.
    return (value >= limit) & ((value > limit) | _beyond(key[1:], bound[1:]))


def _upto(key: Sequence[Term], bound: Sequence[str]) -> SparkColumn:
    """Return the condition of the keys that are at most the bound."""
    value, limit = _value(key[0]), _literal(key[0], bound[0])
    if len(key) == 1:
        return value <= limit
    return (value <= limit) & ((value < limit) | _upto(key[1:], bound[1:]))


def _value(term: Term) -> SparkColumn:
    value, _, column = term
    if column.type.kind is Kind.UUID:
        # Iceberg orders its own type uuid by signed numbers, so that this condition must not reach it.
        return sf.concat(value.cast("string"), sf.lit(""))
    return value


def _literal(term: Term, text: str) -> SparkColumn:
    _, spark_type, column = term
    kind = column.type.kind
    if kind in INTEGERS:
        return sf.lit(int(text))
    if kind in DATES:
        plain = _PLAIN.fullmatch(text)
        if plain is None:
            raise NeedsOperator("verify_unsupported", f"Spark cannot read the key {text} of column {column.name}")
        return sf.lit(plain[1]).cast(spark_type)
    return sf.lit(text).cast(spark_type) if kind is Kind.DECIMAL else sf.lit(text)
