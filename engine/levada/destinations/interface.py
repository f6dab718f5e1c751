"""The interface that a destination implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
from pydantic import BaseModel

from levada.copy.rows import TableRows
from levada.copy.tasks import BatchRunner
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.erasure import Erased, Erasure
from levada.destinations.groups import GroupWriter
from levada.destinations.verification import FixedTable, Repair
from levada.local.jars import Jar
from levada.schema import TableTarget
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, Lsn, OnSchemaChange, QualifiedTable, TableId, TableMode, Watermark

if TYPE_CHECKING:
    from levada.schema.partitions import Region
    from levada.stores.interface import DestinationMetadataStore

__all__ = [
    "Capabilities",
    "Destination",
    "Jar",
    "NamedCut",
    "OnSchemaChange",
    "Ordering",
    "TableMode",
    "TableTarget",
]


class Ordering(StrEnum):
    """The scope of one call of `write_events`."""

    TABLE = "table"
    """One table per call. Several threads may call it at the same time, for different tables."""
    PIPELINE = "pipeline"
    """All tables in one call, so that transactions stay complete across tables. There is one call at a time."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional capabilities of a destination. They decide which methods the engine calls.

    ``upsert``: tables hold the last state per key. Without it they hold every change. ``watermark``: `applied` reads
    the watermark from the destination's own commits, so delivery is exactly once. Without it delivery is at least once.
    ``replacement``: the destination can write a shadow copy while the table stays readable, by
    `Destination.copy_replacement` and the three methods after it. Without it, or with Ordering.PIPELINE, a resync drops
    the table first. ``spark``: the destination needs the engine's Spark session, whose tasks then also read the copied
    rows. Without it no JVM starts, and worker processes read them. ``keeps_ranges``: `Destination.write_table_rows`
    reads the rows by `TableRows.map_ranges`, whose finished ranges outlive the process. Without it an interrupted copy
    begins again. ``verifies``: `Destination.fixed` returns a version of a table whose checksums can be compared with
    the source. Without it `levada verify` refuses the pipeline. ``verifies_ranges``: that version can be compared by
    ranges of keys, see `levada.destinations.key_ranges`. Without it ``spec.verify.continuous`` is refused. ``repairs``:
    `Destination.repair` writes the rows of some keys again. ``cuts``: `Destination.update_cuts` keeps states of a table
    under names. Without it ``spec.cuts`` and `levada cut` are refused. ``erases``: `Destination.erase` removes rows
    from the current and all former states.
    ``guards``: the destination keeps other writers from its tables until
    `Destination.release_table`. Without it a clean-up that retains the tables does not open the destination.
    ``finds_rows``: `Destination.keys_in` finds the rows of a partition by its bounds. ``keeps_deleted``: the
    destination folds changes by `levada.destinations.fold`, finds rows, and has `Destination.rows_left_out`. Without it
    a manifest whose tables keep deleted rows is refused.
    ``copies_in_process``: the functions that the destination gives to `TableRows.map_partitions` and
    `TableRows.map_ranges` may run in the engine's process for a small table, which costs a fraction. They end by
    themselves, because only another process can be killed. ``checks_without_spark``: a destination with ``spark`` is
    checked in a JVM without a session. ``folds_ahead``: `Destination.fold_ahead` does a part of a large transaction's
    batch before its COMMIT. ``retypes_in_utc``: a column of times that gets or loses its time zone becomes that of the
    other type in place, in UTC. Without it the table is copied again.
    """

    upsert: bool = False
    watermark: bool = False
    replacement: bool = False
    ordering: Ordering = Ordering.TABLE
    spark: bool = False
    keeps_ranges: bool = False
    verifies: bool = False
    verifies_ranges: bool = False
    repairs: bool = False
    cuts: bool = False
    erases: bool = False
    guards: bool = False
    finds_rows: bool = False
    keeps_deleted: bool = False
    checks_without_spark: bool = False
    copies_in_process: bool = False
    folds_ahead: bool = False
    retypes_in_utc: bool = False


@dataclass(frozen=True, slots=True)
class NamedCut:
    """The name of a table's state with every change below ``lsn`` and no other one."""

    name: str
    lsn: Lsn


class Destination(ABC):
    """A system that stores tables.

    Each call that creates, writes or drops a table gets an immutable `TableTarget` with the table's schema, mode and
    name. After a restart, the first call for a table may be one that has only its OID, such as `applied`.

    Several threads call the methods, but only one at a time for the same table. The exception is `copy_replacement`.
    Every method must be idempotent. After a crash it is called again with the same data, or with more data from the
    same start. Return values are checked: a coroutine or an undeclared type raises NeedsOperator
    ``destination_contract``. Raise `Transient` for errors that a retry may resolve, and `NeedsOperator` for errors that
    need a person. Both affect only the table of the call.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    settings_model: ClassVar[type[BaseModel] | None] = None
    """The pydantic model of the destination's settings in a manifest, or None if it has no settings."""

    table_settings_model: ClassVar[type[BaseModel] | None] = None
    """The pydantic model of the settings of one table in its TableSync, or None if there are none.

    A TableSync has them in ``spec.custom.options``, and each call in `TableTarget.settings`. A change reaches the next
    call for the table. It copies nothing again, so the destination changes an existing table in place.
    """

    @classmethod
    def from_settings(cls, settings: Any, context: DestinationContext) -> Self:
        """Create a destination. ``settings`` is an instance of `settings_model`, or None without one.

        Only a destination with this method can be named in a manifest.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be created from a manifest")

    def parallel_batches(self) -> int:
        """Return how many usual batches of a table `write_events` applies in about the time of one.

        The batches of a backlog are larger by this factor.
        """
        return 1

    def run_batches_in(self, runner: BatchRunner) -> None:  # noqa: B027  # most destinations have no such tasks
        """Take the runner of tasks that may write batches outside of this process. Called before `startup`.

        It is not called if this process has one core.
        """

    def keep_metadata_in(self, store: DestinationMetadataStore) -> None:  # noqa: B027 - most keep none
        """Take the place in the pipeline's store where the destination may keep a record of each of its tables.

        Called before `startup`, also by the process of a dedicated copy and by a clean-up, and not by `levada check`.
        Use it from the first call for a table on. A destination that can store its records in its own commits should do
        that instead, because a crash may come between a commit there and the write here.
        """

    @classmethod
    def object_store(cls, settings: Any, credentials: Path | None) -> Mapping[str, str]:
        """Return the properties of the destination's object store by PyIceberg's names, such as ``s3.endpoint``.

        The staging area uses them, if it is on S3 and its URI has no settings. ``credentials`` is the folder of the
        destination's Secret, or None.
        """
        return {}

    @classmethod
    def spark_conf(cls, settings: Any) -> Mapping[str, str]:
        """Return the settings of the Spark session that the destination needs, for one with the capability ``spark``.

        ``settings`` is an instance of `settings_model`, or None for a destination that was not created from a manifest.
        The settings in ``spec.driver.sparkConf`` override them.
        """
        return {}

    @classmethod
    def jars(cls) -> Sequence[Jar]:
        """Return the jars that the Spark session needs, for a destination with the capability ``spark``.

        They are downloaded into the cache of the machine, and are in the class paths of the driver and its executors.
        """
        return ()

    @classmethod
    def planned_name(cls, settings: Any, table: QualifiedTable, name: QualifiedTable) -> TargetName | None:
        """Return what `target_name` of a destination with these settings would return, without creating it.

        `levada status` calls this for a pipeline that does not run.
        """
        return None

    keeps_former_tables: ClassVar[bool] = False
    """True if a new driver does not find the tables of former copies under other names than its settings give them."""

    def startup(self) -> None:  # noqa: B027 - most destinations have nothing to open
        """Open connections. This is called after the state is loaded, before the workers start.

        If it raises Transient and no table was copied yet, it is called again, as often as a table is retried. If a
        table was already copied, the pipeline keeps staging changes. The other methods are then called without a
        successful startup, and should raise Transient too.
        """

    def check(self) -> None:  # noqa: B027 - for most destinations startup is check enough
        """Raise an error if the destination cannot be written. `levada check` calls this after `startup`.

        It removes all data that it writes for the check.
        """

    def shutdown(self) -> None:  # noqa: B027 - most destinations have nothing to close
        """Close connections. This is called once, when all writes have ended."""

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName | None:
        """Return the name at this destination of a table, or None if the destination has no table names.

        ``table`` is its name at the source, and ``name`` is `TableTarget.name`. The table need not exist. The method
        must not open connections. Raise NeedsOperator ``destination_name_unusable`` for a name that the destination
        cannot use.
        """
        return None

    def check_place(self, target: TableTarget) -> None:  # noqa: B027 - optional
        """Raise NeedsOperator if a copy of the table would overwrite another table.

        This is called before data is removed for the copy.
        """

    def has_table(self, target: TableTarget) -> bool:
        """Return True if a table of the pipeline has the place of a table that has passed `check_place`.

        It may be a table of a state that is gone, or of a dropped source table. The rows that it keeps would be lost
        with a first copy, so this is called for tables that keep rows.
        """
        return False

    def check_sources(  # noqa: B027 - optional
        self, tables: Mapping[QualifiedTable, QualifiedTable], selects: Callable[[QualifiedTable], bool]
    ) -> None:
        """Raise NeedsOperator if the destination is the source of one of the tables. `levada check` calls this.

        Each table has its name at the source and its `TableTarget.name`. ``selects`` returns True for the name of a
        table that the pipeline would take up if the source had it. `check_place` raises the same error for a table
        that exists.
        """

    @abstractmethod
    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Drop the table of an earlier copy, with all state that belongs to it. A missing table is no error.

        This is called before every copy whose rows do not go into a shadow copy, and when a table is removed. There is
        no call that only empties a table: a table that stays readable during a copy gets a shadow copy, and a TRUNCATE
        at the source is a change in `write_events`. The mode and name of the last copy are in the store. What
        else a destination must know of the table it may keep there itself, see `keep_metadata_in`.

        ``target`` has the earlier copy's mode and name, and the newest schema that is stored for it. If there was no
        copy, they are those of the copy that follows.

        ``epoch`` is the epoch of the driver that drops the table. If a destination stores the epochs of its writers, it
        raises StaleEpoch, without removing data, if a newer driver has written the table. None means that the pipeline
        itself is removed, and no epoch is compared.
        """

    def release_table(self, target: TableTarget) -> None:
        """Let others write the table, because the pipeline is removed and the table stays. A missing one is no error.

        Only a destination with the capability ``guards`` has this method.
        """
        raise NotImplementedError(f"{self.name} keeps no writer from its tables")

    @abstractmethod
    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Create the table if it does not exist, write the copied rows, and store ``mark`` in the same commit.

        This is called for an empty table as well, so that it exists. After ACCEPTED the engine calls `write_events`
        with batches without changes until the rows are durable. Only then does it apply changes to the table.
        """

    def group_writer(self) -> GroupWriter | None:
        """Return what writes the first copies of small tables together, or None if they are written one by one."""
        return None

    @abstractmethod
    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        """Apply the changes, schema changes and truncates of the batch, and store ``mark`` in the same commit.

        ``events.changes(table).target`` is the target of a table of the batch. All changes of a table are identified by
        one key. If the rows from before have another one, identify them by the new key, or raise NeedsOperator
        ``key_changed``, after which the table is copied again.

        A batch with ``only_asks`` has no changes. Its result is the durability of the writes accepted before. After
        ACCEPTED the engine asks again before it acknowledges the changes. Keep no reference to the batch after the
        call, because its files are removed when they are durable.
        """

    def fold_ahead(self, events: TableEvents) -> None:
        """Do what the batch of a transaction needs before its COMMIT, for a destination with ``folds_ahead``.

        ``events`` has one file of the transaction, whose rows have the commit `UNKNOWN_COMMIT` of
        `levada.segments.writer`. A later batch may have the file with its commit, after a change of the table, or not
        at all. So nothing of it may be visible before, and the batch must come to the same without it. Other threads
        call the other methods for the same table. An error is logged, and has no other effect.
        """
        raise NotImplementedError(f"{self.name} does nothing before a COMMIT")

    def forget_ahead(self, table: TableId, paths: Sequence[str]) -> None:  # noqa: B027 - optional
        """Remove the results of `fold_ahead` for these staged files, which no batch will have."""

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Write the copied rows to a shadow copy of the table. The table itself stays unchanged and readable.

        While this method or `drop_replacement` runs, other threads call the other methods for the same table. Remove an
        earlier shadow copy first, complete or not. Return False, without reading ``rows``, if there is no readable
        table. The engine then calls `drop_table_for_copy` and `write_table_rows`.
        """
        raise NotImplementedError(f"{self.name} cannot write shadow copies")

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Apply the changes of one table's batch to its shadow copy, and not to the table.

        Return False if the batch changes columns in a way that the shadow copy cannot take, or if there is no shadow
        copy any more. The engine then copies again. The writes need not be durable before `swap_replacement`.
        """
        raise NotImplementedError(f"{self.name} cannot write shadow copies")

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Replace the table by its shadow copy, with the watermark ``mark``, in one atomic and durable commit.

        The shadow copy holds every change below ``mark``, and no less than the table. Return False, with the table
        unchanged, if the shadow copy is no longer valid. The engine then copies again.
        """
        raise NotImplementedError(f"{self.name} cannot write shadow copies")

    def drop_replacement(self, table: TableId) -> None:
        """Remove the shadow copy, complete or not. A missing one is no error. The table stays unchanged."""
        raise NotImplementedError(f"{self.name} cannot write shadow copies")

    def keys_in(self, target: TableTarget, region: Region) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the table's rows in a region, as of its last commit, each once and in any order.

        The columns are the key columns of the target's schema, in its order, names and Arrow types. Nothing else writes
        the table meanwhile. Only a destination with the capability ``finds_rows`` has this method.
        """
        raise NotImplementedError(f"{self.name} cannot look for the rows of a partition")

    def rows_left_out(self, target: TableTarget) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table whose keys its shadow copy does not have, each once and in any order.

        The columns are those of the target's schema, which is the shadow copy's. Columns that the table lacks are NULL.
        Nothing else writes the table meanwhile, but the rows that were yielded may be written to the shadow copy. Raise
        NeedsOperator ``kept_rows_unmovable`` if a value does not fit into its new type. Only a destination with the
        capability ``keeps_deleted`` has this method.
        """
        raise NotImplementedError(f"{self.name} does not keep deleted rows")

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return the mode of the table: UPSERT holds the last state per key, CHANGELOG holds every change.

        The default is UPSERT if the destination has that capability.
        """
        return TableMode.UPSERT if self.capabilities.upsert else TableMode.CHANGELOG

    def maintain(self, table: TableId) -> None:  # noqa: B027 - most destinations need none
        """Check and maintain the table. This is called about once a minute, between two batches of the table.

        Raise `DestinationChanged` if another writer changed the table. The engine then parks it. After any other error
        it continues to apply changes.
        """

    def fixed(self, target: TableTarget) -> FixedTable | None:
        """Return the table's current version for a comparison with the source, None if there is no table.

        Only a destination with the capability ``verifies`` has this method. A table that another writer has changed is
        no error, because the comparison finds the difference.
        """
        raise NotImplementedError(f"{self.name} has no versions of tables to compare")

    def fixed_replacement(self, target: TableTarget) -> FixedTable | None:
        """Return the shadow copy's rows for a comparison before the swap, None if there is no shadow copy.

        Only a destination with the capabilities ``verifies`` and ``replacement`` has this method. Nothing is written to
        the shadow copy until the result is closed.
        """
        raise NotImplementedError(f"{self.name} cannot read shadow copies")

    def repair(
        self,
        target: TableTarget,
        fixed: FixedTable,
        repair: Repair,
        rows: Iterable[pa.RecordBatch],
        mark: Watermark,
    ) -> None:
        """Delete the rows that differ and add ``rows``, in one commit that moves no watermark.

        If another writer has changed the table, other rows may still differ. So until `accept_repair`, `applied` and
        `write_events` raise DestinationChanged, and so does this method for a range of the table. A table that no other
        writer has changed goes on from its watermark, whether or not its repair ends.

        ``fixed`` is the current version of the table. ``rows`` have the columns of the target's schema. ``mark`` has
        the epoch of the driver. Raise Transient if the table changed since.
        """
        raise NotImplementedError(f"{self.name} cannot repair tables")

    def accept_repair(self, target: TableTarget, fixed: FixedTable, mark: Watermark) -> None:
        """Store ``mark``, because the version ``fixed`` has all rows of the source at that LSN, and no others.

        Changes by other writers before do not matter any more. Raise Transient if the table changed since.
        """
        raise NotImplementedError(f"{self.name} cannot repair tables")

    def forget_missing_files(self, target: TableTarget, fixed: FixedTable, mark: Watermark) -> Sequence[str]:
        """Remove what `FixedTable.check_files` of ``fixed`` could not read. Return what was removed.

        Its rows become differences.
        """
        return ()

    def update_cuts(
        self, table: TableId, added: NamedCut | None, removed: Collection[str], mark: Watermark
    ) -> Mapping[str, Lsn]:
        """Keep the table's current state under a name, forget other names, and return the names that there are now.

        The current state has every change below the LSN of ``added``. It must have no other change. If the watermark
        is above that LSN, raise Transient ``cut_passed`` and add nothing. A name that is kept already with the same LSN
        stays with its state, because the call is repeated after a crash. Maintenance must not remove the states. Names
        of ``removed`` that are not kept are no error. ``mark`` has the pipeline and the epoch of the driver, and any
        LSN. Raise NeedsOperator ``cut_name_taken`` if another owner uses the name.

        Only a destination with the capability ``cuts`` has this method.
        """
        raise NotImplementedError(f"{self.name} cannot keep states of tables")

    def erase(self, target: TableTarget, wanted: Erasure, mark: Watermark) -> Erased:
        """Remove the rows with some keys from the table, from its former states and from all files of it.

        The watermark stays. Nothing else writes the table meanwhile, and it has no shadow copy. In a changelog, all
        rows of a key go. A repeated call removes what an interrupted one has left. ``mark`` has the pipeline and the
        epoch of the driver, and any LSN. Raise NeedsOperator ``erase_kept_by_cuts``, without removing anything, if cuts
        have the rows and ``wanted.cuts`` is False.

        Only a destination with the capability ``erases`` has this method.
        """
        raise NotImplementedError(f"{self.name} cannot erase rows")

    def copied_elsewhere(self, target: TableTarget) -> None:  # noqa: B027 - most destinations keep no state of tables
        """Discard the state that this object keeps of the table, because another process has copied it to ``target``.

        The engine calls this after a dedicated copy, before it asks for the watermark with `applied`.
        """

    def applied(self, table: TableId) -> Watermark | None:
        """Return the table's durable watermark, or None if the table or its watermark does not exist."""
        return None
