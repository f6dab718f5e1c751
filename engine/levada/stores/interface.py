"""What a store promises.

Every method may be called from several threads at once. Reads are answered from a cache that ``load_*`` fills once at
start; writes go to storage first, then to the cache. From ``next_epoch`` on, every write carries that epoch: if storage
holds a higher one the write is refused with `StaleEpoch` and changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from levada.errors import LevadaError
from levada.schema import ReplicatedTableSchema
from levada.stores.phases import TableReplicationPhase
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId


@dataclass(frozen=True, slots=True)
class TableControls:
    """What was acted on of what a user says of a table: the nonces, and ``made_as``, the settings of its newest copy.

    ``made_as`` is the engine's own text; empty before the first copy.
    """

    retry_nonce: int = 0
    resync_nonce: int = 0
    made_as: str = ""


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """A copy of a table that the driver of ``epoch`` leaves to a process of its own.

    ``token`` tells one attempt from another, ``worker`` the process that has taken it, empty for none yet; ``answer``
    is that process's word, the engine's own text.
    """

    token: str
    epoch: int
    worker: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The Pipeline that owns the stored state, None if it was released, and the slot and publication it goes with.

    ``former`` has the full names of former owners, each once. Their tables in a lake are the present owner's.
    """

    owner: PipelineOwner | None
    slot: str
    publication: str
    former: tuple[str, ...] = ()

    def handed_over(self, owner: PipelineOwner, slot: str, publication: str) -> OwnerRecord:
        """Return the record of the next owner, which may be the present one."""
        return OwnerRecord(owner, slot, publication, tuple(name for name in self._names() if name != owner.name))

    def released(self) -> OwnerRecord:
        """Return the record without an owner. Its name is a former one's then."""
        return OwnerRecord(None, self.slot, self.publication, self._names())

    def _names(self) -> tuple[str, ...]:
        present = () if self.owner is None else (self.owner.name,)
        return tuple(dict.fromkeys((*self.former, *present)))


class SchemaStore(ABC):
    """The versions of each table's schema."""

    @abstractmethod
    def get_table_schema(self, table: TableId, snapshot_id: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the newest version not above ``snapshot_id``."""

    @abstractmethod
    def get_table_schemas(self) -> tuple[ReplicatedTableSchema, ...]:
        """Return every version of every table, by table and version."""

    @abstractmethod
    def load_table_schemas(self) -> int:
        """Fill the cache from storage; return how many versions there are."""

    @abstractmethod
    def store_table_schema(self, schema: ReplicatedTableSchema) -> None:
        """Keep a version; the same table and snapshot id again replaces it."""

    @abstractmethod
    def prune_table_schemas(self, retentions: Mapping[TableId, SnapshotId]) -> int:
        """Remove versions older than the newest one not above each table's retention; return how many."""


class StateStore(ABC):
    """Each table's phase with its history, controls and fingerprint, and each worker's progress."""

    @abstractmethod
    def get_table_replication_state(self, table: TableId) -> TableReplicationPhase | None:
        """Return the table's current phase."""

    @abstractmethod
    def get_table_replication_states(self) -> Mapping[TableId, TableReplicationPhase]:
        """Return every table's current phase."""

    @abstractmethod
    def load_table_replication_states(self) -> int:
        """Fill the cache from storage; return how many tables there are."""

    @abstractmethod
    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        """Make these the current phases, in one write; the former ones become history.

        Phases that are not persisted (SyncWait, Catchup) change the cache alone.
        """

    @abstractmethod
    def rollback_table_replication_state(self, table: TableId) -> TableReplicationPhase:
        """Step one phase back through the stored history and return it.

        Raise NeedsOperator ``no_previous_phase`` at its beginning.
        """

    @abstractmethod
    def get_replication_progress(self, worker: str) -> Lsn | None:
        """Return how far the worker has come."""

    @abstractmethod
    def upsert_replication_progress(self, worker: str, lsn: Lsn) -> Lsn:
        """Move the worker's progress forwards, never backwards; return what it is now."""

    @abstractmethod
    def delete_replication_progress(self, worker: str) -> None:
        """Forget the worker; not an error if there is none."""

    @abstractmethod
    def get_table_controls(self, table: TableId) -> TableControls | None:
        """Return what was acted on for the table; None if it was never seen."""

    @abstractmethod
    def store_table_controls(self, table: TableId, controls: TableControls) -> None:
        """Keep what was acted on for the table."""

    @abstractmethod
    def load_table_controls(self) -> int:
        """Fill the cache from storage; return how many tables there are."""

    @abstractmethod
    def get_fingerprint(self, subject: str) -> str | None:
        """Return the fingerprint of the subject, None if there is none.

        A fingerprint is the engine's own text about something outside that it depends on, as it was when it was last
        verified. The subject of a table is its worker (`table_worker`).
        """

    @abstractmethod
    def store_fingerprint(self, subject: str, fingerprint: str) -> None:
        """Keep the fingerprint in place of an earlier one."""

    @abstractmethod
    def delete_fingerprint(self, subject: str) -> None:
        """Forget the fingerprint; not an error if there is none."""

    @abstractmethod
    def load_fingerprints(self) -> int:
        """Fill the cache from storage; return how many subjects there are."""


class TableLifecycleStore(ABC):
    """What is forgotten when."""

    @abstractmethod
    def clear_table_copy_state(self, table: TableId) -> None:
        """Forget the table's schema versions, progress and fingerprint, before a copy.

        Its phases, controls and order are kept.
        """

    @abstractmethod
    def delete_table_pipeline_state(self, table: TableId) -> None:
        """After the table left the publication: forget all of it."""


class TableAction(StrEnum):
    """What a person may ask of a table, whether a driver is running or not."""

    RETRY = "Retry"
    """Bring an errored table back to the phase before the error; keep its data."""
    RESYNC = "Resync"
    """Copy the table again."""


class PipelineStore(SchemaStore, StateStore, TableLifecycleStore):
    """All that one pipeline keeps."""

    @property
    def trouble(self) -> LevadaError | None:
        """The error of the last attempt, while a call is tried again. From any thread, without waiting."""
        return None

    @abstractmethod
    def request_table_action(self, table: TableId, action: TableAction) -> None:
        """Leave a request for the pipeline's driver, from whichever process: carries no epoch, is never refused.

        A later request for the same table replaces one that was not taken yet.
        """

    @abstractmethod
    def take_table_actions(self) -> Mapping[TableId, TableAction]:
        """Return the requests and remove them, in one step; reads storage, not the cache."""

    @abstractmethod
    def order_copy(self, table: TableId, order: CopyOrder | None) -> None:
        """Keep the order in place of an earlier one; None: take it back."""

    @abstractmethod
    def get_copy_order(self, table: TableId) -> CopyOrder | None:
        """Return the table's order; reads storage, not the cache."""

    @abstractmethod
    def change_copy_order(self, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        """Put ``now`` in the place of ``expected``, in one step; False, and no change, if another is there, or none."""

    @abstractmethod
    def get_owner_record(self) -> OwnerRecord | None:
        """Return the record of the owner. Read storage, not the cache."""

    @abstractmethod
    def change_owner_record(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        """Put ``now`` in the place of ``expected``, in one step. Return False, and change nothing, if another is there.

        The owner in ``now`` is this process's: `next_epoch` is refused from then on if storage has another one.
        """

    @abstractmethod
    def join(self, epoch: int) -> None:
        """Write with the epoch of the driver that this process works for, until another takes the pipeline over."""

    @abstractmethod
    def next_epoch(self) -> int:
        """Raise the pipeline's epoch by one, atomically, and return it. Older ones are refused from then on.

        Raise NeedsOperator ``not_the_owner`` if this process has claimed the pipeline, and storage has another owner.
        """

    @abstractmethod
    def require_epoch(self) -> None:
        """Raise StaleEpoch if another process has taken the pipeline over. Read storage, not the cache.

        The store refuses the writes of such a process itself. A slot, a publication and staged files have no epoch, so
        a process that may have been paused calls this before it changes one of them.
        """

    @abstractmethod
    def delete_pipeline_state(self) -> None:
        """Forget all that is kept of this pipeline but its epoch and owner. Not an error if there is nothing."""

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds; not an error if closed already."""
