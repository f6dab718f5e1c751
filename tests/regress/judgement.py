"""The judgement of a run of the suite with Levada: what it changed, and which tables it has wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, LiteralString

from tests.regress.suite import SuiteRun
from tests.rigs.database import Database

LIST_ALL: Final = frozenset({"opr_sanity", "publication", "event_trigger"})
"""The tests whose results list all functions, publications and event triggers, and so those of Levada."""

PARKED: Final[Mapping[str, str]] = {}
"""The codes of tables that may be parked in the end, and why that is right. None is."""

NOT_COMPARED: Final[Mapping[str, str]] = {
    "verify_unsupported": "the key has a generated column, which 15 does not stream. So the table is a changelog",
}
"""The codes of `levada verify` for tables that it may leave out, and why."""

_WITHOUT_IDENTITY: Final[LiteralString] = """
SELECT n.nspname || '.' || c.relname,
       c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
           AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
           AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''
               AND a.attnum = ANY (i.indkey::int2[])))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname !~ '^(pg_|levada$|information_schema$)'
"""


def full_name(table: Mapping[str, Any]) -> str:
    """Return the name of a table of the progress, with its schema."""
    return f"{table['schema']}.{table['name']}"


def changed_results(without: SuiteRun, with_levada: SuiteRun) -> Iterator[str]:
    """Yield each test whose result is another one with Levada, but for those that list all objects."""
    for test in sorted(without.tests ^ with_levada.tests):
        yield f"test {test} ran only {'without' if test in without.tests else 'with'} Levada"
    for test in sorted((without.failed ^ with_levada.failed) - LIST_ALL):
        yield f"test {test} fails only {'without' if test in without.failed else 'with'} Levada"


def wrong_tables(tables: Sequence[Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield each table that is neither equal to the source nor parked or left out of the comparison for a known reason.

    ``tables`` are those of the progress, and ``reports`` those of `levada verify`.
    """
    for table in tables:
        name, code = full_name(table), (table["error"] or {}).get("code", "")
        if table["phase"] != "Ready":
            if code not in PARKED:
                yield f"table {name} is {table['phase']}: {table['error']}"
            continue
        report = reports.get(name, {})
        left_out = (report.get("error") or {}).get("code", "")
        if left_out not in NOT_COMPARED and not report.get("equal"):
            yield f"table {name} is Ready and not equal: {dict(report)}"


def left_out(db: Database, tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield the tables that are not replicated, and whether they have an identity, so that they should be."""
    replicated = {full_name(table) for table in tables}
    for name, has_identity in db.query(_WITHOUT_IDENTITY):
        if name not in replicated:
            yield name, has_identity
