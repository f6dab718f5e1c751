"""Checks of a source before the publication and the slot are created."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import psycopg

from levada import codes
from levada.errors import NeedsOperator
from levada.postgres.catalog import streamed_tables
from levada.postgres.identity_remedies import identity_statements, publish_hint
from levada.postgres.preflight import PreflightRequest, find_problems, refuse
from levada.postgres.publications import inspect_coverage, leave_out_unidentified, read_publication
from levada.postgres.slots import inspect_slot, validate_slot
from levada.values import QualifiedTable

_READERS_PROBLEMS: Final = frozenset({codes.SELECT_PRIVILEGE_MISSING, codes.ROW_SECURITY})
"""Problems that matter only to a snapshot, because the replication stream does not need SELECT."""


def require_source(
    connection: psycopg.Connection[Any],
    slot: str,
    publication: str,
    required: AbstractSet[QualifiedTable],
    *,
    manage: bool,
    read: AbstractSet[QualifiedTable] = frozenset(),
) -> None:
    """Raise unless a stream of ``required`` and a snapshot of ``read`` can be opened. Change nothing.

    ``manage`` is True if the caller may create or extend the publication. Raise SlotLost ``slot_lost``. Raise
    NeedsOperator ``slot_foreign``, ``publication_missing``, ``publication_incomplete``, ``table_not_published``, or
    with the problems that the preflight finds.
    """
    status = inspect_slot(connection, slot)
    if status is not None:
        validate_slot(status, connection.info.dbname)
    _require_coverage(connection, publication, required, manage)
    published = _published(connection, publication)
    if missing := sorted(read - required - published):
        raise table_not_published(connection, publication, missing)
    concerned = required | read
    request = PreflightRequest(
        slot=slot,
        publication=publication,
        managed=manage and bool(required),
        selects=lambda table: not required or table in concerned,
        copy_tables=0,
    )
    ignored = {codes.NO_TABLES_SELECTED} | (frozenset() if read else _READERS_PROBLEMS)
    refuse(p for p in find_problems(connection, request) if p.code not in ignored)


def table_not_published(
    connection: psycopg.Connection[Any], publication: str, missing: Sequence[QualifiedTable]
) -> NeedsOperator:
    """Return the error for tables that are not in the publication."""
    _, unidentified = leave_out_unidentified(connection, publication, set(missing))
    return NeedsOperator(
        "table_not_published",
        f"publication {publication} lacks {', '.join(map(str, missing))}",
        hint=publish_hint(publication, missing, identity_statements(connection, unidentified).values()),
    )


def _published(connection: psycopg.Connection[Any], publication: str) -> frozenset[QualifiedTable]:
    if read_publication(connection, publication) is None:
        return frozenset()
    return frozenset(t.name for t in streamed_tables(connection, publication))


def _require_coverage(
    connection: psycopg.Connection[Any], publication: str, required: AbstractSet[QualifiedTable], manage: bool
) -> None:
    if not required:
        return
    report = inspect_coverage(connection, publication, required)
    if report.satisfied or (manage and report.manageable):
        return
    found = read_publication(connection, publication) is not None
    lacking = f"lacks {', '.join(map(str, report.missing))}" if found else "is missing"
    why = f": {'; '.join(report.blockers)}" if report.blockers else ""
    raise NeedsOperator(
        "publication_incomplete" if found else "publication_missing",
        f"publication {publication} {lacking}{why}",
        hint=" ".join(report.remediation),
    )
