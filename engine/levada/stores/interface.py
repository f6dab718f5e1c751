"""The interface of a store.

Every method is thread-safe. Reads are answered from a cache that the ``load_*`` methods fill at the start. Writes go to
storage first, then to the cache. After ``next_epoch`` every write carries that epoch. If storage has a higher epoch,
the write raises `StaleEpoch` and changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel

from levada.errors import LevadaError
from levada.schema import ReplicatedTableSchema
from levada.status import CutPhase
from levada.stores.phases import TableReplicationPhase
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId


@dataclass(frozen=True, slots=True)
class TableControls:
    """The handled requests of one table: the nonces, and the settings of its newest copy in ``made_as``.

    ``made_as`` is text in the engine's own format, empty before the first copy.
    """

    retry_nonce: int = 0
    resync_nonce: int = 0
    made_as: str = ""


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """A copy of a table that the driver of ``epoch`` delegates to another process.

    ``token`` identifies the attempt. ``worker`` is the process that has accepted the order, empty before that.
    ``plan`` is the driver's plan, and ``answer`` the process's result, both as text in the engine's own format.
    """

    token: str
    epoch: int
    worker: str = ""
    answer: str = ""
    plan: str = ""


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The owner of the stored state, None if it was released, and the state's slot and publication.

    ``former`` has the full names of former owners, without duplicates. Their tables in a lake belong to the present
    owner.
    """

    owner: PipelineOwner | None
    slot: str
    publication: str
    former: tuple[str, ...] = ()

    def handed_over(self, owner: PipelineOwner, slot: str, publication: str) -> OwnerRecord:
        """Return the record with another owner. ``owner`` may be the present one."""
        return OwnerRecord(owner, slot, publication, tuple(name for name in self._names() if name != owner.name))

    def released(self) -> OwnerRecord:
        """Return the record without an owner. The present owner becomes a former one."""
        return OwnerRecord(None, self.slot, self.publication, self._names())

    def _names(self) -> tuple[str, ...]:
        present = () if self.owner is None else (self.owner.name,)
        return tuple(dict.fromkeys((*self.former, *present)))


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of all tables: their states at one LSN, which the destination keeps under one name.

    It has every change that was committed below ``lsn``, and no other one. ``at`` is the time of its choice.
    ``committed_at`` is the commit time of the last transaction below ``lsn`` by the source's clock, None if that is not
    known. ``tables`` are the tables that were replicated then. ``left_out`` has the tables that the cut lacks, each
    with the reason. ``scheduled`` is False for a cut that a user has requested.
    """

    name: str
    lsn: Lsn
    at: datetime
    committed_at: datetime | None
    phase: CutPhase
    tables: tuple[TableId, ...]
    left_out: tuple[tuple[TableId, str], ...] = ()
    scheduled: bool = False


@dataclass(frozen=True, slots=True)
class DestinationTableMetadata:
    """The record that a destination keeps of one of its tables: the name there, and the schema that it has.

    ``applied`` is the schema version that the table has. ``applying`` is the one that it is being changed to, None if
    no change is under way. A destination whose schema changes are no part of a commit stores ``applying`` before a
    change, and ``applied`` after it. So after a crash it finds a change that may be half done. ``details`` is text in
    the destination's own format, such as a mapping of columns.
    """

    name: str
    applied: SnapshotId
    applying: SnapshotId | None = None
    details: str = ""


class DestinationMetadataStore(ABC):
    """The place in the store where a destination keeps records of its tables. Thread-safe.

    Writes raise StaleEpoch if another driver has taken the pipeline over.
    """

    @abstractmethod
    def get_destination_table_metadata(self, table: TableId) -> DestinationTableMetadata | None:
        """Return the destination's record of the table, or None. Read storage, not the cache."""

    @abstractmethod
    def store_destination_table_metadata(self, table: TableId, metadata: DestinationTableMetadata | None) -> None:
        """Store the destination's record of the table in place of an earlier one. None removes it.

        The record outlives copies of the table. It ends with the table's membership in the pipeline, or with the
        pipeline's state.
        """


class SchemaStore(ABC):
    """The versions of each table's schema."""

    @abstractmethod
    def get_table_schema(self, table: TableId, snapshot_id: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the newest version not above ``snapshot_id``, or None."""

    @abstractmethod
    def get_table_schemas(self) -> tuple[ReplicatedTableSchema, ...]:
        """Return every version of every table, ordered by table and version."""

    @abstractmethod
    def load_table_schemas(self) -> int:
        """Fill the cache from storage. Return the number of versions."""

    @abstractmethod
    def store_table_schema(self, schema: ReplicatedTableSchema) -> None:
        """Store a version. It replaces a version with the same table and snapshot id."""

    @abstractmethod
    def prune_table_schemas(self, retentions: Mapping[TableId, SnapshotId]) -> int:
        """Remove each table's versions older than the newest one not above its retention. Return the number removed."""


class StateStore(ABC):
    """Each table's phase with its history, controls and fingerprint, each worker's progress, and the cuts."""

    @abstractmethod
    def get_table_replication_state(self, table: TableId) -> TableReplicationPhase | None:
        """Return the table's current phase."""

    @abstractmethod
    def get_table_replication_states(self) -> Mapping[TableId, TableReplicationPhase]:
        """Return every table's current phase."""

    @abstractmethod
    def load_table_replication_states(self) -> int:
        """Fill the cache from storage. Return the number of tables."""

    @abstractmethod
    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        """Set the current phases in one write. The former ones become history.

        Phases that are not persisted (SyncWait, Catchup) change only the cache.
        """

    @abstractmethod
    def rollback_table_replication_state(self, table: TableId) -> TableReplicationPhase:
        """Return to the previous phase of the stored history.

        Raise NeedsOperator ``no_previous_phase`` if there is none.
        """

    @abstractmethod
    def get_phase_before_error(self, table: TableId) -> TableReplicationPhase | None:
        """Return the newest phase of the stored history that is no error, or None."""

    @abstractmethod
    def get_replication_progress(self, worker: str) -> Lsn | None:
        """Return the worker's progress, or None."""

    @abstractmethod
    def upsert_replication_progress(self, worker: str, lsn: Lsn) -> Lsn:
        """Raise the worker's progress to ``lsn``, and return the result. A lower ``lsn`` changes nothing."""

    @abstractmethod
    def delete_replication_progress(self, worker: str) -> None:
        """Delete the worker's progress, if there is any."""

    @abstractmethod
    def get_table_controls(self, table: TableId) -> TableControls | None:
        """Return the table's handled requests, or None for a new table."""

    @abstractmethod
    def store_table_controls(self, table: TableId, controls: TableControls) -> None:
        """Store the table's handled requests."""

    @abstractmethod
    def load_table_controls(self) -> int:
        """Fill the cache from storage. Return the number of tables."""

    @abstractmethod
    def get_fingerprint(self, subject: str) -> str | None:
        """Return the fingerprint of the subject, or None.

        A fingerprint is text in the engine's own format. It describes the last verified state of something external
        that the subject depends on. The subject of a table is its worker (`table_worker`).
        """

    @abstractmethod
    def store_fingerprint(self, subject: str, fingerprint: str) -> None:
        """Store the fingerprint. It replaces an earlier one."""

    @abstractmethod
    def delete_fingerprint(self, subject: str) -> None:
        """Delete the fingerprint, if there is any."""

    @abstractmethod
    def load_fingerprints(self) -> int:
        """Fill the cache from storage. Return the number of subjects."""

    @abstractmethod
    def get_cuts(self) -> Mapping[str, Cut]:
        """Return every cut by its name."""

    @abstractmethod
    def store_cut(self, cut: Cut) -> None:
        """Store a cut. It replaces an earlier one of the same name."""

    @abstractmethod
    def delete_cut(self, name: str) -> None:
        """Delete the cut, if there is one of that name."""

    @abstractmethod
    def load_cuts(self) -> int:
        """Fill the cache from storage. Return the number of cuts."""


class TableLifecycleStore(ABC):
    """The removal of state at the transitions of a table."""

    @abstractmethod
    def clear_table_copy_state(self, table: TableId) -> None:
        """Delete the table's schema versions, progress and fingerprint, before a copy.

        Its phases, controls and order are kept.
        """

    @abstractmethod
    def delete_table_pipeline_state(self, table: TableId) -> None:
        """Delete the whole state of a table that left the publication."""


class TableAction(StrEnum):
    """A user's request for a table, with or without a running driver."""

    RETRY = "Retry"
    """Return an errored table to the phase before the error. Its data is kept."""
    RESYNC = "Resync"
    """Copy the table again."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The engine's context for a store that is created from a manifest.

    ``namespace`` is that of the Pipeline, and empty outside of Kubernetes. ``credentials`` is a mounted folder with one
    file per key, or None. Read its files at each login, because they change while the engine runs.
    """

    pipeline: str
    namespace: str = ""
    credentials: Path | None = None


class PipelineStore(SchemaStore, StateStore, TableLifecycleStore, DestinationMetadataStore):
    """The whole state of one pipeline."""

    settings_model: ClassVar[type[BaseModel] | None] = None
    """The pydantic model of the store's settings in a manifest, or None if it has no settings."""
    volatile: bool = False
    """True if the state ends with the process. Each start copies every table then, and is the same owner."""

    @classmethod
    def from_settings(cls, settings: Any, context: StoreContext) -> Self:
        """Return the store of a pipeline. ``settings`` is an instance of `settings_model`, or None without one.

        Only a store with this method can be named in a manifest. Neither this method nor a read creates anything at the
        place of the state, because `levada check` and `levada status` call them too. The first write does.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be created from a manifest")

    @property
    def last_error(self) -> LevadaError | None:
        """The error of the last attempt while a call is being retried, else None. Thread-safe, without waiting."""
        return None

    def stop_waiting(self) -> None:
        """End the waits for a place that does not answer, because the pipeline stops. Thread-safe, without waiting.

        This concerns the call that waits and all later ones. They raise the error that they would have raised later.
        """

    def together(self) -> AbstractContextManager[None]:
        """Store what this thread writes within the block in one step, at the latest at its end.

        What is written can be read at once. Writes of other threads wait, so the block must not wait for one of them.
        If the block or the step raises, what was written may be stored or not, as after a kill. So nothing outside of
        the store may depend on it within the block.
        """
        return nullcontext()

    @abstractmethod
    def request_table_action(self, table: TableId, action: TableAction) -> None:
        """Store a request for the pipeline's driver, from any process. It carries no epoch and is never refused.

        It replaces an earlier request for the same table that was not taken yet.
        """

    @abstractmethod
    def get_table_actions(self) -> Mapping[TableId, TableAction]:
        """Return the requests that were not taken yet, and keep them. Read storage, not the cache."""

    @abstractmethod
    def take_table_actions(self) -> Mapping[TableId, TableAction]:
        """Return the requests and remove them, in one step. Read storage, not the cache."""

    @abstractmethod
    def order_copy(self, table: TableId, order: CopyOrder | None) -> None:
        """Store the order in place of an earlier one. None removes the order."""

    @abstractmethod
    def get_copy_order(self, table: TableId) -> CopyOrder | None:
        """Return the table's order, or None. Read storage, not the cache."""

    @abstractmethod
    def change_copy_order(self, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        """Replace the order ``expected`` by ``now`` in one step.

        Return False, and change nothing, if there is another one.
        """

    @abstractmethod
    def get_owner_record(self) -> OwnerRecord | None:
        """Return the owner's record, or None. Read storage, not the cache."""

    @abstractmethod
    def change_owner_record(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        """Replace the record ``expected`` by ``now`` in one step.

        Return False, and change nothing, if there is another one.

        The owner in ``now`` is this process's owner. From then on `next_epoch` is refused if storage has another one.
        """

    @abstractmethod
    def join(self, epoch: int) -> None:
        """Write with the epoch of the driver that this process works for, until another driver takes over."""

    @abstractmethod
    def next_epoch(self) -> int:
        """Raise the pipeline's epoch by one, atomically, and return it.

        Writes of older epochs are refused from then on.

        Raise NeedsOperator ``not_the_owner`` if this process has claimed the pipeline and storage has another owner.
        """

    @abstractmethod
    def require_epoch(self) -> None:
        """Raise StaleEpoch if another process has taken the pipeline over. Read storage, not the cache.

        The store itself refuses writes of the former process. A slot, a publication and staged files have no epoch, so
        a process that may have been paused must call this method before it changes one of them.
        """

    @abstractmethod
    def delete_pipeline_state(self) -> None:
        """Delete the pipeline's state except for its epoch and owner. Do nothing if there is none."""

    @abstractmethod
    def close(self) -> None:
        """Release the store's resources. Do nothing if it is closed."""
