"""The casts by which a query's statements retype columns, read by PostgreSQL's own parser, and times that get a zone.

Pure.

A client's query may have several statements, and an announcement does not say which of them it is about. But each names
the columns that it retypes. So a column that the announced statement retypes has a cast that covers those which all
statements of the query give to columns of that name, in whatever table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from levada.errors import NeedsOperator
from levada.schema.table import ReplicatedTableSchema
from levada.schema.types import MOMENTS
from levada.values import resync_command

_UTC: Final = frozenset({"UTC", "ETC/UTC"})
"""Names of the zone in which a moment and its wall-clock time have the same number of microseconds."""


class Cast(enum.IntEnum):
    """The way in which a statement makes the new values of a column."""

    OWN = 0
    """By PostgreSQL's cast to the new type, without an expression or by ``USING column::new_type``."""
    TEXT = 1
    """By ``USING column::text::new_type``."""
    UTC = 2
    """By ``USING column AT TIME ZONE 'UTC'``."""
    OTHER = 3
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
            found[name] = _both(cast, found.get(name, cast))
    return found


def require_known_zone(before: ReplicatedTableSchema, now: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator ``table_rewritten`` for a column of times that got or lost its time zone.

    The columns of a version do not show in which zone PostgreSQL has converted the rows. An announced statement does.
    """
    for column in now.columns:
        old = before.by_attnum.get(column.attnum)
        if old is not None and {old.type.kind, column.type.kind} == MOMENTS:
            raise NeedsOperator(
                "table_rewritten",
                f"{now.name}: column {column.name} changed from {old.type_name} to {column.type_name}, and nothing"
                " shows in which time zone",
                hint=f"copy the table again: {resync_command(now.name)}",
            )


def _both(one: Cast, other: Cast) -> Cast:
    """Return the cast that covers both. A cast to text covers PostgreSQL's own, and no other one covers another."""
    return max(one, other) if one is other or {one, other} <= {Cast.OWN, Cast.TEXT} else Cast.OTHER


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
    if not casts and arg.HasField("func_call"):
        return Cast.UTC if _is_in_utc(arg.func_call, command.name) else Cast.OTHER
    if not _is_column(arg, command.name):
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


def _is_column(node: Any, name: str) -> bool:
    # A column that is qualified by its table has more than one field.
    return bool(node.HasField("column_ref") and node.column_ref.fields[-1].string.sval == name)


def _is_in_utc(call: Any, column: str) -> bool:
    """Return True for ``column AT TIME ZONE 'UTC'``, which the parser gives as a function of PostgreSQL's own schema.

    A function ``timezone`` without a schema may be another one.
    """
    if [n.string.sval for n in call.funcname] != ["pg_catalog", "timezone"] or len(call.args) != 2:
        return False
    zone, moment = call.args
    known = zone.HasField("a_const") and zone.a_const.HasField("sval") and zone.a_const.sval.sval.upper() in _UTC
    return bool(known and _is_column(moment, column))


def _name(given: Any) -> tuple[str, ...] | None:
    """Return the parts of a type's name, and None for one with a modifier, to which a cast may cut values."""
    if given.typmods or given.array_bounds:
        return None
    return tuple(n.string.sval for n in given.names)
