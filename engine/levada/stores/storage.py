"""The interface of a store's persistence: few operations, each fenced by an epoch."""

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
"""The number of stored phases of a table, including the current one. Older ones are deleted."""


def table_worker(table: TableId) -> str:
    """Return the name of the worker whose progress belongs to a table, and is deleted with the table."""
    return f"table_{int(table)}"


def resync_worker(table: TableId) -> str:
    """Return the name of the worker whose progress is the LSN at which the table's shadow copy was started."""
    return f"resync_{int(table)}"


def require_owner(record: OwnerRecord | None, mine: PipelineOwner | None) -> None:
    """Raise NeedsOperator ``not_the_owner`` if the record has another owner than this process."""
    theirs = None if record is None else record.owner
    if mine is not None and theirs is not None and theirs.uid != mine.uid:
        raise not_the_owner("the state in the store", theirs, mine)


class Storage(ABC):
    """One pipeline's part of a place that stores state.

    Every write except a request takes the writer's epoch. If a higher one is stored, the write raises `StaleEpoch` and
    changes nothing. The check and the change are atomic. A store calls one method at a time. Several stores in several
    processes may share the place.
    """

    last_error: LevadaError | None = None
    """The error of the last attempt while a call is being retried, else None."""

    @abstractmethod
    def next_epoch(self, owner: PipelineOwner | None = None) -> int:
        """Raise the stored epoch by one, atomically, and return it.

        Call `require_owner` in the same step.
        """

    @abstractmethod
    def require_epoch(self, epoch: int) -> None:
        """Raise StaleEpoch if the stored epoch is higher."""

    @abstractmethod
    def load_owner(self) -> OwnerRecord | None:
        """Return the owner's record, or None."""

    @abstractmethod
    def change_owner(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        """Implement `PipelineStore.change_owner_record`. Return True if the change was made before."""

    @abstractmethod
    def put_action(self, table: TableId, action: TableAction) -> None:
        """Store a request in place of an earlier one for the table. It carries no epoch."""

    @abstractmethod
    def take_actions(self, epoch: int) -> dict[TableId, TableAction]:
        """Return the requests and remove them."""

    @abstractmethod
    def load_phases(self) -> dict[TableId, TableReplicationPhase]:
        """Return every table's current phase."""

    @abstractmethod
    def push_phases(self, epoch: int, phases: Mapping[TableId, TableReplicationPhase]) -> None:
        """Set the current phases, and make the former ones history. A phase that is current already adds no history."""

    @abstractmethod
    def pop_phase(self, epoch: int, table: TableId) -> TableReplicationPhase | None:
        """Remove the current phase and return the previous one. Return None, and change nothing, if there is none."""

    @abstractmethod
    def load_schemas(self) -> list[ReplicatedTableSchema]:
        """Return every version of every table, in any order."""

    @abstractmethod
    def put_schema(self, epoch: int, schema: ReplicatedTableSchema) -> None:
        """Store a version, in place of one with the same table and snapshot id."""

    @abstractmethod
    def prune_schemas(self, epoch: int, retentions: Mapping[TableId, SnapshotId]) -> int:
        """Implement `SchemaStore.prune_table_schemas`."""

    @abstractmethod
    def load_progress(self) -> dict[str, Lsn]:
        """Return every worker's progress."""

    @abstractmethod
    def raise_progress(self, epoch: int, worker: str, lsn: Lsn) -> Lsn:
        """Store the higher of ``lsn`` and the stored progress, and return it."""

    @abstractmethod
    def delete_progress(self, epoch: int, worker: str) -> None:
        """Delete the worker's progress."""

    @abstractmethod
    def load_controls(self) -> dict[TableId, TableControls]:
        """Return every table's handled requests."""

    @abstractmethod
    def put_controls(self, epoch: int, table: TableId, controls: TableControls) -> None:
        """Store a table's handled requests."""

    @abstractmethod
    def load_fingerprints(self) -> dict[str, str]:
        """Return every subject's fingerprint."""

    @abstractmethod
    def put_fingerprint(self, epoch: int, subject: str, fingerprint: str) -> None:
        """Store a subject's fingerprint."""

    @abstractmethod
    def delete_fingerprint(self, epoch: int, subject: str) -> None:
        """Delete a subject's fingerprint."""

    @abstractmethod
    def load_order(self, table: TableId) -> CopyOrder | None:
        """Return the table's copy order, or None."""

    @abstractmethod
    def put_order(self, epoch: int, table: TableId, order: CopyOrder | None) -> None:
        """Store a table's order in place of an earlier one. None removes the order."""

    @abstractmethod
    def change_order(self, epoch: int, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        """Implement `PipelineStore.change_copy_order`. Return True if the change was made before."""

    @abstractmethod
    def delete_table(self, epoch: int, table: TableId, *, keep_phases: bool) -> None:
        """Delete a table's state. With ``keep_phases``, keep its phases, requests, controls and order."""

    @abstractmethod
    def delete_all(self, epoch: int) -> None:
        """Delete everything except the epoch and the owner."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources. Do nothing if it is closed."""
