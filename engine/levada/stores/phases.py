"""The phases of a table, as values. `levada.runtime.tables.phases` defines the transitions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from levada.status import RetryPolicy, TablePhase
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class Init:
    """Discovered in the publication. The table waits for its copy."""

    name: ClassVar[TablePhase] = TablePhase.INIT
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DataSync:
    """Being copied. After a restart the copy is resumed, or starts again."""

    name: ClassVar[TablePhase] = TablePhase.DATA_SYNC
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """The copy at ``lsn`` (S) is committed at the destination. No change after it is applied yet."""

    lsn: Lsn
    name: ClassVar[TablePhase] = TablePhase.FINISHED_COPY
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class SyncWait:
    """Waiting until capture has staged past ``lsn`` (S)."""

    lsn: Lsn
    name: ClassVar[TablePhase] = TablePhase.SYNC_WAIT
    persisted: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Catchup:
    """Staged changes are being applied up to ``lsn``."""

    lsn: Lsn
    name: ClassVar[TablePhase] = TablePhase.CATCHUP
    persisted: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SyncDone:
    """Caught up to ``lsn``."""

    lsn: Lsn
    name: ClassVar[TablePhase] = TablePhase.SYNC_DONE
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Ready:
    """Streaming."""

    name: ClassVar[TablePhase] = TablePhase.READY
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Errored:
    """Parked. The table's segments are kept, and other tables continue."""

    code: str
    reason: str
    solution: str
    retry_policy: RetryPolicy
    attempts: int = 1
    next_retry: datetime | None = None
    name: ClassVar[TablePhase] = TablePhase.ERRORED
    persisted: ClassVar[bool] = True


TableReplicationPhase = Init | DataSync | FinishedCopy | SyncWait | Catchup | SyncDone | Ready | Errored
