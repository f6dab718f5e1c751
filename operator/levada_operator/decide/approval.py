"""Changes of a manifest that copy tables again: what they cost, and whether they wait for an approval.

The Resync fields of the Pipeline and of its TableSyncs count. A changed resyncNonce does not, because it requests the
copy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from levada.spec import Manifests
from levada.spec.resyncs import resync_fields, table_settings
from levada.values import QualifiedTable
from levada_operator.decide.phase import COPYING, TableSyncPhase
from levada_operator.decide.rounding import count_text, seconds_text, size_text
from levada_operator.decide.table_phase import table_of
from levada_operator.names import APPROVE, digest
from levada_operator.observe.objects import PipelineObject, TableSyncObject
from levada_operator.observe.observed import Observed

_MAX_NAMES: Final = 10
_UNCOPIED: Final = frozenset(map(str, (TableSyncPhase.PENDING, TableSyncPhase.REMOVED, *COPYING)))


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    """Changed fields that copy ``tables`` again. ``digest`` identifies the change, with the versions of its objects."""

    fields: tuple[str, ...]
    tables: tuple[QualifiedTable, ...]
    digest: str


def copied_tables(observed: Observed) -> frozenset[QualifiedTable]:
    """Return the tables that have a copy: as the driver reports them, or else by the status of their TableSyncs."""
    if observed.progress is not None:
        return frozenset(t.table for t in observed.progress.tables if t.phase not in _UNCOPIED)
    return frozenset(table_of(t) for t in observed.table_syncs if t.status.get("phase", "Pending") not in _UNCOPIED)


def resync_request(
    pipeline: PipelineObject,
    table_syncs: Sequence[TableSyncObject],
    copied: Collection[QualifiedTable],
    before: Manifests,
    after: Manifests,
) -> ResyncRequest | None:
    """Return what the change from ``before`` to ``after`` copies again, or None for nothing.

    ``copied`` are the tables that have a copy. A table with former settings, of which nothing is known, counts too.
    """
    fields: list[str] = []
    tables: set[QualifiedTable] = set()
    versions: list[str] = []
    if changed := resync_fields(before.pipeline.spec, after.pipeline.spec):
        fields += changed
        tables |= set(copied)
        versions.append(f"{pipeline.generation} {after.pipeline.spec.model_dump_json()}")
    objects, former = {table_of(t): t for t in table_syncs}, {t.spec.table.qualified for t in before.table_syncs}
    for table, old, new in table_settings(before, after):
        its = objects.get(table)
        unknown = table in former and (its is None or "phase" not in its.status)
        if (table in copied or unknown) and (changed := resync_fields(old, new, str(table))):
            fields += changed
            tables.add(table)
            version = "deleted" if its is None else f"{its.uid} {its.generation}"
            versions.append(f"{version} {new.model_dump_json()}")
    if not tables:
        return None
    named = sorted(tables)
    return ResyncRequest(tuple(fields), tuple(named), digest("\n".join([*fields, *map(str, named), *versions])))


def is_small(request: ResyncRequest, table_syncs: Sequence[TableSyncObject], limit: int | None) -> bool:
    """Return True if the last copies of the request's tables have at most ``limit`` bytes. Unset: no request is small.

    The size of a table is known if its last copy had rows. A driver that started after a copy reports it without rows.
    """
    copies = _last_copies(request, table_syncs)
    return limit is not None and all(c.get("rows") for c in copies) and sum(c["bytes"] for c in copies) <= limit


def cost_text(request: ResyncRequest, table_syncs: Sequence[TableSyncObject], at_once: int) -> str:
    """Return the changed fields, and the tables that they copy again with the size and the time of their last copies.

    ``at_once`` is the number of tables that are copied at the same time.
    """
    copies = _last_copies(request, table_syncs)
    known = [copy for copy in copies if copy.get("rows")]
    figures = [_counted(len(copies), "table")]
    if known:
        rows, size = sum(c["rows"] for c in known), sum(c["bytes"] for c in known)
        figures.append(f"{count_text(rows)} rows, {size_text(size)}")
    if known and len(known) < len(copies):
        figures.append(f"{_counted(len(copies) - len(known), 'table')} of unknown size")
    seconds = [c["rows"] / c["rowsPerSecond"] for c in known if c.get("rowsPerSecond")]
    if seconds:
        # No less than that of the slowest table.
        about = max(*seconds, sum(seconds) / max(1, at_once))
        figures.append(f"about {seconds_text(max(1, round(about)))} at the rate of the last copy")
    return f"{_listed(request.fields)}: copies again {', '.join(figures)}: {_listed(request.tables)}"


def approve_command(pipeline: PipelineObject, request: ResyncRequest) -> str:
    """Return the command that approves the request."""
    where = f"kubectl annotate pipeline {pipeline.name} -n {pipeline.namespace}"
    return f"{where} --overwrite {APPROVE}={request.digest}"


def _last_copies(request: ResyncRequest, table_syncs: Sequence[TableSyncObject]) -> list[dict[str, Any]]:
    """Return the last copy of each table of the request, empty if it is unknown."""
    statuses = {table_of(t): t.status.get("copy") or {} for t in table_syncs}
    return [statuses.get(table, {}) for table in request.tables]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _listed(names: Sequence[object]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(str, names[:_MAX_NAMES])) + more
