"""The configuration of a pipeline. `levada.runtime.host.assembly` builds it from a manifest, a library user by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from levada.errors import NeedsOperator, Transient
from levada.mask_keys import NO_KEY_FILES, MaskKeyFiles
from levada.postgres.connection import PostgresConnection
from levada.postgres.unselected import IncludedPattern, TablePattern
from levada.runtime.limits import Limits
from levada.schema.mask_comments import NO_COMMENTS, MaskComments
from levada.schema.masks import NO_MASKS, TableMasks
from levada.schema.stored_types import AS_RESOLVED, ColumnChoice, StoredTypes, with_mask_comments
from levada.segments.limits import FileLimits
from levada.spec.names import append_name
from levada.status import GuardMeasure, GuardPolicy
from levada.values import (
    CopyMode,
    Deletes,
    GeneratedColumns,
    Keyless,
    MetadataColumn,
    OnPartitionGone,
    OnUnrepresentable,
    OnUnstreamable,
    QualifiedTable,
    TableMode,
)

DEFAULT_MAX_BATCH_ROWS: Final = 500_000


def every_table(table: QualifiedTable) -> bool:
    """Return True. The default of ``selects``, a function of a module so that it can be pickled."""
    return True


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """The limits of automatic retries. ``delay_s`` doubles with each attempt up to ``max_delay_s``, both in seconds."""

    max_attempts: int = 5
    delay_s: float = 10.0
    max_delay_s: float = 600.0

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after the ``attempt``-th failure, counted from 1."""
        return float(min(self.max_delay_s, self.delay_s * 2 ** (attempt - 1)))


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The replication slot. With ``resync_when_lost``, all tables are resynced by a new slot when it is lost.

    With ``compare_when_lost`` too, tables are compared with the source then, and only the rows that differ are written.
    Tables that cannot be compared are resynced.
    """

    name: str
    failover: bool = False
    resync_when_lost: bool = False
    compare_when_lost: bool = False


@dataclass(frozen=True, slots=True)
class PublicationConfig:
    """The publication. If ``managed``, Levada creates and extends it. Otherwise it must have every selected table."""

    name: str
    managed: bool = True
    generated_columns: GeneratedColumns = GeneratedColumns.LEAVE_OUT
    """Whether a managed publication streams generated columns. Another one says so itself."""

    @property
    def append(self) -> str:
        """The name of the second publication, see `levada.postgres.append_publication`. Empty if not ``managed``."""
        return append_name(self.name) if self.managed else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the publications that belong to the pipeline if they exist and it manages them."""
        return (self.name, self.append) if self.managed else (self.name,)


@dataclass(frozen=True, slots=True)
class StagingConfig:
    """The staging area, which has the segments. If ``durable`` is None, the kind of storage decides.

    ``object_store`` returns the properties of an object store by PyIceberg's names. It is called each time a staging
    area on S3 is opened whose URI has no settings, so that a changed Secret needs no new configuration. ``named`` is
    the URI of the manifest, empty for the work folder.
    """

    uri: str
    durable: bool | None = None
    named: str = ""
    object_store: Callable[[], Mapping[str, str]] = field(default=dict, repr=False, compare=False)
    limits: FileLimits = field(default_factory=FileLimits, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class GuardLimit:
    """A limit of the guard. ``value`` is in bytes or percent, as the measure is."""

    measure: GuardMeasure
    policy: GuardPolicy
    value: int


@dataclass(frozen=True, slots=True)
class ContinuousConfig:
    """The comparisons of tables by ranges. Each row is compared once in ``every_s`` seconds. 0: none is.

    ``source_load`` is the share of the time for which one connection may be busy at the source, above 0 and at most 1.
    """

    every_s: float = 0.0
    source_load: float = 0.01


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    """The comparisons with the source that run without a request. ``every_s`` is their period in seconds, 0 for none.

    ``sample`` is that of `levada.verify.table.VerifyOptions`. With ``before_swap``, the shadow copy of a resync is
    compared, and replaces the table only if it is equal.
    """

    every_s: float = 0.0
    sample: float = 1.0
    before_swap: bool = False
    continuous: ContinuousConfig = field(default_factory=ContinuousConfig)


@dataclass(frozen=True, slots=True)
class CutSchedule:
    """A cut of all tables every ``every_s`` seconds. The newest ``keep`` complete ones are kept."""

    every_s: float
    keep: int


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The settings of one table. While ``suspended``, nothing is applied to the table, and its segments are kept.

    A change of ``excluded_columns``, ``stored_types``, ``masks``, ``mode``, ``deletes``, ``metadata`` or
    ``destination_table`` resyncs the table. No column has both a stored type and a mask. An empty ``destination_table``
    stands for the name at the source. A change of ``retry_nonce``, ``resync_nonce`` or ``verify_nonce`` requests one
    retry, resync or verification, and 0 requests none. With ``dedicated_copy``, another process copies the table.
    ``settings`` are those of the destination for the table, an instance of its `table_settings_model`. With
    ``on_unstreamable`` None, the table is resynced by itself, except in mode CHANGELOG, whose history a copy removes,
    and unless a copy takes a part of the rows. ``copy_mode`` and ``copy_where``, a condition in SQL, are the rows that
    a copy takes. A change of them applies to the next copy. ``keyless`` is the treatment of the table if it has no
    replica identity. ``verify`` are its comparisons, and None those of the pipeline. Its ``continuous.source_load`` is
    that of the pipeline.
    """

    suspended: bool = False
    excluded_columns: frozenset[str] = frozenset()
    stored_types: StoredTypes = AS_RESOLVED
    mode: TableMode = TableMode.UPSERT
    on_unstreamable: OnUnstreamable | None = None
    deletes: Deletes = Deletes.APPLY
    on_partition_gone: OnPartitionGone = OnPartitionGone.DELETE
    destination_table: str = ""
    retry_nonce: int = 0
    resync_nonce: int = 0
    verify_nonce: int = 0
    dedicated_copy: bool = False
    settings: BaseModel | None = None
    masks: TableMasks = NO_MASKS
    copy_mode: CopyMode = CopyMode.ALL
    copy_where: str = ""
    keyless: Keyless = Keyless.LEAVE_OUT
    metadata: tuple[MetadataColumn, ...] = ()
    verify: VerifyConfig | None = None

    @property
    def copies_part(self) -> bool:
        """True if a copy leaves out rows, so that it removes what the stream has brought of them."""
        return self.copy_mode is CopyMode.NONE or bool(self.copy_where)

    @property
    def held_when_lost(self) -> bool:
        """True if no copy is made by itself when changes were lost: it would remove what the stream has brought."""
        return self.copies_part and self.on_unstreamable is not OnUnstreamable.RESYNC

    @property
    def choice(self) -> ColumnChoice:
        """The columns with their types and masks."""
        return ColumnChoice(self.excluded_columns, self.stored_types, self.masks)

    @property
    def resyncs_by_itself(self) -> bool:
        """True if the table is copied again by itself after a change that is not in the stream."""
        if self.on_unstreamable is None:
            return self.mode is not TableMode.CHANGELOG and not self.copies_part
        return self.on_unstreamable is OnUnstreamable.RESYNC


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One source database, one publication, one slot, one destination.

    ``selects`` returns True for each table of the source that is replicated. ``include`` and ``exclude`` are the
    entries of the manifest that it is made of. ``tables`` has the settings of some tables, and ``default_table`` those
    of all others, except that those of ``copied_otherwise`` have the other ``copy_mode``. A segment is closed at
    ``batch_bytes`` or after ``batch_fill_s``. ``memory_bytes`` is the memory for changes, which capture and apply
    share. ``freshness_s`` is the longest lag that batching may cause. A ``heartbeat_s`` of 0 turns heartbeats off.
    ``ddl_trigger`` is False if the source must not have Levada's trigger. ``work_dir`` has caches only, so it may be
    lost, unless the staging area is in it. ``destination_place`` has the destination's fields that a pipeline keeps for
    its lifetime, by their paths in the manifest. A table whose copy was made with another ``copies_depend_on`` is
    resynced at the start. Times are in seconds, sizes in bytes.

    A table whose size at the source is above ``largest_own_copy`` is not resynced by itself. None: any table is.

    The guard parks tables and drops the slot only after a limit has been passed for ``guard_patience_s``.

    ``mask_keys`` has the keys of all masks by HMAC in ``tables`` and ``default_table``. ``mask_comments`` are the
    comments at the source that mask columns, by the table's name there. A pipeline reads them itself.

    ``uid`` is that of the Pipeline object in Kubernetes. Without it, a generated one is kept in the store.
    ``take_over_from`` is the UID of a former owner. The pipeline takes over its store, slot, publication and segments.
    """

    name: str
    source: PostgresConnection
    slot: SlotConfig
    publication: PublicationConfig
    staging: StagingConfig
    work_dir: Path
    selects: Callable[[QualifiedTable], bool] = every_table
    include: tuple[IncludedPattern, ...] = ()
    exclude: tuple[TablePattern, ...] = ()
    tables: Mapping[QualifiedTable, TableConfig] = field(default_factory=dict)
    default_table: TableConfig = TableConfig()
    copied_otherwise: tuple[TablePattern, ...] = ()
    largest_own_copy: int | None = None
    copy_tables: int = 4
    copy_connections: int = 4
    apply_threads: int = 3
    memory_bytes: int = 1 << 30
    batch_bytes: int = 64 << 20
    batch_fill_s: float = 1.0
    batch_rows: int = DEFAULT_MAX_BATCH_ROWS
    freshness_s: float = 10.0
    heartbeat_s: float = 60.0
    ddl_trigger: bool = True
    discovery_s: float = 60.0
    maintenance_s: float = 60.0
    progress_deadline_s: float = 900.0
    retries: RetryLimits = field(default_factory=RetryLimits)
    guard: tuple[GuardLimit, ...] = ()
    guard_patience_s: float = 30.0
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    cuts: CutSchedule | None = None
    on_unrepresentable: OnUnrepresentable = OnUnrepresentable.ERROR
    copies_depend_on: str = ""
    destination_place: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    uid: str = ""
    take_over_from: str = ""
    limits: Limits = field(default_factory=Limits)
    mask_keys: MaskKeyFiles = NO_KEY_FILES
    mask_comments: Mapping[QualifiedTable, MaskComments] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """The name with its namespace, if it has one."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def is_selected(self, table: QualifiedTable) -> bool:
        """Return True if ``selects`` does. Raise Transient ``selects_failed`` if it raises, or returns no bool.

        A table that was taken for another one would be left out, or miss changes.
        """
        try:
            selected: object = self.selects(table)
        except Exception as error:
            raise _selects_failed(table, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(selected, bool):
            raise _selects_failed(table, f"returned a {type(selected).__name__}")
        return selected

    def row_filter(self, table: QualifiedTable) -> str | None:
        """Return the condition of the table's rows that are replicated, as the manifest has it. None: all rows."""
        return next((pattern.where for pattern in self.include if pattern.matches(table)), None)

    def choice(self, table: QualifiedTable) -> ColumnChoice:
        """Return the table's columns with their types, and the masks of the manifest and of comments."""
        return self.commented(table, self.table(table).choice)

    def commented(self, table: QualifiedTable, choice: ColumnChoice) -> ColumnChoice:
        """Return a choice with the masks that the comments of the table add, or that are stricter there."""
        comments = self.mask_comments.get(table)
        return choice if comments is None else with_mask_comments(choice, comments, self.mask_keys.newest)

    def comment_problem(self, table: QualifiedTable, comments: MaskComments | None = None) -> NeedsOperator | None:
        """Return the error of a comment of the table that says no mask. ``comments`` are by default the known ones."""
        comments = comments or self.mask_comments.get(table, NO_COMMENTS)
        return comments.problem(table, self.table(table).masks, self.mask_keys.newest)

    def appends(self, table: QualifiedTable) -> bool:
        """Return True if the table is replicated by its INSERTs and TRUNCATEs if it has no replica identity."""
        return self.publication.managed and self.table(table).keyless is Keyless.APPEND

    @property
    def appends_any(self) -> bool:
        """True if tables may be replicated by their INSERTs and TRUNCATEs."""
        settings = (self.default_table, *self.tables.values())
        return self.publication.managed and any(its.keyless is Keyless.APPEND for its in settings)

    def verify_of(self, table: QualifiedTable) -> VerifyConfig:
        """Return the comparisons of a table that run without a request."""
        return self.table(table).verify or self.verify

    def table(self, table: QualifiedTable) -> TableConfig:
        """Return the settings of a table."""
        found = self.tables.get(table)
        if found is not None:
            return found
        found = self.default_table
        if any(pattern.matches(table) for pattern in self.copied_otherwise):
            return replace(found, copy_mode=CopyMode.ALL if found.copy_mode is CopyMode.NONE else CopyMode.NONE)
        return found


def _selects_failed(table: QualifiedTable, what: str) -> Transient:
    return Transient(
        "selects_failed",
        f"PipelineConfig.selects {what} for table {table}",
        hint="let it return True or False for each table, and call Pipeline.reconfigure or start the pipeline again",
    )
