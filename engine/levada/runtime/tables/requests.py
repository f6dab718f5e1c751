"""Retries and resyncs that a user requests through the manifest's settings of a table. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum

from levada.destinations.interface import Destination, Ordering
from levada.errors import NeedsOperator
from levada.runtime.config import PipelineConfig, TableConfig
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.masks import NO_MASKS, TableMasks
from levada.schema.metadata import RowMetadata, ordered
from levada.schema.stored_types import AS_RESOLVED, ColumnChoice, StoredTypes
from levada.stores.interface import PipelineStore, TableControls
from levada.values import CopiedRows, CopyMode, Deletes, MetadataColumn, OnPartitionGone, QualifiedTable, TableMode


@dataclass(frozen=True, slots=True)
class CopySettings:
    """The settings that a table's copy depends on. A change of them resyncs the table, except that of the copied rows.

    These are ``copy_mode`` and ``copy_where``, see `TableConfig`. ``table`` is the table's name at the time of the
    copy. A table that is renamed at the source keeps its settings. ``named`` is the name by which the manifest gives
    its columns, None for ``table``.
    """

    table: QualifiedTable
    mode: TableMode
    destination_table: str
    excluded_columns: frozenset[str]
    depends_on: str
    place: QualifiedTable
    """The name of the table's target, see `TableTarget.name`."""
    deletes: Deletes = Deletes.APPLY
    stored_types: StoredTypes = AS_RESOLVED
    masks: TableMasks = NO_MASKS
    named: QualifiedTable | None = None
    copy_mode: CopyMode = CopyMode.ALL
    copy_where: str = ""
    metadata: tuple[MetadataColumn, ...] = ()
    """The columns that describe the last change of each row, in the order of their class."""
    follows: bool = field(default=False, compare=False)
    """True if the next copy has the place of the table's name then, see `levada.runtime.tables.exchanged_names`."""

    @property
    def copied_rows(self) -> CopiedRows:
        """The rows that the copy takes."""
        if self.copy_mode is CopyMode.NONE:
            return CopiedRows.NONE
        return CopiedRows.PART if self.copy_where else CopiedRows.ALL

    @property
    def lack(self) -> str:
        """Return why the table at the destination lacks rows of the source, empty if its copy took all of them."""
        match self.copied_rows:
            case CopiedRows.ALL:
                return ""
            case CopiedRows.NONE:
                return "its copy took no row (copy.mode None), so it has only rows that have changed since then"
            case CopiedRows.PART:
                return (
                    f"its copy took only the rows where {self.copy_where} (copy.where), and no others until they change"
                )

    def with_rows_of(self, other: CopySettings) -> CopySettings:
        """Return the settings for the rows that a copy with other settings takes."""
        return replace(self, copy_mode=other.copy_mode, copy_where=other.copy_where)

    @property
    def choice(self) -> ColumnChoice:
        """The columns with their types and masks."""
        return ColumnChoice(self.excluded_columns, self.stored_types, self.masks)

    def with_choice(self, choice: ColumnChoice) -> CopySettings:
        """Return the settings with other columns."""
        return replace(self, excluded_columns=choice.excluded, stored_types=choice.types, masks=choice.masks)

    @classmethod
    def of(cls, config: PipelineConfig, table: QualifiedTable, before: CopySettings | None = None) -> CopySettings:
        """Return the settings for a copy that begins now. ``before`` are those of the last copy."""
        table_config = config.table(table)
        if (
            before is not None
            and not before.follows
            and table_config.destination_table == (before.destination_table if before.table == table else "")
        ):
            place = before.place
        else:
            place = QualifiedTable(table.schema, table_config.destination_table or table.name)
        columns = CopyColumns.of(config, table, before)
        return cls(
            table,
            table_config.mode,
            table_config.destination_table,
            columns.choice.excluded,
            config.copies_depend_on,
            place,
            table_config.deletes,
            columns.choice.types,
            columns.choice.masks,
            columns.named,
            table_config.copy_mode,
            table_config.copy_where,
            ordered(table_config.metadata),
        )

    def target(self, schema: ReplicatedTableSchema, config: PipelineConfig) -> TableTarget:
        """Return the target of a table with this schema and these settings.

        ``config`` has the destination's settings of the table. A table that was renamed since the copy keeps those of
        its former name, unless the manifest names it by the new one.
        """
        named = config.tables.get(schema.name) or config.table(self.table)
        target = TableTarget(schema, self.mode, self.place, named.settings)
        kept = target.keeping(self.deletes, partitions=named.on_partition_gone is OnPartitionGone.KEEP)
        return kept.describing(RowMetadata(self.metadata, config.full_name))

    def to_text(self) -> str:
        """Return the settings as JSON for the store."""
        data: dict[str, object] = {
            "table": [self.table.schema, self.table.name],
            "mode": self.mode.value,
            "destinationTable": self.destination_table,
            "excludedColumns": sorted(self.excluded_columns),
            "dependsOn": self.depends_on,
            "place": [self.place.schema, self.place.name],
            "deletes": self.deletes.value,
            "copyMode": self.copy_mode.value,
            "copyWhere": self.copy_where,
        }
        if self.stored_types.chosen:
            data["storedTypes"] = self.stored_types.by_column
        if self.masks:
            data["masks"] = self.masks.to_json()
        if self.named is not None:
            data["named"] = [self.named.schema, self.named.name]
        if self.metadata:
            data["metadata"] = [one.value for one in self.metadata]
        if self.follows:
            data["follows"] = True
        return json.dumps(data)

    @classmethod
    def from_text(cls, text: str) -> CopySettings:
        """Parse the text that `to_text` returned."""
        data = json.loads(text)
        return cls(
            QualifiedTable(*data["table"]),
            TableMode(data["mode"]),
            data["destinationTable"],
            frozenset(data["excludedColumns"]),
            data["dependsOn"],
            QualifiedTable(*data["place"]),
            Deletes(data.get("deletes", Deletes.APPLY)),
            StoredTypes.of(data.get("storedTypes", {})),
            TableMasks.from_json(data.get("masks", ())),
            QualifiedTable(*data["named"]) if "named" in data else None,
            CopyMode(data.get("copyMode", CopyMode.ALL)),
            data.get("copyWhere", ""),
            ordered(map(MetadataColumn, data.get("metadata", ()))),
            bool(data.get("follows", False)),
        )


@dataclass(frozen=True, slots=True)
class CopyColumns:
    """The columns that the manifest gives a table. ``named`` is that of `CopySettings`."""

    choice: ColumnChoice
    named: QualifiedTable | None = None

    @classmethod
    def of(cls, config: PipelineConfig, table: QualifiedTable, before: CopySettings | None) -> CopyColumns:
        """Return what the manifest says now. ``before`` are the settings of the last copy, None before the first.

        A table that was renamed keeps the columns of its former name, until the manifest has settings of the present
        one. Otherwise columns that are excluded or masked would be replicated in clear after a rename of their table.
        """
        former = None if before is None else before.named or before.table
        if before is None or table in config.tables or former in (None, table):
            return cls(config.choice(table))
        choice = config.table(former).choice if former in config.tables else before.choice
        return cls(config.commented(table, choice), former)


class TableRequest(StrEnum):
    """A request of the manifest that was not acted on yet."""

    NOTHING = "nothing"
    RETRY = "retry"
    RESYNC = "resync"


def pending_request(
    controls: TableControls, before: CopySettings | None, config: TableConfig, wanted: CopySettings
) -> TableRequest:
    """Return the request that the manifest makes and that was not acted on. Resync takes precedence over retry.

    ``before`` are the settings of the last copy, which ``controls`` has as text. A nonce of 0 requests nothing, because
    it stands for a field that is absent from the manifest.
    """
    if config.resync_nonce not in (0, controls.resync_nonce) or settings_changed(before, wanted):
        return TableRequest.RESYNC
    if config.retry_nonce not in (0, controls.retry_nonce):
        return TableRequest.RETRY
    return TableRequest.NOTHING


def settings_changed(before: CopySettings | None, wanted: CopySettings) -> bool:
    """Return True if the table's last copy has other settings than ``wanted``. False without a copy.

    Other rows of a copy are no change, because a copy that takes fewer would remove what the table has. After a rename
    at the source only the place and the columns are compared, because the other settings are given by name.
    """
    if before is None or before == wanted:
        return False
    if before.choice != wanted.choice:
        return True
    same = replace(before, named=wanted.named).with_rows_of(wanted) == wanted
    return not same if before.table == wanted.table else before.place != wanted.place


def last_copy_settings(controls: TableControls | None) -> CopySettings | None:
    """Return the settings of the table's last copy, None before the first."""
    return CopySettings.from_text(controls.made_as) if controls is not None and controls.made_as else None


def check_table_settings(config: PipelineConfig, destination: Destination) -> None:
    """Raise NeedsOperator for settings of tables that the destination does not take.

    The code is ``deletes_unsupported`` for tables that keep deleted rows, else ``table_settings_refused``.
    """
    keeping = any(
        c.deletes is not Deletes.APPLY or c.on_partition_gone is OnPartitionGone.KEEP
        for c in (config.default_table, *config.tables.values())
    )
    if keeping and not (destination.capabilities.keeps_deleted and can_replace(destination)):
        raise NeedsOperator(
            "deletes_unsupported",
            f"tables of {config.name} keep the rows that the source deletes, and {destination.name} cannot do that",
            hint="set deletes to Apply and onPartitionGone to Delete, for all tables and in each TableSync",
        )
    model = destination.table_settings_model
    for table, its in config.tables.items():
        if its.settings is None or (model is not None and isinstance(its.settings, model)):
            continue
        offered = "none" if model is None else f"a {model.__name__}"
        raise NeedsOperator(
            "table_settings_refused",
            f"{table} has settings of type {type(its.settings).__name__}, but {destination.name} takes {offered}",
            hint="set TableConfig.settings to an instance of the destination's table_settings_model, or to None",
        )


def can_replace(destination: Destination) -> bool:
    """Return True if the destination supports shadow copies. With the ordering PIPELINE it does not."""
    return destination.capabilities.replacement and destination.capabilities.ordering is Ordering.TABLE


def table_target(store: PipelineStore, config: PipelineConfig, schema: ReplicatedTableSchema) -> TableTarget:
    """Return the target of a table under the settings of its last copy, or the configured ones before the first."""
    before = last_copy_settings(store.get_table_controls(schema.id))
    return (before or CopySettings.of(config, schema.name)).target(schema, config)
