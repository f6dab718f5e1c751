"""The plan of a run for the tables that the store knows.

The run forgets some, leaves parked ones as they are, and gives some another place at the destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from levada.postgres.managed_filters import add_statement
from levada.postgres.membership import PublicationState
from levada.postgres.withdrawals import withdraw_statement
from levada.runtime.config import PipelineConfig
from levada.runtime.host.plugins import destination_class, former_names, target_names
from levada.runtime.tables.copied_again import copies_again
from levada.runtime.tables.places import target_name
from levada.runtime.tables.requests import CopySettings
from levada.spec import Manifests
from levada.status import RetryPolicy, TableProgress
from levada.values import QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class LeavingTable:
    """A table whose state a run forgets. ``dropped`` is True if the source has no such table any more.

    ``target`` is its name at the destination, where it stays. It is empty if nothing was copied.
    """

    name: QualifiedTable
    target: str
    dropped: bool


@dataclass(frozen=True, slots=True)
class FormerPlace:
    """The name of the table's last copy at the destination, which has another name than the next one.

    ``stays`` is True if the run leaves that table there. Otherwise it drops it.
    """

    target: str
    stays: bool


def former_place(manifests: Manifests, before: CopySettings, wanted: CopySettings) -> FormerPlace | None:
    """Return the place that a table loses by its next copy, None if it keeps it or if the place is not known.

    A destination that finds a table by its name finds that of another ``destinationTable``, see `Recreate`.
    """
    now = target_names(manifests)
    former = target_name(former_names(manifests, before.depends_on), before.table, before)
    if former in ("", target_name(now, wanted.table, wanted)):
        return None
    found = target_name(now, before.table, before)
    return FormerPlace(former, destination_class(manifests).keeps_former_tables and found != former)


def leaving_tables(
    config: PipelineConfig, source: PublicationState, known: Iterable[TableProgress]
) -> tuple[LeavingTable, ...]:
    """Return those of the ``known`` tables that a start forgets, by their current names. Pure.

    A selected table that has left the publication is parked instead, see `TableMembership.adopt`.
    """
    return tuple(
        LeavingTable(source.names.get(table.id, table.table), table.destination_table, table.id not in source.names)
        for table in known
        if table.id not in source.names or not config.is_selected(source.names[table.id])
    )


def withdrawn_statements(
    config: PipelineConfig, source: PublicationState, known: Iterable[TableProgress]
) -> tuple[str, ...]:
    """Return the SQL by which a run takes those tables out of its publication that it forgets. Pure."""
    name = config.publication.name
    gone = (source.names[t.id] for t in known if t.id in source.members and t.id not in source.appended)
    left = sorted(table for table in gone if config.publication.managed and not config.is_selected(table))
    return tuple(f"{withdraw_statement(name, table)};" for table in left)


def filter_statements(
    config: PipelineConfig,
    source: PublicationState,
    applied: Mapping[TableId, str | None],
    copied: Mapping[QualifiedTable, TableId],
) -> tuple[str, ...]:
    """Return the SQL by which a run publishes copied tables with another row filter than the ``applied`` one. Pure."""
    if not config.publication.managed:
        return ()
    statements = []
    for name, id_ in sorted(copied.items()):
        where = config.row_filter(name)
        if id_ in source.members and config.is_selected(name) and applied.get(id_) != where:
            publication = config.publication.append if id_ in source.appended else config.publication.name
            statements += [withdraw_statement(publication, name), add_statement(publication, name, where)]
    return tuple(f"{statement};" for statement in statements)


def missed_changes(config: PipelineConfig, table: TableProgress) -> bool:
    """Return True if the table is parked because its changes are not in the stream, and a run copies it again. Pure."""
    error = table.error
    return error is not None and copies_again(config, table.table, error.code, RetryPolicy(error.retry_policy))
