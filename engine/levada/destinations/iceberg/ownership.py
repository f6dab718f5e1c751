"""The owner of an Iceberg table: a pipeline, by its full name, over a source, and one table of that source."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from levada.destinations.iceberg.catalog import TableName
from levada.destinations.iceberg.metadata import Property
from levada.destinations.interface import DestinationContext
from levada.errors import DestinationChanged
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """One pipeline over one source.

    A pipeline of the same name in another namespace, or over another source, is another owner. The tables of the
    pipeline's former owners are its own.
    """

    context: DestinationContext

    def properties(self, name: TableName, schema: ReplicatedTableSchema) -> dict[str, str]:
        """Return the properties that make a table this owner's."""
        return {
            Property.PIPELINE.value: self.context.full_name,
            Property.SOURCE_ID.value: self._source_id,
            Property.NAME.value: str(name),
            Property.TABLE_ID.value: str(int(schema.id)),
            Property.SOURCE.value: json.dumps([schema.name.schema, schema.name.name]),
        }

    def owns(self, properties: Mapping[str, str]) -> bool:
        """Return True if the table with these properties is this owner's."""
        return properties.get(Property.SOURCE_ID) == self._source_id and self._has_our_name(properties)

    def owned(self, properties: Mapping[str, str]) -> bool:
        """Return True if the table is this pipeline's over a source that it had before."""
        source, made_for = self.context.source, properties.get(Property.SOURCE_ID)
        former = source is not None and bool(made_for) and source.is_former(str(made_for))
        return former and self._has_our_name(properties)

    def renamed(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties to change in an own table, so that it has the present full name. Empty: none."""
        name = self.context.full_name
        return {} if properties.get(Property.PIPELINE) == name else {Property.PIPELINE.value: name}

    def require(self, name: TableName, properties: Mapping[str, str], table: TableId) -> None:
        """Raise DestinationChanged unless the table with these properties is this owner's, for that source table.

        The code is ``table_not_ours`` for another owner's, ``destination_collision`` for another table's.
        """
        if not self.owns(properties):
            raise DestinationChanged(
                "table_not_ours",
                f"{name} exists and {self._owner(properties)}",
                hint="set destinationTable in the table's TableSync, or move the existing table away",
            )
        if table_id_of(properties) != table:
            raise DestinationChanged(
                "destination_collision",
                f"{name} is the table of {source_of(properties)} (OID {properties.get(Property.TABLE_ID)}),"
                f" not of the table with OID {int(table)}",
                hint="set destinationTable in the TableSync of one of the two,"
                f" or drop {name} in the catalog and retry: levada retry MANIFEST TABLE",
            )

    def require_replaceable(
        self, name: TableName, properties: Mapping[str, str], schema: ReplicatedTableSchema
    ) -> None:
        """Raise DestinationChanged as `require` does, unless a copy of the source table may take the table's place."""
        if not self.may_replace(name, properties, schema):
            self.require(name, properties, schema.id)

    def may_replace(self, name: TableName, properties: Mapping[str, str], schema: ReplicatedTableSchema) -> bool:
        """Return True if the table was made for a former source table.

        That is one of the same name, which no longer exists, or any of a source that the pipeline had before.
        """
        former, source = table_id_of(properties), self.context.source
        if self.owned(properties):
            _log.warning("%s is a table of the former source of pipeline %s", name, self.context.full_name)
            return True
        if source is None or former in (None, schema.id) or source_of(properties) != schema.name:
            return False
        if not self.owns(properties) or source.has_table(former):
            return False
        _log.warning("%s is the table of a former %s (OID %d), which was dropped", name, schema.name, former)
        return True

    @property
    def _source_id(self) -> str:
        return "" if self.context.source is None else str(self.context.source)

    def _has_our_name(self, properties: Mapping[str, str]) -> bool:
        named = properties.get(Property.PIPELINE)
        # The former names are in the store, and few tables have one.
        return bool(named) and (named == self.context.full_name or named in self.context.former_names())

    def _owner(self, properties: Mapping[str, str]) -> str:
        pipeline = properties.get(Property.PIPELINE)
        if not pipeline:
            return "was not made by Levada"
        if pipeline != self.context.full_name:
            return f"belongs to Pipeline {pipeline}, and this is Pipeline {self.context.full_name}"
        return f"belongs to another Pipeline {pipeline}, over another source database"


def table_id_of(properties: Mapping[str, str]) -> TableId | None:
    """Return the OID of the source table that the Iceberg table was made for, None if no such OID can be read."""
    text = properties.get(Property.TABLE_ID, "")
    return TableId(int(text)) if text.isdecimal() else None


def source_of(properties: Mapping[str, str]) -> QualifiedTable | None:
    """Return the name that the source table had when the Iceberg table was made, None if it cannot be read."""
    try:
        schema, name = json.loads(properties.get(Property.SOURCE, ""))
    except (ValueError, TypeError):
        return None
    return QualifiedTable(str(schema), str(name))
