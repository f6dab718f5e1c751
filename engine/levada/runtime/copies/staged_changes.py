"""The keys of a table that changed between two snapshots, read from the staging area by the thread of a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from levada.apply.changed_keys import StagedKeys, columns_of
from levada.copy.resumable import ChangedKeys, outdated
from levada.errors import LevadaError, Transient
from levada.runtime.inbox import Ask, Inbox
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.segments.manifest import Manifest
from levada.segments.staged import StagedBatch, TableStart
from levada.segments.staging import Staging
from levada.values import Lsn, TableId

MAX_CHANGES: Final = 1_000_000
"""The number of changes up to which a copy is always resumed. With more, it is resumed if it has more rows."""
MAX_KEYS: Final = 5_000_000
"""The number of changed keys above which a copy begins again. They are held in memory."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ChangesWanted(Ask[Sequence[Manifest] | None]):
    """A copy that is resumed needs the segments with the table's changes below ``until``.

    It is answered once they are staged, with None if a segment is missing. A ``shadow`` copy has segments of its own.
    """

    table: TableId
    until: Lsn
    shadow: bool


class ChangesReader(Protocol):
    """Reads the keys that changed between two snapshots."""

    def read(
        self,
        target: TableTarget,
        first: Lsn,
        until: Lsn,
        copied_rows: int,
        stopped: Callable[[], LevadaError | None],
        *,
        shadow: bool,
    ) -> ChangedKeys:
        """Return the keys of the changes with ``first <= commit LSN < until``. See `StagedChanges.read`."""
        ...


class ChangesElsewhere:
    """Leaves the changes to the driver. A process of a dedicated copy has no staged changes."""

    def read(
        self,
        target: TableTarget,
        first: Lsn,
        until: Lsn,
        copied_rows: int,
        stopped: Callable[[], LevadaError | None],
        *,
        shadow: bool,
    ) -> ChangedKeys:
        """Raise Transient ``copy_ranges_finished``."""
        message = f"all ranges of {target.schema.name} are copied, and the driver completes it"
        raise Transient("copy_ranges_finished", message)


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Reads staged changes for copies that are resumed."""

    staging: Staging
    inbox: Inbox

    def read(
        self,
        target: TableTarget,
        first: Lsn,
        until: Lsn,
        copied_rows: int,
        stopped: Callable[[], LevadaError | None],
        *,
        shadow: bool,
    ) -> StagedKeys:
        """Return the keys of the changes with ``first <= commit LSN < until``, once the stream has staged them.

        Raise Transient ``copy_outdated`` if they are incomplete, too many, or of another version of the table.
        """
        manifests = self._wait(target, ChangesWanted(target.id, until, shadow), stopped)
        batch = StagedBatch(self.staging, manifests, [TableStart(target, first)], until)
        changes, schema = batch.changes(target.id), target.schema
        if changes.truncates or any(
            _shape(v) != _shape(schema) for v in (*changes.versions, *changes.written.values())
        ):
            raise outdated(schema, "the table was altered or truncated meanwhile")
        if changes.rows > max(MAX_CHANGES, copied_rows):
            raise outdated(schema, "more rows have changed than were copied")
        try:
            keys = StagedKeys.of(schema, changes.scan(columns_of(schema)))
        except LevadaError as error:
            if error.retried:
                raise
            raise outdated(schema, f"its changes cannot be read: {error.message}") from error
        if keys.keys.num_rows > MAX_KEYS:
            raise outdated(schema, "too many rows have changed")
        if any(column.null_count for column in keys.keys.columns):
            raise outdated(schema, "a key of a changed row has no value")
        return keys

    def _wait(
        self, target: TableTarget, wanted: ChangesWanted, stopped: Callable[[], LevadaError | None]
    ) -> Sequence[Manifest]:
        def check() -> None:
            if (error := stopped()) is not None:
                raise error

        manifests = self.inbox.ask(wanted).wait(check, _POLL_S)
        if manifests is None:
            raise outdated(target.schema, "a segment with its changes is missing")
        return manifests


def _shape(version: ReplicatedTableSchema) -> tuple[object, ...]:
    columns = tuple((c.attnum, c.name, c.type, c.typmod) for c in version.columns)
    return columns, version.identity, version.identity_attnums, version.key
