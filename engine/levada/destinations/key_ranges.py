"""Ranges of keys, which the source and a destination cut alike. Pure.

A range is given by two keys. Both sides have to order keys alike, whatever collation and index the source has. Numbers,
dates and moments have one order. Texts are compared by their bytes in UTF-8, and a uuid by its text. Keys with other
columns have no order that both sides share: a NULL, an array, a float or a masked text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from levada.pgoutput.copybinary import text_expression
from levada.schema import Column, Kind
from levada.schema.types import DATES, INTEGERS
from levada.values import OnUnrepresentable, quote_identifier

_EXACT: Final = INTEGERS | {Kind.UUID}
_UNBOUNDED: Final = DATES | {Kind.DECIMAL}
"""Kinds with values that a destination may have as NULL."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys above ``after`` and at most ``upto``, as texts of PostgreSQL. None: there is no such bound."""

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None


WHOLE: Final = KeyRange()
"""The range of all keys."""


def is_ordered(key: Sequence[Column], policy: OnUnrepresentable) -> bool:
    """Return True if both sides order the keys alike."""
    return bool(key) and all(_is_ordered(column, policy) for column in key)


def _is_ordered(column: Column, policy: OnUnrepresentable) -> bool:
    if column.nullable or column.mask is not None:
        return False
    kind = column.type.kind
    if kind in _UNBOUNDED:
        return policy is not OnUnrepresentable.NULL
    return kind in _EXACT or kind is Kind.TEXT


def has_index_order(key: Sequence[Column]) -> bool:
    """Return True if an index of the source has the order, so that a range costs no read of the whole table."""
    return all(column.type.kind is not Kind.TEXT for column in key)


def key_terms(key: Sequence[Column], *, utf8: bool) -> list[str]:
    """Return the expressions by which PostgreSQL orders the keys. ``utf8`` is that of `ChecksumSql`."""
    return [_term(column, utf8=utf8) for column in key]


def _term(column: Column, *, utf8: bool) -> str:
    if column.type.kind is not Kind.TEXT:
        return quote_identifier(column.name)
    text = f"({text_expression(column)})::text"
    return f'({text} COLLATE "C")' if utf8 else f"convert_to({text}, 'UTF8')"


def key_texts(key: Sequence[Column]) -> list[str]:
    """Return the expressions of the values of a key as the texts of a bound."""
    return [f"({text_expression(column)})::text" for column in key]


def range_conditions(key: Sequence[Column], between: KeyRange, *, utf8: bool) -> list[str]:
    """Return the conditions in PostgreSQL's SQL of the rows in the range."""
    row = _row(key_terms(key, utf8=utf8))
    bounds = ((">", between.after), ("<=", between.upto))
    return [f"{row} {sign} {_row(_literals(key, bound, utf8=utf8))}" for sign, bound in bounds if bound is not None]


def _literals(key: Sequence[Column], values: Sequence[str], *, utf8: bool) -> list[str]:
    # Without a type, a literal gets that of the column, also if the destination has another one than the source.
    plain = [_quoted(value) for value in values]
    return [
        f"convert_to({v}::text, 'UTF8')" if c.type.kind is Kind.TEXT and not utf8 else v
        for c, v in zip(key, plain, strict=True)
    ]


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    if "\\" not in text:
        return f"'{doubled}'"
    # Whether a plain literal has escapes depends on the session.
    return "E'" + doubled.replace("\\", "\\\\") + "'"


def _row(terms: Sequence[str]) -> str:
    return terms[0] if len(terms) == 1 else f"ROW({', '.join(terms)})"
