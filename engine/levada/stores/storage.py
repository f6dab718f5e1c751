"""What a store needs of the place where it keeps things: few verbs, each fenced by an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from levada.errors import LevadaError
from levada.owners import not_the_owner
from levada.schema import ReplicatedTableSchema
from levada.stores.interface import CopyOrder, OwnerRecord, TableAction, TableControls
from levada.stores.phases import TableReplicationPhase
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId

HISTORY: Final = 16
"""How many phases of a table are kept, the current one included; older ones are forgotten."""


def table_worker(table: TableId) -> str:
    """Name the worker whose progress belongs to one table, and is forgotten with it."""
    return f"table_{int(table)}"


def resync_worker(table: TableId) -> str:
    """Name the worker whose progress tells that a table is being copied again beside itself, since which LSN."""
    return f"resync_{int(table)}"


def require_owner(record: OwnerRecord | None, mine: PipelineOwner | None) -> None:
    """Raise NeedsOperator ``not_the_owner`` if the record has an owner that is not this process's, if it has one."""
    theirs = None if record is None else record.owner
    if mine is not None and theirs is not None and theirs.uid != mine.uid:
        raise not_the_owner("the state in the store", theirs, mine)


class Storage(ABC):
    """One pipeline's part of a place that keeps state.

    Every write but a request takes the writer's epoch. If a higher one is kept, it raises `StaleEpoch` and has changed
    nothing; the check and the change are one. A store calls one method at a time; several stores, in several processes,
    may share the place.
    """

    trouble: LevadaError | None = None
    """The error of the last attempt, while a call is tried again."""

    @abstractmethod
    def next_epoch(self, owner: PipelineOwner | None = None) -> int:
        """Raise the kept epoch by one, atomically, and return it.

        Call `require_owner` in the same step.
        """

    @abstractmethod
    def require_epoch(self, epoch: int) -> None:
        """Raise StaleEpoch if the kept epoch is higher."""

    @abstractmethod
    def load_owner(self) -> OwnerRecord | None:
        """Return the record of the owner."""

    @abstractmethod
    def change_owner(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        """Do what `PipelineStore.change_owner_record` says. Return True if it was done already."""

    @abstractmethod
    def put_action(self, table: TableId, action: TableAction) -> None:
        """Leave a request, in place of an earlier one for the table; carries no epoch."""

    @abstractmethod
    def take_actions(self, epoch: int) -> dict[TableId, TableAction]:
        """Return the requests and remove them."""

    @abstractmethod
    def load_phases(self) -> dict[TableId, TableReplicationPhase]:
        """Return every table's current phase."""

    @abstractmethod
    def push_phases(self, epoch: int, phases: Mapping[TableId, TableReplicationPhase]) -> None:
        """Make these the current phases and the former ones history; a phase that is current already adds none."""

    @abstractmethod
    def pop_phase(self, epoch: int, table: TableId) -> TableReplicationPhase | None:
        """Drop the current phase and return the one before it; None, and no change, if there is none."""

    @abstractmethod
    def load_schemas(self) -> list[ReplicatedTableSchema]:
        """Return every version of every table, in any order."""

    @abstractmethod
    def put_schema(self, epoch: int, schema: ReplicatedTableSchema) -> None:
        """Keep a version, in place of the one with the same table and snapshot id if there is one."""

    @abstractmethod
    def prune_schemas(self, epoch: int, retentions: Mapping[TableId, SnapshotId]) -> int:
        """Do what `SchemaStore.prune_table_schemas` says."""

    @abstractmethod
    def load_progress(self) -> dict[str, Lsn]:
        """Return every worker's progress."""

    @abstractmethod
    def raise_progress(self, epoch: int, worker: str, lsn: Lsn) -> Lsn:
        """Keep the higher of this and what is kept, and return it."""

    @abstractmethod
    def delete_progress(self, epoch: int, worker: str) -> None:
        """Forget the worker."""

    @abstractmethod
    def load_controls(self) -> dict[TableId, TableControls]:
        """Return what was acted on for every table."""

    @abstractmethod
    def put_controls(self, epoch: int, table: TableId, controls: TableControls) -> None:
        """Keep what was acted on for a table."""

    @abstractmethod
    def load_fingerprints(self) -> dict[str, str]:
        """Return every subject's fingerprint."""

    @abstractmethod
    def put_fingerprint(self, epoch: int, subject: str, fingerprint: str) -> None:
        """Keep a subject's fingerprint."""

    @abstractmethod
    def delete_fingerprint(self, epoch: int, subject: str) -> None:
        """Forget a subject's fingerprint."""

    @abstractmethod
    def load_order(self, table: TableId) -> CopyOrder | None:
        """Return the table's order for a copy."""

    @abstractmethod
    def put_order(self, epoch: int, table: TableId, order: CopyOrder | None) -> None:
        """Keep a table's order in place of an earlier one; None: forget it."""

    @abstractmethod
    def change_order(self, epoch: int, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        """Do what `PipelineStore.change_copy_order` says; true if it was done already."""

    @abstractmethod
    def delete_table(self, epoch: int, table: TableId, *, keep_phases: bool) -> None:
        """Forget a table: unless they are to be kept, its phases, requests, controls and order as well."""

    @abstractmethod
    def delete_all(self, epoch: int) -> None:
        """Forget everything but the epoch and the owner."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; not an error if closed already."""
