"""The casts by which a query's statements retype columns, read by PostgreSQL's own parser. Pure.

A client's query may have several statements, and an announcement does not say which of them it is about. But each names
the columns that it retypes. So a column that the announced statement retypes has at most the worst cast that any
statement of the query gives to a column of that name, in whatever table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any


class Cast(enum.IntEnum):
    """The way in which a statement makes the new values of a column, the worst last."""

    OWN = 0
    """By PostgreSQL's cast to the new type, without an expression or by ``USING column::new_type``."""
    TEXT = 1
    """By ``USING column::text::new_type``."""
    OTHER = 2
    """By any other expression."""


# Each ALTER TABLE of a query is announced with the whole query.
@lru_cache(maxsize=8)
def read_retypes(query: str) -> Mapping[str, Cast]:
    """Return the cast of each column that a query retypes. Nothing is known of a query that the parser refuses."""
    # The parser is loaded when somebody retypes a column, and not before.
    from google.protobuf.message import DecodeError
    from postgast import PgQueryError, parse

    try:
        statements = parse(query).stmts
    except (PgQueryError, DecodeError, ValueError):
        # A newer server's syntax, expressions that are nested too deeply, text that is no Unicode.
        return {}
    found: dict[str, Cast] = {}
    for statement in statements:
        for name, cast in _retyped(statement.stmt):
            found[name] = max(cast, found.get(name, cast))
    return found


def _retyped(statement: Any) -> Iterator[tuple[str, Cast]]:
    from postgast.pg_query_pb2 import AT_AlterColumnType

    for node in statement.alter_table_stmt.cmds:
        if (command := node.alter_table_cmd).subtype == AT_AlterColumnType:
            yield command.name, _cast(command)


def _cast(command: Any) -> Cast:
    definition = getattr(command, "def").column_def
    if definition.HasField("coll_clause"):
        return Cast.OTHER
    if not definition.HasField("raw_default"):
        return Cast.OWN
    casts: list[Any] = []
    arg = definition.raw_default
    while arg.HasField("type_cast"):
        casts.insert(0, arg.type_cast.type_name)
        arg = arg.type_cast.arg
    # A column that is qualified by its table has more than one field.
    if not arg.HasField("column_ref") or arg.column_ref.fields[-1].string.sval != command.name:
        return Cast.OTHER
    new = _name(definition.type_name)
    match [_name(c) for c in casts]:
        case []:
            return Cast.OWN
        case [last] if last == new is not None:
            return Cast.OWN
        case [("text",), last] if last == new is not None:
            return Cast.TEXT
    return Cast.OTHER


def _name(given: Any) -> tuple[str, ...] | None:
    """Return the parts of a type's name, and None for one with a modifier, to which a cast may cut values."""
    if given.typmods or given.array_bounds:
        return None
    return tuple(n.string.sval for n in given.names)
