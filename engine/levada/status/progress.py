"""The parts of the status document.

They answer three questions: will a disk fill up (``slot.retainedBytes``, ``staging``), is the data correct
(``tables[].error``, ``state``), and when is it complete (``tables[].copy.secondsLeft``, ``tables[].lagSeconds``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from levada import codes
from levada.status.document import (
    Cutting,
    Measure,
    Mode,
    Outcome,
    Part,
    Phase,
    Policy,
    Rows,
    Severity,
    State,
    Step,
    Tenths,
    Thousandths,
    Time,
)
from levada.status.names import PipelineState, TablePhase
from levada.values import Lsn, QualifiedTable, TableId

PROGRESS_VERSION: Final = 1
"""The version of the document's form. New fields do not change it."""


@dataclass(frozen=True, slots=True)
class ErrorProgress(Part):
    """An error as a user sees it."""

    code: str
    """The stable code. docs/errors.md lists them."""
    reason: str
    solution: str = ""
    """The command that resolves it, or what to do."""
    retry_policy: Policy = ""
    attempts: int = 0
    """Attempts that failed in a row."""
    next_retry: Time | None = None
    """The time of the next retry. Null if the retry must be requested."""


@dataclass(frozen=True, slots=True)
class CopyProgress(Part):
    """The progress of a copy at one moment. Bytes are estimates of the source's storage, including TOAST."""

    rows: int = 0
    bytes: int = 0
    total_rows: int | None = None
    """PostgreSQL's estimate. Null if it has none."""
    total_bytes: int | None = None
    percent: Tenths = 0.0
    """The share of the bytes, from 0 to 100."""
    rows_per_second: Tenths = 0.0
    seconds_left: Tenths | None = None
    """Estimated by the rate so far."""
    ranges: int = 0
    """The number of ranges in which the table is read."""
    ranges_finished: int = 0
    """The ranges that are read, also by earlier attempts."""
    resumable: bool = False
    """True if the copy continues with its finished ranges after an interruption. Otherwise it begins again."""
    note: str = ""
    """Why the copy is not resumable, or why it began again."""
    unrepresentable: Annotated[int, Field(exclude=True)] = 0
    """The number of values that became NULL. It is not in the JSON."""


@dataclass(frozen=True, slots=True)
class CatchUpProgress(Part):
    """The time until the destination has caught up with the source, by the trend of the last five minutes."""

    state: Outcome
    seconds_left: Tenths | None = None
    """0 for CaughtUp. Null for NotAtThisRate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedProgress(Part):
    """The last comparison of a table with the source."""

    at: Time
    lsn: Lsn
    """The LSN at which the two were compared."""
    rows: int
    """The rows at the source."""
    sample: float = 1.0
    """The share of the rows whose values were compared. Keys were compared of all rows."""
    equal: bool
    """True if no difference was found, or if all were repaired."""
    differences: int = 0
    """The keys that were found to differ, also if they were repaired."""
    repaired: int = 0
    """The keys whose rows were written again."""
    problem: str = ""
    """A difference of the table as a whole, such as a file that is missing. Empty if only keys differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofProgress(Part):
    """The comparison of a table range by range, see `verify.continuous`."""

    oldest: Time | None = None
    """Each row was found equal to the source, or was repaired, at this time or later. Null before the end of the first
    pass over all ranges.
    """
    began: Time | None = None
    """The begin of the pass that is under way. Null between two passes."""
    rows: int = 0
    """The rows at the source that this pass has compared, or those of the last pass."""
    source_seconds: Thousandths = 0.0
    """The seconds for which this pass has kept the source busy, or those of the last pass."""
    differences: int = 0
    """The keys that were found to differ, and were repaired, since the table was copied."""
    at: Time
    """The time of the last range, or of the last attempt."""
    range_rows: int = 0
    """The rows of the last range."""
    range_seconds: Thousandths = 0.0
    """The seconds for which the last range kept the source busy."""
    problem: str = ""
    """The reason why the last attempt compared nothing. Empty if it did."""


@dataclass(frozen=True, slots=True)
class ResyncProgress(Part):
    """A shadow copy. Its table stays readable and receives changes meanwhile."""

    step: Step
    copy: CopyProgress | None = None
    pending_rows: int = 0
    """The changes since the copy's snapshot that are not applied to the shadow copy yet."""
    error: ErrorProgress | None = None
    """In step GivenUp the error that ended the resync, otherwise the error of the last attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress(Part):
    """One table.

    While the replication stream is interrupted, the lag is at least the time since then, because the changes at the
    source are unknown. While the engine waits, for example for its store, it applies nothing, and the lag grows by the
    clock.
    """

    id: TableId
    """The OID of the table at the source."""
    schema: str
    name: str
    phase: Phase
    destination_table: str = ""
    """The table's name at the destination. Empty if the destination has none for it."""
    mode: Mode = ""
    """The mode of the destination's table."""
    note: str = ""
    """The reason why the mode differs from the configured one, or why the source refuses changes of the table."""
    copy: CopyProgress | None = None
    """The last copy. Null before it begins."""
    copied_rows: Rows = ""
    """The rows that the last copy took. None or Part: the destination lacks rows that have not changed since. Empty
    before it.
    """
    applied_lsn: Lsn | None = None
    """The LSN up to which changes are at the destination. Null while the table is copied, and if it missed changes."""
    lag_seconds: Thousandths | None = None
    """The age of the oldest change that is not at the destination, or 0. Null while the table is copied, and if it
    missed changes.

    While more than 16 MiB of the source's WAL are not staged yet, it is also at least the time for which that is so.
    """
    catch_up: CatchUpProgress | None = None
    """The time until the table has caught up. Null while it is copied, suspended or parked, and for the first minute
    in which it trails.
    """
    pending_segments: int = 0
    pending_rows: int = 0
    staged_bytes: int = 0
    """The size of the staged changes that are not applied yet."""
    source_bytes: int | None = None
    """The table's size at the source in the last minutes, with TOAST. Null if it is not known."""
    rows_applied: int = 0
    """Row changes that were applied since the process started."""
    last_apply_seconds: Thousandths | None = None
    last_apply_tasks: int = 0
    """The number of tasks that wrote the last batch. 0: the engine's own process wrote it."""
    last_commit_at: Time | None = None
    unrepresentable: int = 0
    """Values that became NULL under `onUnrepresentable: Null` since the process started."""
    verified: VerifiedProgress | None = None
    """The last comparison since the table was copied. Null without one."""
    verify_tried: Time | None = None
    """The begin of the last comparison that the schedule or `verifyNonce` asked for."""
    verify_error: ErrorProgress | None = None
    """The error of that comparison. Null if it succeeded or has not ended."""
    verify_nonce: int = 0
    """The value of `verifyNonce` that was handled last."""
    proof: ProofProgress | None = None
    """The comparison range by range since the table was copied. Null without one."""
    suspended: bool = False
    retry_nonce: int = 0
    """The value of `retryNonce` that was handled last."""
    resync_nonce: int = 0
    """The value of `resyncNonce` that was handled last."""
    resync: ResyncProgress | None = None
    copy_order: str = ""
    """The token of the order for a dedicated copy. Empty without one."""
    job: str = ""
    """The kind of job that has the table now. Empty without one."""
    job_since: Time | None = None
    error: ErrorProgress | None = None
    """The reason why the table is not Ready. With the code `rows_differ` its changes are applied as before."""
    copied_again: ErrorProgress | None = None
    """The error because of which the table is copied again by itself, until it is Ready. Null otherwise."""

    @property
    def table(self) -> QualifiedTable:
        """The table's schema and name."""
        return QualifiedTable(self.schema, self.name)

    @property
    def differs(self) -> bool:
        """True for a table that streams and is not Ready, because a comparison found that it differs."""
        return self.error is not None and self.error.code == codes.ROWS_DIFFER

    @property
    def is_parked(self) -> bool:
        """True if no change is applied because of an error."""
        return self.error is not None and not self.differs

    def has_reached(self, target: Lsn) -> bool:
        """Return True if the table is Ready and has applied all changes below ``target``."""
        return self.phase == TablePhase.READY and self.applied_lsn is not None and self.applied_lsn >= target


@dataclass(frozen=True, slots=True)
class SlotProgress(Part):
    """The slot as of its last sample. Values that the server does not report are null."""

    name: str
    lag_bytes: int | None = None
    """Bytes of WAL that the slot has not confirmed."""
    retained_bytes: int | None = None
    """Bytes of WAL that the slot keeps on the source's disk."""
    wal_status: str | None = None
    """`wal_status` of `pg_replication_slots`."""
    safe_wal_bytes: int | None = None
    """Bytes that may be written before the slot can be lost."""
    active: bool | None = None
    sampled_at: Time | None = None
    """The time of the sample. Null without a slot, and before the first sample."""
    restart_lsn: Annotated[Lsn | None, Field(exclude=True)] = None
    """The LSN below which the slot sends nothing again, also after a crash of the source. It is not in the JSON."""


@dataclass(frozen=True, slots=True)
class CaptureProgress(Part):
    """Capture. Positions are null before the stream is open."""

    connected: bool = False
    received_lsn: Lsn | None = None
    staged_lsn: Lsn | None = None
    acknowledged_lsn: Lsn | None = None
    rows: int = 0
    """Row changes since the process started."""
    transactions: int = 0
    rows_per_second: Tenths = 0.0
    error: ErrorProgress | None = None


@dataclass(frozen=True, slots=True)
class StagingProgress(Part):
    """The staging area. If it is not durable, the slot is acknowledged only up to what every table has applied."""

    durable: bool = False
    segments: int = 0
    bytes: int = 0
    free_bytes: int | None = None
    """The free space of its volume. Null for an object store."""


@dataclass(frozen=True, slots=True)
class MemoryProgress(Part):
    """The memory for changes, which capture and apply share."""

    budget_bytes: int = 0
    used_bytes: int = 0
    """An estimate of what segments and batches hold."""
    waiting: bool = False
    """True while capture does not read, because batches hold the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedLimit(Part):
    """A limit of the guard that is passed."""

    measure: Measure
    policy: Severity
    limit: int
    """In bytes, or in percent for `retainedWalPercent`."""
    value: int
    """The last known figure, in the same unit."""
    since: Time


@dataclass(frozen=True, slots=True)
class GuardAction(Part):
    """Something that the guard did."""

    measure: Measure
    policy: Severity
    at: Time
    message: str


@dataclass(frozen=True, slots=True)
class GuardProgress(Part):
    """The guard of the source's disk and of the staging area."""

    policy: Severity = ""
    """The most severe policy in force. Empty: no limit is passed."""
    pauses_copies: bool = False
    """True while no copy may begin."""
    passed: tuple[PassedLimit, ...] = ()
    actions: tuple[GuardAction, ...] = ()
    """The last actions, also those of earlier processes, at most 20, the newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutProgress(Part):
    """A cut of all tables. The LSN and the times are null before they are chosen."""

    name: str
    phase: Cutting
    lsn: Lsn | None = None
    at: Time | None = None
    """The time at which the LSN was chosen."""
    committed_at: Time | None = None
    """The commit time of the last transaction below the LSN, by the source's clock. Null if it is not known."""
    tables: int = 0
    """The number of tables that were replicated."""
    tagged: int = 0
    """The number of tables that are kept as of the LSN."""
    left_out: tuple[str, ...] = ()
    """The tables that the cut lacks, each with the reason."""
    scheduled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutsProgress(Part):
    """The cuts of all tables."""

    every_seconds: int | None = None
    """The interval of scheduled cuts. Null without a schedule."""
    kept: int = 0
    """The number of complete cuts."""
    last_complete: CutProgress | None = None
    pending: CutProgress | None = None


@dataclass(frozen=True, slots=True)
class WaitingField(Part):
    """A changed field of the manifest that takes effect after a restart."""

    field: str
    change: str
    """The class of the change."""


@dataclass(frozen=True, slots=True)
class ManifestProgress(Part):
    """The parts of the manifest's file that a running engine has not applied."""

    error: ErrorProgress | None = None
    """The error of a changed manifest. The engine keeps the earlier one."""
    waiting: tuple[WaitingField, ...] = ()
    arguments: str = ""
    """The words that stand for MANIFEST in commands on the engine's machine, quoted for a shell: its path, and the
    option of its Secrets. Empty for a manifest without a file.
    """
    prefix: str = ""
    """The words before `levada` in commands, which run them in the driver's pod. Empty outside of a pod."""
    digest: str = ""
    """The first 16 hexadecimal digits of the SHA-256 of the file that is in effect, except for fields that wait for a
    restart. Empty without a file.
    """
    approval: ErrorProgress | None = None
    """Another key of masks that waits for an approval, with the tables and the command. The former one is in effect."""


@dataclass(frozen=True, slots=True)
class PublicationProgress(Part):
    """A managed publication."""

    error: ErrorProgress | None = None
    """The selected tables that cannot be added to it. They are not replicated, and the others are."""
    lent: ErrorProgress | None = None
    """The tables that Levada's event trigger has given another replica identity, for more than a minute."""
    waits: Annotated[bool, Field(exclude=True)] = False
    """True while tables are added as soon as another session's lock on them ends. It is not in the JSON."""
    trigger: ErrorProgress | None = None
    """Levada's event trigger, if another session has dropped, disabled or changed it."""


@dataclass(frozen=True, slots=True)
class StoreProgress(Part):
    """The store."""

    error: ErrorProgress | None = None
    """The error of the store's last call. The call is retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Part):
    """The whole pipeline at one moment."""

    version: int = PROGRESS_VERSION
    pipeline: str
    epoch: int = 0
    """The number of the engine's start. An engine with a lower number can no longer write."""
    state: State
    ready: bool = field(init=False, default=False)
    """True if the pipeline runs and every table is Ready."""
    started_at: Time
    at: Time
    """The time of this document. It stands still while the engine waits, for example for its store."""
    catch_up: CatchUpProgress | None = None
    """The time until capture and all tables that stream have caught up. Null if it is not known for one of them."""
    slot: SlotProgress
    capture: CaptureProgress = CaptureProgress()
    staging: StagingProgress = StagingProgress()
    memory: MemoryProgress = MemoryProgress()
    guard: GuardProgress = GuardProgress()
    cuts: CutsProgress = CutsProgress()
    manifest: ManifestProgress = ManifestProgress()
    publication: PublicationProgress = PublicationProgress()
    store: StoreProgress = StoreProgress()
    tables_by_phase: dict[str, int] = field(init=False, default_factory=dict)
    """The number of tables in each phase. Phases without tables are left out."""
    tables: tuple[TableProgress, ...] = ()
    error: ErrorProgress | None = None
    """The error that ended the pipeline."""
    verified_lsn: Annotated[Lsn | None, Field(exclude=True)] = None
    """The LSN up to which the tables were compared with the source's catalog. It is not in the JSON."""

    def __post_init__(self) -> None:
        for table in self.tables:
            self.tables_by_phase[table.phase] = self.tables_by_phase.get(table.phase, 0) + 1
        all_ready = len(self.tables) == self.tables_by_phase.get(TablePhase.READY, 0)
        # The dataclass is frozen, but its derived fields are computed here.
        object.__setattr__(self, "ready", self.state is PipelineState.RUNNING and all_ready)

    def has_reached(self, target: Lsn) -> bool:
        """Return True if every table is Ready and has applied all changes below ``target``. False without tables."""
        return bool(self.tables) and all(table.has_reached(target) for table in self.tables)
