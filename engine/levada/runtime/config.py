"""What a pipeline is told before it starts; made from a manifest by `levada.runtime.manifest`, or by hand in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from levada.postgres.connection import PostgresConnection
from levada.runtime.retries import RetryLimits
from levada.values import OnUnrepresentable, QualifiedTable

DEFAULT_MAX_BATCH_ROWS: Final = 500_000


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The replication slot. ``resync_when_lost``: copy every table again rather than stop and ask."""

    name: str
    failover: bool = False
    resync_when_lost: bool = False


@dataclass(frozen=True, slots=True)
class PublicationConfig:
    """The publication. ``managed``: made and extended here; else it must have every selected table."""

    name: str
    managed: bool = True


@dataclass(frozen=True, slots=True)
class StagingConfig:
    """Where segments are kept. ``durable`` None: as the kind of storage suggests."""

    uri: str
    durable: bool | None = None


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One source database, one publication, one slot, one destination.

    ``selects`` tells whether a table of the source is replicated, ``excluded_columns`` which of its columns are left
    out. ``suspended`` tables are parked: their segments are kept. ``batch_bytes`` and ``batch_fill_s`` close a segment;
    ``freshness_s`` is how far a table may trail; ``heartbeat_s`` of 0 is off. ``work_dir`` holds caches that may be
    lost. Times are in seconds, sizes in bytes.
    """

    name: str
    source: PostgresConnection
    slot: SlotConfig
    publication: PublicationConfig
    staging: StagingConfig
    work_dir: Path
    selects: Callable[[QualifiedTable], bool] = field(default=lambda table: True)
    excluded_columns: Callable[[QualifiedTable], frozenset[str]] = field(default=lambda table: frozenset())
    suspended: frozenset[QualifiedTable] = frozenset()
    copy_tables: int = 4
    copy_connections: int = 4
    apply_threads: int = 3
    batch_bytes: int = 64 << 20
    batch_fill_s: float = 1.0
    batch_rows: int = DEFAULT_MAX_BATCH_ROWS
    freshness_s: float = 10.0
    heartbeat_s: float = 60.0
    discovery_s: float = 60.0
    maintenance_s: float = 60.0
    progress_deadline_s: float = 900.0
    retries: RetryLimits = field(default_factory=RetryLimits)
    on_unrepresentable: OnUnrepresentable = OnUnrepresentable.ERROR
