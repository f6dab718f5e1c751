"""The registry of a pipeline's tables. Each duty is in a part of its own, and only this module connects the parts."""

from __future__ import annotations

from collections.abc import Callable

from levada.apply.backlog import Backlog
from levada.destinations import Destination, Ordering
from levada.errors import LevadaError
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.column_choices import ColumnChoices
from levada.runtime.tables.handled_requests import HandledRequests
from levada.runtime.tables.next_copy import NextCopy
from levada.runtime.tables.outage import Outage
from levada.runtime.tables.own_copies import OwnCopies
from levada.runtime.tables.part import SharedParts
from levada.runtime.tables.partition_moves import PartitionMoves
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.pipeline_tables import PipelineTables
from levada.runtime.tables.place_check import PlaceCheck
from levada.runtime.tables.positions import Positions
from levada.runtime.tables.publication_check import PublicationCheck
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.shadow_copies import ShadowCopies
from levada.runtime.tables.storage_journal import StorageJournal
from levada.runtime.tables.table_membership import TableMembership
from levada.runtime.tables.table_requests import TableRequests
from levada.runtime.tables.table_retries import TableRetries
from levada.runtime.tables.table_steps import TableSteps
from levada.runtime.tables.unverified_tables import UnverifiedTables
from levada.schema.stored_types import ColumnChoice
from levada.segments.ledger import Ledger
from levada.stores.interface import PipelineStore
from levada.values import Lsn, TableId


class TableRegistry:
    """Every replicated table. Only the supervisor's thread uses it.

    ``reopen`` requests a new replication session and returns its number. ``exclude`` sets the columns of a table that
    the stream leaves out from the next session on.

    ========== ==========================================================================
    Part       Duty
    ========== ==========================================================================
    membership The set of tables, their names, and which are suspended
    phases     Phases and parking. A phase is in the store before it takes effect
    positions  Staged segments, watermarks, and the WAL history that they belong to
    handled    The requests that were acted on, and the settings of the last copies
    next_copy  The plan of a table's next copy
    requests   Users' requests for retries and resyncs
    shadows    Requests for shadow copies, and their markers in the store
    places     Places at the destination
    (step)     Retries, resyncs and phases that are due without a request
    own_copies Copies that are made again without a request
    storage    The storage that rows were copied from, see `StorageJournal`
    moves      Partitions whose rows leave or enter tables
    ========== ==========================================================================
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        store: PipelineStore,
        destination: Destination,
        reopen: Callable[[], int],
        choose: Callable[[TableId, ColumnChoice], None],
        ledger: Ledger | None = None,
    ) -> None:
        outage = Outage(together=destination.capabilities.ordering is Ordering.PIPELINE)
        tables = self._tables = PipelineTables(outage, ledger)
        self._store = store
        unverified = UnverifiedTables(store)
        handled, shadows = HandledRequests(config_ref, store), ShadowCopies(store, tables)
        columns = ColumnChoices(config_ref, reopen, choose)
        shared = SharedParts(config_ref, store, destination, tables, handled, columns, shadows)
        self.handled, self.shadows = handled, shadows
        self.phases = PhaseChanges(shared, unverified)
        self.moves = PartitionMoves(shared)
        in_utc = destination.capabilities.retypes_in_utc
        self.storage = StorageJournal(store, self.phases.park_until_resync, self.moves, retypes_in_utc=in_utc)
        self.positions = Positions(shared, self.phases, self.storage, unverified, self.moves)
        retries = self._retries = TableRetries(self.phases, self.positions)
        self.places = PlaceCheck(shared, self.phases, retries)
        self.next_copy = NextCopy(shared)
        own = self.own_copies = OwnCopies(config_ref, store, self.next_copy.plan, self._size)
        self.requests = TableRequests(shared, self.phases, retries, self.places, self.next_copy, own)
        self._steps = TableSteps(shared, self.phases, retries, self.requests, own)
        publication = PublicationCheck(shared, self.phases)
        self.membership = TableMembership(
            shared, self.positions, self.places, self.requests, publication, self.phases, retries
        )

    @property
    def tables(self) -> dict[TableId, TableRecord]:
        """The tables by their OIDs."""
        return self._tables.records

    @property
    def backlog(self) -> Backlog:
        """The staged segments that tables and shadow copies need."""
        return self._tables.backlog

    @property
    def staged_lsn(self) -> Lsn:
        """The LSN below which everything is staged."""
        return self._tables.staged_lsn

    @property
    def outage(self) -> Outage:
        """Whether the destination is away."""
        return self._tables.outage

    @property
    def fatal(self) -> LevadaError | None:
        """The error that ends the pipeline, None without one."""
        return self._tables.fatal

    def fail(self, error: LevadaError) -> None:
        """End the pipeline with an error."""
        self._tables.fail(error)

    def staged_to(self, lsn: Lsn) -> None:
        """Record that everything below an LSN is staged, also without a segment."""
        self._tables.staged_to(lsn)

    def position(self, record: TableRecord) -> Lsn:
        """Return the LSN below which nothing of the table is left to apply, 0 while that is unknown."""
        return self._tables.position(record)

    def _size(self, table: TableId) -> int | None:
        return self.membership.source_bytes(table)

    def take_became_ready(self) -> bool:
        """Return True if a table became Ready since the last call."""
        taken, self._tables.became_ready = self._tables.became_ready, False
        return taken

    def repaired(self, record: TableRecord) -> None:
        """Retry a parked table after its content at the destination was repaired."""
        self._retries.retry_repaired(record)

    def step(self) -> None:
        """Retry, resync or advance each free table if the condition for that is met."""
        with self._store.together():
            self._steps.take()
