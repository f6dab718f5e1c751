"""A source table as a destination sees it: its schema version, its mode and its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from pydantic import BaseModel

from levada.schema.kept_rows import with_deleted_at
from levada.schema.metadata import NO_METADATA, RowMetadata, with_metadata
from levada.schema.table import ReplicatedTableSchema
from levada.values import Deletes, QualifiedTable, TableId, TableMode


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A source table, and how a destination stores it. Each call gets one, so a destination keeps no settings.

    ``mode`` is the mode in the manifest. A destination that has no such mode for the table stores it in another one,
    see `levada.destinations.Destination.effective_mode`.
    """

    schema: ReplicatedTableSchema
    mode: TableMode
    name: QualifiedTable
    """The schema and name from which the destination derives the table's name.

    They are those of the source table, unless the manifest sets ``destinationTable``. A table that is renamed at the
    source keeps them.
    """
    settings: BaseModel | None = None
    """The table's settings for the destination, or None if the manifest has none.

    They are an instance of the destination's ``table_settings_model``. Unlike the other fields they are the current
    ones, and not those of the last copy. A changed manifest changes them without a resync.
    """
    deletes: Deletes = Deletes.APPLY
    """The effect of a delete on the table's rows. With MARK, the schema has the column `DELETED_AT`."""
    keeps_partitions: bool = False
    """True if the rows of a partition stay that the source's table does not have any more."""

    metadata: RowMetadata = NO_METADATA
    """The columns that describe the last change of each row. The schema has them."""

    @classmethod
    def of(
        cls,
        schema: ReplicatedTableSchema,
        mode: TableMode = TableMode.UPSERT,
        name: QualifiedTable | None = None,
        settings: BaseModel | None = None,
    ) -> Self:
        """Return the target of a table, which by default has the name of the source table."""
        return cls(schema, mode, name or schema.name, settings)

    @property
    def id(self) -> TableId:
        """The OID of the source table."""
        return self.schema.id

    @property
    def keeps_rows(self) -> bool:
        """True if the table may have rows that the source does not have."""
        return self.deletes is not Deletes.APPLY or self.keeps_partitions

    @property
    def keeps_unmarked(self) -> bool:
        """True if the table may have such rows without a mark."""
        return self.deletes is Deletes.IGNORE or self.keeps_partitions

    def with_schema(self, schema: ReplicatedTableSchema) -> Self:
        """Return the target with another version of the table's schema."""
        return replace(self, schema=schema)

    def keeping(self, deletes: Deletes, *, partitions: bool = False) -> Self:
        """Return the target of a table on which deletes, and ``partitions`` that are gone, have this effect.

        One without a key has each change anyway.
        """
        if self.mode is not TableMode.UPSERT or not self.schema.key:
            return self
        schema = with_deleted_at(self.schema) if deletes is Deletes.MARK else self.schema
        return replace(self, schema=schema, deletes=deletes, keeps_partitions=partitions)

    def describing(self, metadata: RowMetadata) -> Self:
        """Return the target of a table with columns that describe the last change of each row.

        One without a key, and one in mode CHANGELOG, describes each change anyway.
        """
        if self.mode is not TableMode.UPSERT or not self.schema.key or not metadata.columns:
            return self
        return replace(self, schema=with_metadata(self.schema, metadata), metadata=metadata)
