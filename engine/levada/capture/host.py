"""The pipeline that capture works for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from levada.capture.alterations import Alteration
from levada.errors import LevadaError, NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.schema.masks import NO_KEYS, MaskKeys
from levada.schema.stored_types import ColumnChoice
from levada.segments.files import SegmentFile
from levada.segments.manifest import Manifest
from levada.values import Lsn, QualifiedTable, TableId, Witness

if TYPE_CHECKING:
    from levada.postgres.server import ServerIdentity

Clock = Callable[[], float]
"""Returns the seconds of a monotonic clock."""
ErrorOf = Callable[[QualifiedTable], NeedsOperator]
"""Returns the error of a table with this name."""


class CaptureHost:
    """Answers capture's questions and receives its reports, in capture's thread.

    This one replicates every table, and stores nothing. A pipeline overrides what it needs.
    """

    def selects(self, table: QualifiedTable) -> bool:
        """Return True if a table without a version is to replicate. A table with a version is, under any name."""
        return True

    def is_copied(self, table: TableId) -> bool:
        """Return True while a table is copied. The version of a copy in another process is not known before its end."""
        return False

    comments_mask: ClassVar[bool] = False
    """True if comments at the source mask columns, see `levada.schema.mask_comments`."""

    def column_choice(self, table: QualifiedTable) -> ColumnChoice:
        """Return the excluded columns, the chosen types and the masks of a table that has no version yet."""
        return ColumnChoice()

    @property
    def mask_keys(self) -> MaskKeys:
        """The keys of masked columns."""
        return NO_KEYS

    def keeps_messages(self) -> bool:
        """Return False if no message of the stream may be on a disk as it is received, as values are masked."""
        return True

    def require_epoch(self) -> None:
        """Raise StaleEpoch if another process has taken over the pipeline. Called after a pause of the process."""

    def append_publication(self, start: Lsn) -> int:
        """Return the OID of the second publication that a session from this LSN on may stream, 0 without one."""
        return 0

    def append_streamed(self, oid: int) -> None:
        """Record the second publication that the session streams, 0 for none, before the session begins."""

    def session_begins(self) -> None:
        """Report failures of tables, which are recorded before the session stages changes."""

    def source_verified(self, server: ServerIdentity, verified_to: Lsn) -> None:
        """Record that a server's history matches what was captured, up to an LSN. Called in each session."""

    def segment_staged(self, manifest: Manifest) -> None:
        """Receive a segment that is durable, before the position includes it."""

    def file_staged_early(self, file: SegmentFile, schema: ReplicatedTableSchema) -> None:
        """Receive a file of a transaction in progress, whose rows have the commit `UNKNOWN_COMMIT`.

        A later segment has the file, unless it is in a call of `early_files_removed`, or the process ends.
        """

    def early_files_removed(self, files: Sequence[SegmentFile]) -> None:
        """Receive files that no segment will have."""

    def persist_ack(self, lsn: Lsn, witness: Witness | None) -> Callable[[], object]:
        """Return a function that stores an LSN and the last transaction below it, before the slot receives the LSN.

        Another thread may call that function.
        """
        return lambda: None

    def table_failed(self, table: TableId, error: LevadaError) -> None:
        """Record a table whose changes cannot be staged any more, before this returns. Later segments lack its rows.

        They are skipped until the next session, and the table needs a resync. Here, the error is raised.
        """
        raise error

    def table_altered(self, alteration: Alteration) -> None:
        """Record an announced change of a table that has a version. Its transaction is complete."""

    def tables_unpublished(self, tables: frozenset[TableId], error: ErrorOf, at: Lsn) -> None:
        """Record tables, replicated or not, whose changes are not in the stream after an announced change.

        The change was committed at ``at``.
        """

    def leaves_streamed(self, leaves: frozenset[TableId], root: TableId, at: Lsn, xid: int) -> None:
        """Record relations whose rows are streamed as those of ``root``, replicated or not.

        It is so in transaction ``xid``, committed at ``at``, which has rows of each.
        """

    def catalog_changed(self) -> None:
        """Compare the tables with the catalog soon, because a RELATION shows that the entry of one changed."""

    def identity_lost(self) -> None:
        """Look for tables that are published without a replica identity, because one may be."""
