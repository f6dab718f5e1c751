"""The rows and columns that a destination has to have of a table, as a temporary view at the source.

A publication leaves out rows by a filter and columns by a list. Masks change values. The view says so in SQL, from
PostgreSQL's manual and `docs/guides/masks.md`, and shares no code with the engine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from tests.rigs.equality import only

KEY: Final = "00112233445566778899aabbccddeeff" * 2
"""The key of HMAC. Its text is the key, as of any file in a Secret."""
_BLOCK: Final = 64
"""Bytes of a block of SHA-256."""
_WORD: Final = re.compile(r"levada:mask=(hmac|null|truncate|last)(?::(\d+))?")
_Mask = tuple[str, int]
"""The word of a mask, empty for none, and its length."""
_COLUMNS: Final = """
SELECT a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), coalesce(col_description(a.attrelid, a.attnum), ''),
    a.attgenerated::text
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    AND (a.attgenerated = '' OR a.attgenerated = 's' AND %s)
ORDER BY a.attnum
"""
_LIMITS: Final = """
SELECT r.prattrs::int2[], pg_get_expr(r.prqual, r.prrelid) FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = %s AND p.pubname = %s
"""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Watched:
    """A table at both sides. ``place`` is its name at the destination. ``key`` are the columns of its primary key.

    ``schema``, ``name`` and ``compared`` are those of the relation with which it is compared.
    """

    oid: int
    schema: str
    name: str
    place: str
    changelog: bool
    key: tuple[str, ...]
    compared: int
    numbers: Mapping[str, Set[int]] = field(default_factory=dict)
    """The attnums that had each name, of a table whose changes of columns are not propagated."""


def expected(
    source: psycopg.Connection[Any],
    table: Watched,
    publication: str,
    *,
    generated: bool,
    edit: Mapping[str, Any] | None = None,
) -> Watched:
    """Return what to compare with the destination: the table itself, or a view that ends with the session.

    With ``generated``, columns that PostgreSQL computes and stores are replicated. ``edit`` has the columns of the
    table's TableSync, to which its publication has to conform.
    """
    listed, condition = None, None
    if source.info.server_version >= 150000 and edit is None:
        listed, condition = source.execute(_LIMITS, [table.oid, publication]).fetchone() or (None, None)
    found = source.execute(_COLUMNS, [table.oid, generated]).fetchall()
    masks, excluded = ((edit or {}).get(what, {}) for what in ("mask", "exclude"))
    columns = [
        (name, kind, _of_manifest(masks[name]) if name in masks else _of_comment(comment))
        for name, number, kind, comment, _ in found
        if (listed is None or number in listed) and name not in excluded
    ]
    plain = not any(word for *_, (word, _) in columns) and not any(computed for *_, computed in found)
    if listed is None and condition is None and plain and not excluded:
        return table
    view = f"expected_{next(_numbers)}"
    chosen = [sql.SQL("{} AS {}").format(_masked(n, kind, mask), sql.Identifier(n)) for n, kind, mask in columns]
    [(kind,)] = source.execute("SELECT relkind::text FROM pg_class WHERE oid = %s", [table.oid]).fetchall()
    source.execute(
        sql.SQL("CREATE TEMP VIEW {} AS SELECT {} FROM {} {} WHERE {}").format(
            sql.Identifier(view), sql.SQL(", ").join(chosen), sql.SQL("" if kind == "p" else "ONLY"),
            sql.Identifier(table.schema, table.name), sql.SQL(condition or "true"),
        )
    )  # fmt: skip
    [(oid,)] = source.execute("SELECT %s::regclass::oid::int", [f"pg_temp.{view}"]).fetchall()
    return replace(table, schema="pg_temp", name=view, compared=oid)


def as_held(source: psycopg.Connection[Any], found: pa.Table, table: Watched) -> tuple[pa.Table, Watched]:
    """Return what was read of a table whose changes of columns are not propagated, and a view that has to be equal.

    A column that the source has dropped is left out, and one of whose name the source had several.
    """
    now = {number: name for name, number, *_ in source.execute(_COLUMNS, [table.oid, True]).fetchall()}
    there = {name for name, *_ in source.execute(_COLUMNS, [table.compared, True]).fetchall()}
    chosen: list[sql.Composable] = []
    for name in found.column_names:
        numbers = table.numbers.get(name, frozenset())
        [number] = numbers if len(numbers) == 1 else [0]
        if now.get(number) in there:
            chosen.append(sql.SQL("{} AS {}").format(sql.Identifier(now[number]), sql.Identifier(name)))
        elif numbers:
            found = found.drop_columns(name)
    view = f"held_{next(_numbers)}"
    source.execute(
        sql.SQL("CREATE TEMP VIEW {} AS SELECT {} FROM {} {}").format(
            sql.Identifier(view), sql.SQL(", ").join(chosen), only(source, table.schema, table.name),
            sql.Identifier(table.schema, table.name),
        )
    )  # fmt: skip
    [(oid,)] = source.execute("SELECT %s::regclass::oid::int", [f"pg_temp.{view}"]).fetchall()
    return found, replace(table, schema="pg_temp", name=view, compared=oid)


def _of_comment(comment: str) -> _Mask:
    found = _WORD.search(comment)
    return (found[1], int(found[2] or 0)) if found else ("", 0)


def _of_manifest(mask: Mapping[str, Any]) -> _Mask:
    return mask["method"].lower(), mask.get("length", 0)


def _masked(name: str, kind: str, mask: _Mask) -> sql.Composable:
    column = sql.Identifier(name)
    match mask:
        case "null", _:
            return sql.SQL("NULL::{}").format(sql.SQL(kind))
        case "truncate", length:
            return sql.SQL("left({}::text, {})").format(column, sql.Literal(length))
        case "last", length:
            return sql.SQL("right({}::text, {})").format(column, sql.Literal(length))
        case "hmac", _:
            inner, outer = (bytes(k ^ pad for k in KEY.encode().ljust(_BLOCK, b"\0")) for pad in (0x36, 0x5C))
            return sql.SQL(
                "encode(sha256({}::bytea || sha256({}::bytea || convert_to({}::text, 'UTF8'))), 'hex')"
            ).format(sql.Literal(outer), sql.Literal(inner), column)
    return column
