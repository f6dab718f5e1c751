"""The configuration of a pipeline: made from a manifest by `levada.runtime.host.assembly`, or by hand in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from levada.postgres.connection import PostgresConnection
from levada.values import OnUnrepresentable, QualifiedTable, TableMode

DEFAULT_MAX_BATCH_ROWS: Final = 500_000


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often and how long. ``delay_s`` doubles with each attempt, up to ``max_delay_s``, both in seconds."""

    max_attempts: int = 5
    delay_s: float = 10.0
    max_delay_s: float = 600.0

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after the ``attempt``-th failure, counted from 1."""
        return float(min(self.max_delay_s, self.delay_s * 2 ** (attempt - 1)))


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The replication slot. ``resync_when_lost``: copy tables again that missed changes, rather than park them."""

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
    """Where segments are kept. ``durable`` None: as the kind of storage suggests.

    ``properties`` and the files in ``credentials`` are those of the lake's catalog: an object store is reached as that
    of the lake is.
    """

    uri: str
    durable: bool | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Path | None = None


@dataclass(frozen=True, slots=True)
class TableConfig:
    """What is different about one table. ``suspended``: parked, its segments are kept.

    Another ``excluded_columns``, ``mode`` or ``destination_table`` (empty: the source's name) makes its copy anew.
    Another ``retry_nonce`` or ``resync_nonce`` than before is a request, acted on once; 0 is none. ``dedicated_copy``:
    another process copies it.
    """

    suspended: bool = False
    excluded_columns: frozenset[str] = frozenset()
    mode: TableMode = TableMode.UPSERT
    destination_table: str = ""
    retry_nonce: int = 0
    resync_nonce: int = 0
    dedicated_copy: bool = False


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One source database, one publication, one slot, one destination.

    ``selects`` tells whether a table of the source is replicated; ``tables`` says what is different about some, all
    others are ``default_table``. ``batch_bytes`` and ``batch_fill_s`` close a segment; ``freshness_s`` is how far a
    table may trail; ``heartbeat_s`` of 0 is off. ``work_dir`` holds caches that may be lost. A start with another
    ``copies_depend_on`` than a table was copied with copies it again. Times are in seconds, sizes in bytes.

    ``uid`` is that of the Pipeline object in Kubernetes. Without it, a generated one is kept in the store.
    ``take_over_from`` is the UID of a former owner, whose store, slot, publication and staged changes this one takes.
    """

    name: str
    source: PostgresConnection
    slot: SlotConfig
    publication: PublicationConfig
    staging: StagingConfig
    work_dir: Path
    selects: Callable[[QualifiedTable], bool] = field(default=lambda table: True)
    tables: Mapping[QualifiedTable, TableConfig] = field(default_factory=dict)
    default_table: TableConfig = TableConfig()
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
    copies_depend_on: str = ""
    namespace: str = ""
    uid: str = ""
    take_over_from: str = ""

    @property
    def full_name(self) -> str:
        """The name with its namespace, if it has one."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def table(self, table: QualifiedTable) -> TableConfig:
        """Return what holds for a table."""
        return self.tables.get(table, self.default_table)
