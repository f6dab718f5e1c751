"""Names in a manifest that are not those of replicated tables, and tables that a pattern leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from typing import Any, Final, Protocol

import psycopg
from psycopg import sql

from levada.postgres.problems import Problem, Severity
from levada.postgres.written_tables import WRITTEN
from levada.printable import listed
from levada.values import QualifiedTable

_KINDS: Final = {
    "v": "is a view",
    "m": "is a materialized view",
    "f": "is a foreign table",
    "S": "is a sequence",
    "i": "is an index",
    "I": "is an index",
    "c": "is a type",
}
_ABSENT: Final = "does not exist"
_LISTED: Final = 10
"""The number of tables that a message lists."""


# Without the tables that `levada.postgres.catalog.list_tables` leaves out for other reasons.
_UNLOGGED: Final = sql.SQL("""
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'u' AND NOT c.relispartition AND n.nspname !~ '^pg_'
    AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
    AND NOT {}
ORDER BY 1, 2
""").format(WRITTEN)

_PARTITIONS: Final = """
SELECT n.nspname, c.relname, rn.nspname, r.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = pg_catalog.pg_partition_root(c.oid)
JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.relispartition ORDER BY 3, 4, 1, 2
"""

_CASE_MATTERS: Final = "correct or remove it in spec.tables, where case matters"
_ONLY_STARS: Final = (
    "correct or remove it in spec.tables. It is no regular expression: * matches any characters, and any other"
    " character is itself"
)


class TablePattern(Protocol):
    """An entry of ``spec.tables``: a schema and a name, each with any number of ``*``. Its text has both."""

    @property
    def exact(self) -> QualifiedTable | None:
        """The table that is named, None with a ``*``."""

    @property
    def parts(self) -> tuple[str, str]:
        """The schema and the name as they are written."""

    def matches(self, table: QualifiedTable) -> bool:
        """Return True if the entry names the table."""


class IncludedPattern(TablePattern, Protocol):
    """An entry of ``spec.tables.include``."""

    @property
    def where(self) -> str | None:
        """The condition of the rows that are replicated, as SQL. None: all rows."""


@dataclass(frozen=True, slots=True)
class NamedTables:
    """The names in a manifest that should be those of tables. ``configured`` are those of its TableSyncs."""

    include: tuple[TablePattern, ...] = ()
    exclude: tuple[TablePattern, ...] = ()
    configured: tuple[QualifiedTable, ...] = ()

    def excludes(self, table: QualifiedTable) -> bool:
        """Return True if an entry excludes the table."""
        return any(pattern.matches(table) for pattern in self.exclude)


def unmatched_names(
    conn: psycopg.Connection[Any],
    named: NamedTables,
    possible: Sequence[QualifiedTable],
    selects: Callable[[QualifiedTable], bool],
) -> Iterator[Problem]:
    """Yield a warning for each name that has no effect, and one for all unlogged tables that are left out.

    ``possible`` are the tables that can be replicated, and ``selects`` says which of them are. Only the catalog is
    read, so no table is locked. An excluded pattern may match nothing: it is often a precaution. One that is written as
    a regular expression is none.
    """
    included = [t for p in named.include if (t := p.exact) is not None and selects(t)]
    for name, reason, hint in unselected_reasons(conn, included, possible):
        yield Problem(Severity.WARNING, "included_table_missing", f"spec.tables names {name}, which {reason}", hint)
    if any(map(selects, possible)):
        # Otherwise no table is selected at all, which is an error of its own.
        for pattern in dict.fromkeys(p for p in named.include if p.exact is None):
            if not any(map(pattern.matches, possible)):
                message = f"spec.tables.include has {pattern}, which matches no table that can be replicated"
                hint = _ONLY_STARS if _looks_like_regex(pattern) else _CASE_MATTERS
                yield Problem(Severity.WARNING, "pattern_without_table", message, hint)
    yield from _unlogged(conn, included, selects)
    yield from _excluded(conn, named, possible, selects)
    for name, reason, hint in unselected_reasons(conn, named.configured, possible, "the TableSync"):
        yield Problem(Severity.WARNING, "tablesync_without_table", f"a TableSync names {name}, which {reason}", hint)
    for name in sorted({*named.configured} & {*possible}):
        if not selects(name):
            message = f"a TableSync names {name}, which spec.tables does not select"
            hint = "include it in spec.tables, or remove the TableSync"
            yield Problem(Severity.WARNING, "tablesync_without_table", message, hint)


def _looks_like_regex(pattern: TablePattern) -> bool:
    """Return True if a part of the entry has characters that few names have and many regular expressions."""
    schema, name = pattern.parts
    return any(part.startswith("^") or ".*" in part or set(part) & set("\\|()[]+?") for part in (schema, name))


def _unlogged(
    conn: psycopg.Connection[Any], included: Sequence[QualifiedTable], selects: Callable[[QualifiedTable], bool]
) -> Iterator[Problem]:
    """Yield one problem for all unlogged tables that patterns match. Those that are named have one each."""
    found = [t for row in conn.execute(_UNLOGGED).fetchall() if selects(t := QualifiedTable(*row))]
    if not (left := [t for t in found if t not in included]):
        return
    hint = "; ".join(_set_logged(conn, t) for t in left[:_LISTED])
    message = f"spec.tables matches {listed(left)}, unlogged: their changes are not in the WAL, so they are left out"
    yield Problem(Severity.WARNING, "unlogged_tables_left_out", message, f"{hint}; or exclude them in spec.tables")


def _excluded(
    conn: psycopg.Connection[Any],
    named: NamedTables,
    possible: Sequence[QualifiedTable],
    selects: Callable[[QualifiedTable], bool],
) -> Iterator[Problem]:
    """Yield a problem for each name that excludes nothing, and for each table that has excluded partitions."""
    for pattern in dict.fromkeys(p for p in named.exclude if p.exact is None and _looks_like_regex(p)):
        if not any(map(pattern.matches, possible)):
            message = f"spec.tables.exclude has {pattern}, which matches no table that can be replicated"
            yield Problem(Severity.WARNING, "excluded_table_missing", message, _ONLY_STARS)
    excluded = [t for p in named.exclude if (t := p.exact) is not None]
    for name, reason, hint in unselected_reasons(conn, excluded, possible):
        # What exists and is not replicated is left out, as its exclusion wants it.
        if reason == _ABSENT:
            message = f"spec.tables.exclude names {name}, which {reason}, so it excludes nothing"
            yield Problem(Severity.WARNING, "excluded_table_missing", message, hint)
    if not named.exclude:
        return
    pairs = [(QualifiedTable(*row[:2]), QualifiedTable(*row[2:])) for row in conn.execute(_PARTITIONS).fetchall()]
    kept = set(possible)
    for root, group in groupby(pairs, key=lambda pair: pair[1]):
        partitions = [partition for partition, _ in group if partition not in kept and named.excludes(partition)]
        if partitions and root in kept and selects(root):
            yield Problem(
                Severity.WARNING,
                "excluded_table_missing",
                f"spec.tables.exclude matches partitions of {root}, which is selected: {listed(partitions)}. Their"
                " rows are copied with it",
                f"exclude {root} in spec.tables, or ALTER TABLE … DETACH PARTITION",
            )


def _set_logged(conn: psycopg.Connection[Any], table: QualifiedTable) -> str:
    return sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(table.schema, table.name)).as_string(conn)


def unselected_reasons(
    conn: psycopg.Connection[Any],
    named: Sequence[QualifiedTable],
    possible: Sequence[QualifiedTable],
    where: str = "spec.tables",
) -> Iterator[tuple[QualifiedTable, str, str]]:
    """Yield each of the named tables that cannot be replicated, with the reason and with what to do.

    ``possible`` are the tables that can be replicated, and ``where`` is what names them.
    """
    missing = sorted(set(named) - set(possible))
    rows = conn.execute(
        """
        SELECT n.nspname, c.relname, c.relkind, c.relpersistence, c.relispartition,
            CASE WHEN c.relispartition THEN (
                SELECT ARRAY[rn.nspname, r.relname] FROM pg_catalog.pg_class r
                JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
                WHERE r.oid = pg_catalog.pg_partition_root(c.oid)) END
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON n.nspname = schema AND c.relname = name""",
        [[t.schema for t in missing], [t.name for t in missing]],
    ).fetchall()
    found = {QualifiedTable(schema, name): row for schema, name, *row in rows}
    for table in missing:
        if table not in found:
            yield table, _ABSENT, _correction(table, possible, where)
            continue
        kind, persistence, partition, root = found[table]
        if partition and root is not None:
            yield table, "is a partition", f"name its root, {QualifiedTable(*root)}, in {where}"
        elif kind in _KINDS:
            yield table, f"{_KINDS[kind]}, not a table", f"remove it from {where}"
        elif persistence == "u":
            yield table, "is unlogged, so its changes are not in the WAL", f"{_set_logged(conn, table)};"
        else:
            what = "is a table of the system, of an extension or of Levada"
            yield table, what, f"remove it from {where}"


def _correction(table: QualifiedTable, possible: Sequence[QualifiedTable], where: str) -> str:
    by_text = {str(t).lower(): t for t in reversed(possible)}
    close = get_close_matches(str(table).lower(), by_text, n=1, cutoff=0.75)
    if close:
        return f"did you mean {by_text[close[0]]}? Correct {where}"
    return f"create the table, or correct {where}, whose names are case-sensitive"
