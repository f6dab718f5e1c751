"""The syntax of ``partitionBy`` and ``sortBy``: transforms of columns, as in Spark's SQL. Pure.

A column's name is bare, or in backquotes with each backquote doubled. This module is imported by the operator, so it
imports no Arrow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BARE: Final = r"[^\s`(),'\"]+"
_NAME: Final = rf"({_BARE}|`([^`]|``)+`)"
_TIME: Final = r"(year|years|month|months|day|days|hour|hours)"
_TERM: Final = rf"({_NAME}|{_TIME} *\( *{_NAME} *\)|(bucket|truncate) *\( *[1-9][0-9]{{0,8}} *, *{_NAME} *\))"
PARTITION_TERM: Final = rf"^ *{_TERM} *$"
SORT_TERM: Final = rf"^ *{_TERM}( +(asc|ASC|desc|DESC))?( +(nulls|NULLS) +(first|FIRST|last|LAST))? *$"
"""The complete syntax as regular expressions, which are also in the CRD. They need no look-around."""

_FUNCTION: Final = re.compile(rf"(?P<function>[a-z]+) *\( *((?P<number>[0-9]+) *, *)?(?P<name>{_NAME}) *\)")
_ORDER: Final = r"( +(?P<direction>asc|ASC|desc|DESC))?( +(nulls|NULLS) +(?P<nulls>first|FIRST|last|LAST))?"
_PARTITIONED: Final = re.compile(rf" *(?P<term>{_TERM}) *")
_SORTED: Final = re.compile(rf" *(?P<term>{_TERM}){_ORDER} *")
TIMES: Final = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class Term:
    """A transform of a column. ``transform`` is spelled as in Iceberg's metadata, as in ``bucket[16]``."""

    transform: str
    column: str


@dataclass(frozen=True, slots=True)
class SortTerm:
    """A term to sort by."""

    term: Term
    descending: bool
    nulls_first: bool


def parse_partition(text: str) -> Term:
    """Parse an entry of ``partitionBy``. Raise ValueError, whose message describes the syntax."""
    found = _PARTITIONED.fullmatch(text)
    if found is None:
        raise ValueError(
            "must be a column, or year, month, day or hour of a column, bucket(16, column) or truncate(10, column),"
            " with a name that has spaces or punctuation in backquotes"
        )
    return _term(found["term"])


def parse_sort(text: str) -> SortTerm:
    """Parse an entry of ``sortBy``. Raise ValueError, whose message describes the syntax.

    As in Spark, NULL is first in ascending order and last in descending order by default.
    """
    found = _SORTED.fullmatch(text)
    if found is None:
        raise ValueError(
            "must be a column or a transform as in partitionBy,"
            " then optionally asc or desc, and nulls first or nulls last"
        )
    descending = (found["direction"] or "").lower() == "desc"
    nulls = (found["nulls"] or ("last" if descending else "first")).lower()
    return SortTerm(_term(found["term"]), descending, nulls == "first")


def problem_of(terms: list[Term]) -> str | None:
    """Return why the terms cannot partition one table, or None."""
    if len(set(terms)) < len(terms):
        return "must not have an entry twice"
    times = [t.column for t in terms if t.transform in TIMES]
    if len(set(times)) < len(times):
        return "must have only one of year, month, day and hour of a column: the finest implies the others"
    return None


def _term(text: str) -> Term:
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return Term("identity", _unquoted(text))
    function, number = found["function"], found["number"]
    return Term(f"{function}[{int(number)}]" if number else function.removesuffix("s"), _unquoted(found["name"]))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
