"""Changes of a manifest that copy tables again: what they cost, and whether they wait for an approval.

The Resync fields of the Pipeline and of its TableSyncs count. A changed resyncNonce does not, because it requests the
copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from levada.spec import Manifests
from levada.spec.resyncs import resync_fields, table_settings
from levada.status import TableProgress
from levada.values import QualifiedTable
from levada_operator.decide.phase import TableSyncPhase
from levada_operator.decide.rounding import count_text, rounded_bytes, rounded_rows, seconds_text, size_text
from levada_operator.decide.table_phase import table_of, tables_known
from levada_operator.names import APPROVE, READY, digest, driver_name
from levada_operator.observe.objects import PipelineObject, TableSyncObject
from levada_operator.observe.observed import Observed

_MAX_NAMES: Final = 10
_UNKNOWN: Final = frozenset(map(str, (TableSyncPhase.PENDING, TableSyncPhase.INIT)))
"""The phases in which a table may have a copy, or a part of one that is continued."""


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    """Changed fields that copy ``tables`` again. ``digest`` identifies the change, with the versions of its objects.

    ``held`` are the tables whose own settings wait. ``unsure`` are those of them that may have no copy yet.
    """

    fields: tuple[str, ...]
    tables: tuple[QualifiedTable, ...]
    digest: str
    held: frozenset[QualifiedTable] = frozenset()
    unsure: frozenset[QualifiedTable] = frozenset()


def copied_tables(observed: Observed) -> frozenset[QualifiedTable]:
    """Return the tables with a copy that is complete or under way, because beginning it again has a cost.

    They are as the driver reports them, or else by the status of their TableSyncs. A driver that starts reports no
    table yet. The TableSyncs are Pending then, and keep the size of the last copy.
    """
    copied = {table_of(t): _was_copied(t) for t in observed.table_syncs}
    if observed.progress is not None:
        copied |= {
            t.table: _has_copy(t.phase, t.copy is not None and t.copy.rows > 0) for t in observed.progress.tables
        }
    return frozenset(table for table, was in copied.items() if was)


def possible_copies(observed: Observed) -> frozenset[QualifiedTable]:
    """Return the tables that no driver reports, while its list is not complete. Their status may be lost or forged."""
    if tables_known(observed):
        return frozenset()
    reported = () if observed.progress is None else (t.table for t in observed.progress.tables)
    return frozenset(map(table_of, observed.table_syncs)).difference(reported)


def was_ready(observed: Observed) -> bool:
    """Return True if a driver was Ready once, by the record of its StatefulSet."""
    live = observed.owned.get("StatefulSet", driver_name(observed.pipeline.name))
    return READY in (((live or {}).get("metadata") or {}).get("annotations") or {})


def _was_copied(table_sync: TableSyncObject) -> bool:
    copy = table_sync.status.get("copy") or {}
    return _has_copy(table_sync.status.get("phase", "Pending"), bool(copy.get("rows") or copy.get("percent")))


def _has_copy(phase: str, begun: bool) -> bool:
    return begun if phase in _UNKNOWN else phase != TableSyncPhase.REMOVED


def resync_request(observed: Observed, before: Manifests, after: Manifests) -> ResyncRequest | None:
    """Return what the change from ``before`` to ``after`` copies again, or None for nothing.

    A field counts for every table that may have a copy, and one of the Pipeline also while no table is known of a
    driver that was Ready. Before that, a TableSync's own new settings count as its status says, which may be forged
    only where there is nothing to copy again.
    """
    pipeline, table_syncs, copied = observed.pipeline, observed.table_syncs, copied_tables(observed)
    possible = possible_copies(observed)
    fields: list[str] = []
    tables: set[QualifiedTable] = set()
    held, unsure = set(copied), set[QualifiedTable]()
    versions: list[str] = []
    unknown_tables = False
    if changed := resync_fields(before.pipeline.spec, after.pipeline.spec):
        fields += changed
        tables |= copied | possible
        unknown_tables = not (tables or tables_known(observed)) and was_ready(observed)
        versions.append(f"{pipeline.generation} {after.pipeline.spec.model_dump_json()}")
    objects, former = {table_of(t): t for t in table_syncs}, {t.spec.table.qualified for t in before.table_syncs}
    for table, old, new in table_settings(before, after):
        its = objects.get(table)
        may_be = table in possible and (table in former or was_ready(observed))
        gone = its is None and table in former
        if (table in copied or may_be or gone) and (changed := resync_fields(old, new, str(table))):
            fields += changed
            tables.add(table)
            held.add(table)
            unsure |= {table} & possible
            version = "deleted" if its is None else f"{its.uid} {its.generation}"
            versions.append(f"{version} {new.model_dump_json()}")
    if not tables and not unknown_tables:
        return None
    named = sorted(tables)
    key = digest("\n".join([*fields, *map(str, named), *versions]))
    return ResyncRequest(tuple(fields), tuple(named), key, frozenset(held & tables), frozenset(unsure))


def with_unsure_suspended(manifests: Manifests, before: Manifests, request: ResyncRequest, *, runs: bool) -> Manifests:
    """Return the manifests in which the unsure tables of a request that waits are not copied.

    A first copy with the former settings would have the columns that the new ones exclude. A driver that ``runs`` makes
    such a copy of a table with former settings anyway, or has made it. The next report says whether there is a copy.
    """
    former = {t.spec.table.qualified: t.spec.suspend for t in before.table_syncs}
    tables = tuple(
        t.model_copy(update={"spec": t.spec.model_copy(update={"suspend": True})})
        if (table := t.spec.table.qualified) in request.unsure and (not runs or former.get(table, True))
        else t
        for t in manifests.table_syncs
    )
    return replace(manifests, table_syncs=tables)


def is_small(request: ResyncRequest, sizes: Mapping[QualifiedTable, int], limit: int | None) -> bool:
    """Return True if the request's tables have at most ``limit`` bytes together. Unset: no request is small.

    A table of unknown size makes the request large. So does one whose tables are not known.
    """
    known = bool(request.tables) and sizes.keys() >= set(request.tables)
    return limit is not None and known and sum(sizes[table] for table in request.tables) <= limit


def reported_sizes(observed: Observed) -> dict[QualifiedTable, int]:
    """Return the sizes of tables by the driver's report: at the source, or of the last copy if it is larger.

    A driver that started after the copy reports the copy without rows.
    """
    tables = () if observed.progress is None else observed.progress.tables
    found = ((t.table, (t.copy.bytes if t.copy is not None and t.copy.rows else None, t.source_bytes)) for t in tables)
    return {table: max(known) for table, sizes in found if (known := [size for size in sizes if size is not None])}


def unknown_sizes(request: ResyncRequest, observed: Observed) -> str:
    """Return the request's tables whose size no driver has reported, by commas."""
    known = reported_sizes(observed)
    return _listed([table for table in request.tables if table not in known])


def cost_text(request: ResyncRequest, observed: Observed, at_once: int) -> str:
    """Return the changed fields, and the tables that they copy again with their rows and their size.

    The figures are those that the driver reports. A status may be forged, and a cost of 0 would invite an approval.
    ``at_once`` is the number of tables that are copied at the same time.
    """
    if not request.tables:
        return f"{_listed(request.fields)}: copies again the tables, which are not known before a driver reports them"
    reports = {t.table: t for t in observed.progress.tables} if observed.progress is not None else {}
    sizes = reported_sizes(observed)
    copies = [_copy(reports.get(table), sizes.get(table)) for table in request.tables]
    known = [copy.size for copy in copies if copy.size is not None]
    figures = [_counted(len(copies), "table") + ("" if known else " of unknown size")]
    if rows := sum(copy.rows for copy in copies):
        figures.append(f"{count_text(rows)} rows")
    if known:
        figures.append(size_text(sum(known)))
    if known and len(known) < len(copies):
        figures.append(f"{_counted(len(copies) - len(known), 'table')} of unknown size")
    seconds = [copy.seconds for copy in copies if copy.seconds]
    if seconds:
        # No less than that of the slowest table.
        about = max(*seconds, sum(seconds) / max(1, at_once))
        figures.append(f"about {seconds_text(max(1, round(about)))} at the rate of the last copy")
    return f"{_listed(request.fields)}: copies again {', '.join(figures)}: {_listed(request.tables)}"


def approve_command(pipeline: PipelineObject, request: ResyncRequest) -> str:
    """Return the command that approves the request."""
    where = f"kubectl annotate pipeline {pipeline.name} -n {pipeline.namespace}"
    return f"{where} --overwrite {APPROVE}={request.digest}"


@dataclass(frozen=True, slots=True)
class _Copy:
    """The cost of copying a table again. ``rows`` is 0 if unknown, ``size`` and ``seconds`` are None."""

    rows: int
    size: int | None
    seconds: float | None


def _copy(report: TableProgress | None, size: int | None) -> _Copy:
    """Return the cost by a driver's report, of a table of that size. A driver that starts later reports no rows."""
    last = None if report is None else report.copy
    size = rounded_bytes(size)
    if last is None or not last.rows:
        return _Copy(0, size, None)
    rows, copied = rounded_rows(last.rows) or 0, rounded_bytes(last.bytes)
    rate = rounded_rows(int(last.rows_per_second))
    seconds = rows / rate * max(1.0, (size or 0) / copied if copied else 1.0) if rate else None
    return _Copy(rows, size, seconds)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _listed(names: Sequence[object]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(str, names[:_MAX_NAMES])) + more
