"""What a destination promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from levada.copy.rows import TableRows
from levada.destinations.collisions import Target
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import EventBatch
from levada.values import Durability, OnSchemaChange, QualifiedTable, TableId, TableMode, Watermark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Capabilities",
    "Destination",
    "DestinationContext",
    "OnSchemaChange",
    "Ordering",
    "TableMode",
    "TableSettings",
]


class Ordering(StrEnum):
    """What `write_events` is handed."""

    TABLE = "table"
    """One table a call; several tables at once from several threads."""
    PIPELINE = "pipeline"
    """All tables in one call, so that transactions stay whole across tables; one call at a time."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional abilities of a destination, on which the engine's calls depend.

    ``upsert``: it holds the last state per key, otherwise every change. ``watermark``: `applied` answers from the
    destination's own commits, so delivery is exactly once. Without it delivery is at least once. ``replacement``: it
    can make a new copy of a table that stays readable (`Destination.copy_replacement` and the three methods after it).
    Without it, or with the ordering PIPELINE, the table is dropped first.
    """

    upsert: bool = False
    watermark: bool = False
    replacement: bool = False
    ordering: Ordering = Ordering.TABLE


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a user said of one table."""

    mode: TableMode = TableMode.UPSERT
    destination_table: str = ""
    """The name at the destination; empty: the source's."""
    place: QualifiedTable | None = None
    """The schema and name that the table's place follows, for a table that was renamed at the source since its copy.

    None: its own schema, and ``destination_table`` or its own name.
    """

    def place_of(self, table: QualifiedTable) -> QualifiedTable:
        """Return the schema and name that the place of the table follows."""
        return self.place or QualifiedTable(table.schema, self.destination_table or table.name)


class Source(Protocol):
    """The source as a destination may ask about it. Both raise Transient while the source does not answer."""

    def __str__(self) -> str:
        """Return the source's identity, which no other database has."""
        ...

    def is_former(self, identity: str) -> bool:
        """Return True if the pipeline had the source of this identity before this one."""
        ...

    def has_table(self, table: TableId) -> bool:
        """Return True if the source has a table with this OID, under any name."""
        ...


@dataclass(frozen=True, slots=True)
class DestinationContext:
    """What the engine gives a destination that it makes from a manifest.

    ``work_dir`` is a folder on this machine's disk for caches that may be lost. ``spark`` is the engine's session, None
    where there is none. ``credentials`` is a mounted folder with a file per key, if one is named.
    ``source`` identifies the source, so that a pipeline of the same name over another source is another owner.
    ``only_checks`` is True in `levada check`: the destination creates nothing, not even when it is opened.
    ``namespace`` is the Pipeline's, empty outside of Kubernetes. ``former_names`` returns the full names of the
    pipeline's former owners, whose tables are its own. It reads the store.
    """

    pipeline: str
    work_dir: Path
    spark: SparkSession | None = None
    credentials: Path | None = None
    defaults: TableSettings = TableSettings()
    tables: Mapping[QualifiedTable, TableSettings] = field(default_factory=dict)
    on_schema_change: OnSchemaChange = OnSchemaChange.PROPAGATE
    source: Source | None = None
    only_checks: bool = False
    namespace: str = ""
    former_names: Callable[[], Collection[str]] = tuple

    @property
    def full_name(self) -> str:
        """Return the pipeline's name with its namespace, if it has one."""
        return f"{self.namespace}/{self.pipeline}" if self.namespace else self.pipeline

    def settings(self, table: QualifiedTable) -> TableSettings:
        """Return what was said of the table, else the pipeline's defaults."""
        return self.tables.get(table, self.defaults)


class Destination(ABC):
    """A place that keeps tables. Methods are called from several threads, for one table never from two at once.

    Every method is idempotent: after a crash it is called again with the same, or with more of the same. Answers are
    checked: a coroutine, or a type that is not the one declared here, is NeedsOperator ``destination_contract``.
    Errors: raise `Transient` for what mends itself, `NeedsOperator` for what does not; it concerns that table alone.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: DestinationContext) -> Self:
        """Make one from the manifest's settings (camelCase keys, as written there); needed to be named in a manifest.

        Raise InvalidManifest with the path of the field for settings that cannot be meant.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be made from a manifest")

    def startup(self) -> None:  # noqa: B027 - most destinations have nothing to open
        """Open what is needed; called after state is loaded, before workers start.

        After an error that another attempt may mend, a pipeline that has copied tables goes on, to stage what changes:
        the other calls follow all the same, and raise in their turn.
        """

    def check(self) -> None:  # noqa: B027 - most destinations have nothing that opening them does not show
        """Raise what would keep the destination from being written. Called by `levada check`, after `startup`.

        Whatever it writes to find that out it removes.
        """

    def shutdown(self) -> None:  # noqa: B027 - most destinations have nothing to close
        """Close; called once, after the writes in flight."""

    def target(self, table: QualifiedTable, settings: TableSettings) -> Target | None:
        """Return the name that the table has, or would have, at this destination. None: this destination has no names.

        It connects to nothing. Raise NeedsOperator ``destination_name_unusable`` for a name that cannot be used.
        """
        return None

    def check_place(self, schema: ReplicatedTableSchema, settings: TableSettings) -> None:  # noqa: B027 - optional
        """Raise NeedsOperator if a copy with ``settings`` would take the place of another table's.

        It is called before anything is removed for the copy.
        """

    @abstractmethod
    def drop_table_for_copy(self, schema: ReplicatedTableSchema, epoch: int | None = None) -> None:
        """Remove what an earlier copy left, with all that is kept of it; a table already gone is success.

        ``epoch`` is that of the driver that removes it. A destination that keeps the epochs of its writers raises
        StaleEpoch, with nothing removed, if a newer driver has written the table. With None, as the pipeline itself is
        removed, no epoch is compared.
        """

    @abstractmethod
    def write_table_rows(self, schema: ReplicatedTableSchema, rows: TableRows, mark: Watermark) -> Durability:
        """Make the table if it is not there, write the copied rows, and stamp ``mark`` in the same commit.

        Called for an empty table as well, so that it exists. After ACCEPTED the engine asks by `write_events` until the
        rows are durable, before the table's changes are applied.
        """

    @abstractmethod
    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        """Apply the changes, schema changes and truncates of the batch, and stamp ``mark`` in the same commit.

        A batch with ``only_asks`` has no changes and asks for the durability of what was accepted before. After
        ACCEPTED the engine asks again before it acknowledges anything. Keep no reference to the batch after the call:
        its files are removed once they are durable.
        """

    def copy_replacement(self, schema: ReplicatedTableSchema, rows: TableRows, mark: Watermark) -> bool:
        """Write the copied rows beside the table, which goes on as it is: a new copy that is to take its place.

        While it runs, and while `drop_replacement` does, the other methods are called for the same table, from other
        threads. What an earlier one left, whole or not, goes first. Return False, with nothing read, if there is no
        table that serves meanwhile: the engine then drops what there is, and calls `write_table_rows`.
        """
        raise NotImplementedError(f"{self.name} has no replacements")

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Apply the changes of a batch of one table to its new copy, not to the table.

        Return False if the new copy cannot follow, because the batch changes columns or the copy is not there any more:
        the engine then begins again. What is written need not outlive the process.
        """
        raise NotImplementedError(f"{self.name} has no replacements")

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Put the new copy in the table's place, stamped with ``mark``, by one durable step that readers see whole.

        The new copy holds everything below ``mark``, and at least what the table holds. Return False, with the table as
        it was, if the new copy does not fit any more: the engine then begins again.
        """
        raise NotImplementedError(f"{self.name} has no replacements")

    def drop_replacement(self, table: TableId) -> None:
        """Remove the new copy, and what is left of one; success if there is none. The table stays as it is."""
        raise NotImplementedError(f"{self.name} has no replacements")

    def effective_mode(self, schema: ReplicatedTableSchema) -> TableMode:
        """Return what the table holds: by default the last state per row where this destination can upsert."""
        return TableMode.UPSERT if self.capabilities.upsert else TableMode.CHANGELOG

    def maintain(self, table: TableId) -> None:  # noqa: B027 - most destinations need none
        """Check and maintain the table; called about once a minute, between two batches of the table.

        Raise `DestinationChanged` if the table is no longer as it was left: it is parked. After any other error the
        table goes on.
        """

    def applied(self, table: TableId) -> Watermark | None:
        """Return what this destination durably holds of the table; None if it cannot tell or has no such table."""
        return None
