"""What a run does with the tables that the store knows: those that it forgets, and those that stay parked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from levada.postgres.membership import PublicationState
from levada.runtime.config import PipelineConfig
from levada.status import RetryPolicy, TableProgress
from levada.values import QualifiedTable


@dataclass(frozen=True, slots=True)
class LeavingTable:
    """A table whose state a run forgets. ``dropped`` is True if the source has no such table any more.

    ``target`` is its name at the destination, where it stays. It is empty if nothing was copied.
    """

    name: QualifiedTable
    target: str
    dropped: bool


def leaving_tables(
    config: PipelineConfig, source: PublicationState, known: Iterable[TableProgress]
) -> tuple[LeavingTable, ...]:
    """Return those of the ``known`` tables that a start forgets, by their current names. Pure.

    A selected table that has left the publication is parked instead, see `TableMembership.adopt`.
    """
    return tuple(
        LeavingTable(source.names.get(table.id, table.table), table.destination_table, table.id not in source.names)
        for table in known
        if table.id not in source.names or not config.selects(source.names[table.id])
    )


def missed_changes(config: PipelineConfig, table: TableProgress) -> bool:
    """Return True if the table is parked because it missed changes, and a run copies it again. Pure."""
    error = table.error
    return config.slot.resync_when_lost and error is not None and error.retry_policy == RetryPolicy.NO_RETRY
